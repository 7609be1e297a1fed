"""The process: start, readiness, SIGTERM, crash on a bad configuration."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

CODE = "import sys; from trimtab.cli.emulate import run; run(sys.argv[1:])"


def launch(*args: str, **environ: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EMULATE_START_SECONDS": "0", **environ}
    return subprocess.Popen([sys.executable, "-c", CODE, *args], env=env, stderr=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_serves_and_ends_with_0_on_sigterm() -> None:
    port = free_port()
    process = launch("serve", "m", "--host", "127.0.0.1", "--port", str(port))
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as response:
                    assert response.status == 200
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=10)
        assert process.returncode == 0, log
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("args", "environ", "code", "words"),
    [
        (["m"], {"EMULATE_CRASH_IF": "max_num_seqs>200"}, 1, "CUDA out of memory"),
        (["m", "--max-num-seqs", "9999"], {}, 1, "greater than or equal to max_num_seqs"),
        (["m"], {"EMULATE_SPEEDUP": "fast"}, 2, "EMULATE_SPEEDUP"),
        (["m"], {"EMULATE_CRASH_IF": "no_flag>2"}, 2, "EMULATE_CRASH_IF"),
        (["m", "--made-up"], {}, 2, "unrecognized arguments"),
    ],
)
def test_it_fails_like_an_engine_that_does_not_start(
    args: list[str], environ: dict[str, str], code: int, words: str
) -> None:
    process = launch(*args, **environ)
    _, log = process.communicate(timeout=20)
    assert process.returncode == code
    assert words in log
    assert "Traceback" not in log
