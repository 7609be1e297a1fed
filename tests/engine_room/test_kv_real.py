"""num_gpu_blocks of a real vLLM (CPU) against the figure derived from its own flags and config.json."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from trimtab.cli.main import main

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
READY_SECONDS = 240
MODULE = ["-m", "vllm.entrypoints.openai.api_server"]
#: full, sliding, sliding, ...: vLLM makes 3 groups of 2 layers of these
HYBRID = {
    "num_hidden_layers": 6,
    "sliding_window": 256,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 2,
}
LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 128, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "head_dim": 64, "n_routed_experts": 4,
    "first_k_dense_replace": 2, "moe_layer_freq": 1,
}  # fmt: skip
SHAPES = {
    "small-blocks": ({}, ["--block-size=32", "--max-model-len=2048", "--dtype=bfloat16"]),
    "defaults-in-32-bit": ({}, ["--max-model-len=1000", "--dtype=float32", "--max-num-batched-tokens=1024"]),
    "windows": (HYBRID, ["--block-size=32", "--max-model-len=4096", "--max-num-batched-tokens=512"]),
    "latent": (LATENT, ["--max-model-len=2048"]),
    "draft": ({}, ["--block-size=32", "--max-model-len=2048", "DRAFT"]),
}


#: each costs an engine's start of half a minute
SOAK = {"defaults-in-32-bit", "draft"}


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=pytest.mark.soak) if name in SOAK else name for name in SHAPES]
)
def test_the_derived_block_count_is_the_engines(
    shape: str, vllm: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv, tiny = vllm
    changes, flags = SHAPES[shape]
    model = _variant(tiny, tmp_path / "model", changes)
    speculative = json.dumps({"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 3})
    flags = [f"--speculative-config={speculative}" if flag == "DRAFT" else flag for flag in flags]
    command = [f"{venv}/bin/python", *MODULE, f"--model={model}", "--load-format=dummy", "--enforce-eager", *flags]
    with _engine(command, tmp_path / "engine.log") as url:
        real = _cache_config(url)
    with pytest.raises(SystemExit) as ended:
        main(["kv", str(model), "--cpu-kvcache-space", "1", "-o", "json", "--", *command])
    assert ended.value.code == 0
    ours = json.loads(capsys.readouterr().out)
    print(f"{shape}: engine {real['num_gpu_blocks']}, derived {ours['num_gpu_blocks']['blocks']} blocks of "
          f"{ours['bytes_per_block']} bytes; engine {real['kv_cache_size_tokens']}, derived {ours['capacity_tokens']} "
          f"tokens; concurrency {real['kv_cache_max_concurrency']}, {ours['max_concurrency']}")  # fmt: skip
    assert ours["block_size_tokens"] == int(real["block_size"])
    assert abs(ours["num_gpu_blocks"]["blocks"] - int(real["num_gpu_blocks"])) <= 1
    assert ours["max_concurrency"] == pytest.approx(float(real["kv_cache_max_concurrency"]), rel=0.001)
    assert ours["capacity_tokens"] == pytest.approx(int(real["kv_cache_size_tokens"]), rel=0.001)


def _variant(tiny: Path, target: Path, changes: dict[str, Any]) -> Path:
    shutil.copytree(tiny, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@contextmanager
def _engine(command: list[str], log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}"], stdout=out, stderr=out, env=env, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log)
        yield url
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole process group, which is the engine's own."""
    for number, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with suppress(requests.RequestException):
            if requests.get(f"{url}/health", timeout=2).ok:
                return
        time.sleep(0.5)
    tail = log.read_text(errors="replace")[-3000:]
    pytest.fail(f"the engine did not start:\n{tail}", pytrace=False)


def _cache_config(url: str) -> dict[str, str]:
    text = requests.get(f"{url}/metrics", timeout=10).text
    (family,) = [f for f in text_string_to_metric_families(text) if f.name == "vllm:cache_config_info"]
    return family.samples[0].labels


def test_layouts_and_configs_are_what_vllms_own_functions_say(vllm: tuple[Path, Path]) -> None:
    """400 random mixtures of layers, and the heads and layer kinds of the public configs; no server."""
    here = Path(__file__).resolve()
    places = [here.parent, here.parents[2] / "tuner"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    done = subprocess.run(
        [f"{vllm[0]}/bin/python", str(here.parent / "kv_beside_vllm.py")],
        capture_output=True, text=True, env=env, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"layouts": [], "configs": []}
