"""What the emulator costs: CPU seconds and memory of a start, CPU seconds of a server per 1000 streamed tokens.

    python benchmarks/emulator.py [OUT.json]

The load client runs in this process, so only the server's own CPU time (its process_cpu_seconds_total) is counted.
Simulation in virtual time is measured by benchmarks/simulate.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

STREAMS = 64
TOKENS_PER_STREAM = 250
SERVE = "import sys; from trimtab.cli.emulate import run; run(sys.argv[1:])"


async def cpu_seconds(session: aiohttp.ClientSession) -> float:
    """CPU time of the server so far."""
    async with session.get("/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("process_cpu_seconds_total"):
                return float(line.split()[1])
    raise RuntimeError("the server shows no process_cpu_seconds_total")


async def read_stream(session: aiohttp.ClientSession, index: int) -> int:
    """Bytes are counted, not parsed: the client should not be what is measured."""
    body = {
        "prompt": f"stream {index} " + "word " * 40,
        "max_tokens": TOKENS_PER_STREAM,
        "ignore_eos": True,
        "stream": True,
    }
    async with session.post("/v1/completions", json=body) as response:
        return sum([chunk.count(b"data: {") async for chunk in response.content.iter_any()])


async def wait_until_ready(session: aiohttp.ClientSession) -> None:
    for _ in range(1200):
        try:
            async with session.get("/health"):
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)
    raise RuntimeError("the server did not start")


@contextmanager
def server(speedup: float) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "EMULATE_START_SECONDS": "0", "EMULATE_SPEEDUP": str(speedup)}
    process = subprocess.Popen([sys.executable, "-c", SERVE, "m", "--host", "127.0.0.1", "--port", str(port)], env=env)
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait(10)


def measure_start() -> dict[str, float]:
    """Until /health answers, with the machine code in the cache; memory after one request."""
    with server(1.0) as (_, port):
        asyncio.run(ready(port))  # fills the cache
    started = time.perf_counter()
    with server(50.0) as (process, port):
        used = asyncio.run(ready(port))
        seconds = time.perf_counter() - started
        status = Path(f"/proc/{process.pid}/status").read_text()
    memory = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Rss")}
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(used, 2),
        "anonymous_mib": round(memory["RssAnon"] / 1024),
        "files_mib": round(memory["RssFile"] / 1024),
    }


async def ready(port: int) -> float:
    """CPU seconds of the server when it is ready."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        await wait_until_ready(session)
        used = await cpu_seconds(session)
        await read_stream(session, 0)
        return used


def measure_streaming(speedup: float) -> dict[str, float]:
    with server(speedup) as (_, port):
        tokens, wall, used = asyncio.run(load(port))
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / wall, 1),
        "cpu_seconds_per_1000_tokens": round(1000 * used / tokens, 4),
        "cpu_share_of_one_core": round(used / wall, 3),
    }


async def load(port: int) -> tuple[int, float, float]:
    """Tokens streamed, seconds they took, CPU seconds of the server."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        await wait_until_ready(session)
        before, started = await cpu_seconds(session), time.perf_counter()
        tokens = sum(await asyncio.gather(*(read_stream(session, index) for index in range(STREAMS))))
        wall = time.perf_counter() - started
        return tokens, wall, await cpu_seconds(session) - before


def main() -> None:
    figures = {
        "streaming_real_time": measure_streaming(1.0),
        "streaming_twice_as_fast": measure_streaming(2.0),
        "start": measure_start(),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
