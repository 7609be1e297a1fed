"""Records two identical real vLLM engines under one load, for the judge: what equal arms look like.

    python benchmarks/vllm_aa.py OUT.jsonl.xz [--minutes 15] [--starts 3] [--streams 0.4]

Both engines have the same flags and stand behind the front door of `trimtab tune`, which gives each every second
request. The second one is started anew in the middle, `--starts` times in all, as a canary is: drained, ended, started.

Lines of OUT, JSON: the first is {"interval_seconds", "streams", "rate", "output_tokens", "stream_tokens_per_second",
"flags"}. Then, in order of time, {"t", "pod", "series": {index: [name, [[label, value], ...]]}} names series as they
appear, {"t", "pod", "values": {index: value}} is one scrape of one pod (unix seconds; only what changed since its
scrape before), and {"t", "event", "pod"} says what was done: ready, drain. A pod's name changes with each start.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import lzma
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import aiohttp
from vllm_local import command, environ, stream_tokens_per_second

from trimtab.observe.exposition import parse
from trimtab.observe.samples import PodRef, SeriesKey
from trimtab.plan.record import Desired
from trimtab.tune.argv import CommandLine
from trimtab.tune.frontdoor import FrontDoor
from trimtab.tune.load import LoadProcess
from trimtab.tune.local import LocalOptions, ProcessTarget

INTERVAL_SECONDS = 2.0
#: of a value: a tenth of a millisecond; more would only fill the file with noise
DIGITS = 4
OUTPUT_TOKENS = 150
LOAD = (
    "--duration=100000", "--prompt=100:0.3", f"--output={OUTPUT_TOKENS}:0.3", "--max-output-tokens=300",
    "--prompt-unit=char", "--model=tiny", "--max-in-flight=200", "--seed=3", "--natural-lengths=forced",
)  # fmt: skip


@dataclass
class Recording:
    """Writes lines; keeps what was written of each pod, so that a line holds only what changed."""

    file: TextIO
    series: dict[SeriesKey, int] = field(default_factory=dict)
    last: dict[str, dict[int, float]] = field(default_factory=dict)

    def line(self, **content: Any) -> None:
        self.file.write(json.dumps(content, separators=(",", ":")) + "\n")

    def scrape(self, t: float, pod: str, text: str) -> None:
        values = {k: round(v, DIGITS) for k, v in parse(text).values.items()}
        fresh = {k: len(self.series) + i for i, k in enumerate(k for k in values if k not in self.series)}
        if fresh:
            self.series |= fresh
            self.line(t=t, pod=pod, series={i: k for k, i in fresh.items()})
        before = self.last.setdefault(pod, {})
        changed = {self.series[k]: v for k, v in values.items() if before.get(self.series[k]) != v}
        before |= changed
        self.line(t=t, pod=pod, values=changed)


async def scrape(session: aiohttp.ClientSession, pod: PodRef, out: Recording) -> None:
    t = time.time()
    async with session.get(f"http://{pod.ip}:{pod.port}/metrics") as answer:
        out.scrape(round(t, 3), pod.name, await answer.text())


async def watch(target: ProcessTarget, out: Recording, until: float, sending: asyncio.Task[None]) -> None:
    """Scrape every pod that serves, until then. What was started anew gets a line when it is ready. LoadFailed where
    nothing is sent any more."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        while time.monotonic() < until:
            began = time.monotonic()
            if sending.done():
                sending.result()
            await target.look(time.time())
            pods = target.ready_refs()
            for pod in pods:
                if pod.name not in out.last:
                    out.line(t=round(time.time(), 3), event="ready", pod=pod.name)
            await asyncio.gather(*(scrape(session, p, out) for p in pods))
            target.drive(Desired.PROMOTE)  # goes on with a replacement under way
            await asyncio.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began)))


async def ready(target: ProcessTarget) -> None:
    while len(target.ready_refs()) < target.options.replicas:
        await target.look(time.time())
        await asyncio.sleep(0.5)


def anew(target: ProcessTarget, out: Recording) -> None:
    """The second replica is ended and started as a canary is, with the same settings."""
    second = target.replicas[-1]
    out.line(t=round(time.time(), 3), event="drain", pod=second.name)
    second.candidate = False


async def record(options: argparse.Namespace, folder: Path, out: Recording) -> None:
    line = CommandLine.read(command(options.blocks, *options.flag))
    door = FrontDoor("127.0.0.1", 0, seed=7)
    target = ProcessTarget(line, LocalOptions(2, 30.0, 30.0, folder, environ()), door)
    await door.start()
    await target.start()
    load: LoadProcess | None = None
    sending: asyncio.Task[None] | None = None
    try:
        await ready(target)
        target.begin(target.template)
        for replica in target.replicas:  # so that only one that is marked otherwise is started anew
            replica.candidate = True
        urls = [f"http://127.0.0.1:{r.port}" for r in target.replicas]
        speeds = [await asyncio.to_thread(stream_tokens_per_second, url) for url in urls]
        rate = options.streams * 2 * min(speeds) / OUTPUT_TOKENS
        print(f"one stream gets {' and '.join(f'{s:.0f}' for s in speeds)} tokens/s; {rate:.2f} requests/s", flush=True)
        flags = [w for w in line.argv(line.template, 0)[4:] if not w.startswith("--host")]  # 4: without paths
        out.line(
            interval_seconds=INTERVAL_SECONDS, streams=options.streams, rate=rate, output_tokens=OUTPUT_TOKENS,
            stream_tokens_per_second=speeds, flags=flags,
        )  # fmt: skip
        load = LoadProcess(door.url, [*LOAD, f"--rate={rate:.3f}"], folder, lambda: None)
        sending = asyncio.create_task(load.run())
        for start in range(options.starts):
            if start:
                anew(target, out)
            await watch(target, out, time.monotonic() + options.minutes * 60 / options.starts, sending)
            print(f"start {start + 1}: {[p.name for p in target.ready_refs()]}", flush=True)
    finally:
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await target.close()
        await door.close()
        if (folder / "records.jsonl").exists() and options.records is not None:
            options.records.write_bytes(gzip.compress((folder / "records.jsonl").read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--starts", type=int, default=3, help="of the second engine")
    parser.add_argument("--streams", type=float, default=0.4, help="offered load of one engine, in streams' worth")
    parser.add_argument("--blocks", type=int, default=160)
    parser.add_argument("--flag", action="append", default=[], help="a further flag of both engines: --flag=--x=1")
    parser.add_argument("--records", type=Path, help="also what the clients saw, gzip")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, lzma.open(options.out, "wt") as file:
        try:
            asyncio.run(record(options, Path(folder), Recording(file)))
        except BaseException:
            for log in Path(folder).glob("*.log"):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
