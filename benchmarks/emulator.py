"""What the emulator costs: CPU seconds of a server per 1000 streamed tokens, and requests per second in virtual time.

    python benchmarks/emulator.py [OUT.json]

Ratios within one run: CPU seconds per modelled second, and virtual seconds per real second. The load client runs in
this process, so only the server's own CPU time (its process_cpu_seconds_total) is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from trimtab.emulate.contract import Prompt, SchedulerLimits
from trimtab.emulate.virtual import ClientRequest, simulate

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
    for _ in range(200):
        try:
            async with session.get("/health"):
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)
    raise RuntimeError("the server did not start")


def measure_streaming(speedup: float) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "EMULATE_START_SECONDS": "0", "EMULATE_SPEEDUP": str(speedup)}
    process = subprocess.Popen([sys.executable, "-c", SERVE, "m", "--host", "127.0.0.1", "--port", str(port)], env=env)
    try:
        tokens, wall, used = asyncio.run(load(port))
    finally:
        process.terminate()
        process.wait(10)
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


def measure_virtual(count: int = 1000) -> dict[str, float]:
    """A trace of `count` requests under KV pressure, best of three."""
    rng = random.Random(1)
    requests = [
        ClientRequest(
            str(index),
            index * 0.2,
            Prompt(max(16, int(rng.lognormvariate(5.0, 0.6)))),
            max(4, int(rng.lognormvariate(5.0, 0.8))),
            1000,
        )
        for index in range(count)
    ]
    limits = SchedulerLimits(max_num_seqs=64, num_gpu_blocks=400, block_size=32)
    best, run = float("inf"), None
    for _ in range(3):
        started = time.perf_counter()
        run = simulate(requests, limits)
        best = min(best, time.perf_counter() - started)
    assert run is not None
    return {
        "requests_per_second": round(count / best, 1),
        "tokens_per_second": round(run.counters.generation_tokens / best),
        "virtual_seconds_per_second": round(run.counters.end_seconds / best, 1),
        "preemptions": run.counters.preemptions,
    }


def main() -> None:
    figures = {
        "streaming_real_time": measure_streaming(1.0),
        "streaming_twice_as_fast": measure_streaming(2.0),
        "virtual_time": measure_virtual(),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
