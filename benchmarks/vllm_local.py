"""A real vLLM on CPU for `vllm_aa.py` and `vllm_tune.py`: its command line, its environment, what one stream gets."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: one thread per engine, so that two engines, their API servers and the clients share two cores
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def engine() -> tuple[Path, Path]:
    """(venv, model) of hack/engine/build.sh, made if need be. CalledProcessError with its message on stderr."""
    done = subprocess.run([str(ROOT / "hack" / "engine" / "build.sh")], stdout=subprocess.PIPE, text=True, check=True)
    venv, model = done.stdout.split()
    return Path(venv), Path(model)


def command(blocks: int, *settings: str) -> list[str]:
    """A tiny random Llama with `blocks` KV blocks of 32 tokens."""
    venv, model = engine()
    return [
        str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", f"--model={model}",
        "--served-model-name=tiny", "--load-format=dummy", "--enforce-eager", "--dtype=bfloat16",
        "--max-model-len=2048", "--block-size=32", f"--num-gpu-blocks-override={blocks}",
        "--disable-uvicorn-access-log", "--shutdown-timeout=20", *settings,
    ]  # fmt: skip


def environ() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT}


def stream_tokens_per_second(url: str, tokens: int = 200, tries: int = 5) -> float:
    """The fastest of some single streams on an idle engine."""
    body = {"model": "tiny", "prompt": "a" * 50, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
    best = 0.0
    for _ in range(tries):
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        started = time.monotonic()
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
        best = max(best, tokens / (time.monotonic() - started))
    return best
