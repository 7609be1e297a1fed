"""A real vLLM and the emulator with the same command line, and one client for both.

The real one's steps are paced (`in_vllm/paced_worker.py`): on a machine that does other things, too, a CPU's own steps
differ more between two runs of one load than any emulator is off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

Labels = frozenset[tuple[str, str]]
START_SECONDS = 300


@dataclass(frozen=True)
class Asked:
    """One request of a load. `body` holds what differs from a plain stream of `output` tokens."""

    at: float
    prompt: list[int]
    output: int
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What its client saw; seconds on the load's clock. `ended`: finish_reason, or the status of an error."""

    sent: float
    first: float
    last: float
    tokens: int
    ended: str


@dataclass(frozen=True)
class Twin:
    """A server of one of the two kinds."""

    url: str
    process: subprocess.Popen[bytes]

    def answer(self, body: Mapping[str, Any]) -> tuple[int, str]:
        """Status and text of one completion; a connection that breaks is status 0."""
        data = json.dumps({"model": "tiny", "prompt": [1, 2, 3], "ignore_eos": True, **body}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def engine_core(self) -> int:
        """The process id of the engine core of a real one: its only child beside multiprocessing's own."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (core,) = (int(c) for c in children if b"resource_tracker" not in Path(f"/proc/{c}/cmdline").read_bytes())
        return core

    def play(self, load: Sequence[Asked]) -> list[Seen]:
        """The whole load at its times; in its order."""
        return asyncio.run(self._play(load))

    async def _play(self, load: Sequence[Asked]) -> list[Seen]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            start = time.perf_counter() + 0.05
            return await asyncio.gather(*(self._ask(session, one, start) for one in load))

    async def _ask(self, session: aiohttp.ClientSession, asked: Asked, start: float) -> Seen:
        await asyncio.sleep(start + asked.at - time.perf_counter())
        body = {
            "model": "tiny", "prompt": asked.prompt, "max_tokens": asked.output, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, **asked.body,
        }  # fmt: skip
        sent = time.perf_counter() - start
        async with session.post("/v1/completions", json=body) as answer:
            if answer.status != 200:
                return Seen(sent, 0.0, 0.0, 0, str(answer.status))
            first, last, tokens, ended = 0.0, 0.0, 0, ""
            async for line in answer.content:
                now = time.perf_counter() - start
                if found := re.search(rb'"completion_tokens":(\d+)', line):
                    tokens = int(found[1])
                elif line.startswith(b"data: {"):
                    first, last = first or now, now
                if found := re.search(rb'"finish_reason":"(\w+)"', line):
                    ended = found[1].decode()
        return Seen(sent, first, last, tokens, ended)

    def text(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as response:
            return str(response.read().decode())

    def samples(self) -> dict[tuple[str, Labels], float]:
        """Name and labels -> value, of vLLM's and the web server's metrics, without the times of creation."""
        found: dict[tuple[str, Labels], float] = {}
        for line in self.text().splitlines():
            match = re.match(r"((?:vllm:|http_)\w+)(?:\{(.*)\})? (\S+)$", line)
            if match is not None and not match[1].endswith("_created"):
                found[match[1], frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))] = float(match[3])
        return found

    def described(self) -> dict[str, list[str]]:
        """Family -> its HELP and TYPE lines."""
        families: dict[str, list[str]] = defaultdict(list)
        for line in self.text().splitlines():
            if line.startswith(("# HELP", "# TYPE")) and line.split()[2].startswith(("vllm:", "http_")):
                families[line.split()[2]].append(line.rstrip())
        return {name: lines for name, lines in families.items() if not name.endswith("_created")}


IN_VLLM = Path(__file__).resolve().parent / "in_vllm"
#: seconds per step, token and sequence
PACE = (0.04, 0.00015, 0.0005)
FLAGS = (
    "--served-model-name=tiny",
    "--load-format=dummy",
    "--enforce-eager",
    "--dtype=bfloat16",
    "--max-model-len=1024",
    "--block-size=32",
    "--num-gpu-blocks-override=400",
    "--max-num-seqs=16",
    "--host=127.0.0.1",
    "--no-async-scheduling",  # vLLM has none on a CPU, whatever its flags say
)


@contextlib.contextmanager
def real(vllm: tuple[Path, Path], folder: Path) -> Iterator[Twin]:
    """RuntimeError with the end of its log when it does not start."""
    venv, model = vllm
    env = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(IN_VLLM), "PACE": ",".join(map(str, PACE)),
    }  # fmt: skip
    command = [str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", *FLAGS]
    command.append("--worker-cls=paced_worker.PacedWorker")
    with _server(command, env, folder / "vllm.log") as twin:
        yield twin


@contextlib.contextmanager
def emulated(folder: Path, **environ: str) -> Iterator[Twin]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EMULATE_START_SECONDS": "0", **environ}
    command = [sys.executable, "-m", "trimtab.cli.main", "emulate", "serve", "m", *FLAGS]
    with _server(command, env, folder / "emulated.log") as twin:
        yield twin


@contextlib.contextmanager
def _server(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[Twin]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--port={port}"], stdout=output, stderr=subprocess.STDOUT, env=env, cwd=log.parent
        )
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"not ready: {log.read_text()[-3000:]}")
            with contextlib.suppress(OSError):  # it does not listen yet
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.2)
        yield Twin(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
