"""The process: start, readiness, SIGTERM, crash on a bad configuration."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from trimtab.emulate import process as process_module
from trimtab.emulate.environment import Emulation
from trimtab.emulate.faults import Faults
from trimtab.emulate.flags import parse_flags

MIDDLEWARE = Path(__file__).resolve().parents[2] / "tuner" / "trimtab" / "middleware"
CODE = "import sys; from trimtab.cli.emulate import run; run(sys.argv[1:])"


def launch(*args: str, **environ: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EMULATE_START_SECONDS": "0", **environ}
    return subprocess.Popen([sys.executable, "-c", CODE, *args], env=env, stderr=subprocess.PIPE, text=True)


@contextmanager
def serving(*args: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A look-alike that is ready, and its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = launch("serve", "m", "--host", "127.0.0.1", "--port", str(port), *args, **environ)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert fetch(f"{url}/health") == ""
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def fetch(url: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.read().decode())


def test_it_serves_and_ends_with_0_on_sigterm(compiled_scheduler: None) -> None:
    with serving() as (process, _):
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=10)
        assert process.returncode == 0, log


def test_it_dies_in_the_middle_when_told_to(compiled_scheduler: None) -> None:
    with serving(EMULATE_FAULT_API="1") as (process, url):
        with pytest.raises(OSError):
            fetch(f"{url}/emulate/faults", {"exit_code": 137})
        assert process.wait(10) == 137


def test_what_the_operator_mounts_caps_tokens_and_shows_its_metrics(tmp_path: Path, compiled_scheduler: None) -> None:
    (tmp_path / "trimtab_mw").mkdir()
    for file in MIDDLEWARE.glob("*.py"):
        shutil.copy(file, tmp_path / "trimtab_mw" / file.name)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"generation": 7, "tokens": {"cap_max_tokens": 4, "lower_client": True}}))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    extra = {"PYTHONPATH": path, "TRIMTAB_POLICY_FILE": str(policy), "POD_NAME": "pod-0", "EMULATE_SPEEDUP": "50"}
    with serving("--middleware=trimtab_mw.Middleware", **extra) as (_, url):
        asked = {"prompt": "a b", "max_tokens": 50, "ignore_eos": True}
        answer = json.loads(fetch(f"{url}/v1/completions", asked))
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (4, "length")
        metrics = fetch(f"{url}/metrics")
        assert "vllm:generation_tokens_total" in metrics
        assert "trimtab_" in metrics  # the middleware's own, from the process's registry


def test_it_ignores_middleware_where_an_image_would(compiled_scheduler: None) -> None:
    with serving("--middleware=no_such_module.Thing", EMULATE_IGNORE_MIDDLEWARE="1") as (_, url):
        assert fetch(f"{url}/health") == ""


async def test_the_process_of_a_dead_engine_core_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "WATCHDOG_SECONDS", 0.05)
    monkeypatch.setattr(process_module, "REGISTRY", CollectorRegistry())
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    flags = parse_flags(["m", "--host", "127.0.0.1", "--port", "0"])
    dying = Emulation(start_seconds=0, faults=Faults(engine_dead=True))
    await asyncio.wait_for(process_module._live(flags, dying), 60)


@pytest.mark.parametrize(
    ("args", "environ", "code", "words"),
    [
        (["m"], {"EMULATE_CRASH_IF": "max_num_seqs>200"}, 1, "CUDA out of memory"),
        (["m", "--max-num-seqs", "9999"], {}, 1, "greater than or equal to max_num_seqs"),
        (["m"], {"EMULATE_SPEEDUP": "fast"}, 2, "EMULATE_SPEEDUP"),
        (["m"], {"EMULATE_CRASH_IF": "no_flag>2"}, 2, "EMULATE_CRASH_IF"),
        (["m", "--made-up"], {}, 2, "unrecognized arguments"),
        (["m", "--middleware", "no.such"], {}, 1, "ModuleNotFoundError: No module named 'no'"),
        (["m", "--host", "256.0.0.1"], {}, 1, "OSError"),
    ],
)
def test_it_fails_like_an_engine_that_does_not_start(
    args: list[str], environ: dict[str, str], code: int, words: str, compiled_scheduler: None
) -> None:
    process = launch(*args, **environ)
    _, log = process.communicate(timeout=20)
    assert process.returncode == code
    assert words in log
    assert "Traceback" not in log


def test_out_of_memory_at_the_start_has_vllms_last_words(compiled_scheduler: None) -> None:
    process = launch("m", EMULATE_CRASH_IF="max_num_seqs>=1")
    _, log = process.communicate(timeout=20)
    cause, last = log.strip().splitlines()[-2:]
    assert "torch.OutOfMemoryError: CUDA out of memory." in cause
    assert last.endswith("Failed core proc(s): {'EngineCore': 1}") and process.returncode == 1
