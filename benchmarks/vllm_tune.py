"""A storm on a real vLLM: does `trimtab tune` find what an exhaustive search over max_num_seqs finds, and at what cost?

    python benchmarks/vllm_tune.py OUT.json [--caching on] [--grid 4,8,...] [--seconds 35] [--only PHASE] [--show]

64 clients, each sends its next request when its last one ended, and a KV cache of 200 blocks x 32 tokens. One engine at
a time. In one run on one machine:

grid    every max_num_seqs, one start each: useful tokens/s after a warm-up
tune    `trimtab tune` on one engine (switchback) from vLLM's own default of 128, or `--start`, with the same clients
again   the best static setting, what tune found and its start, in turns: the machine is not equally fast all the time

OUT holds everything; `--show` prints the tables, and beside them what random search with as many trials would have
found, exactly, by counting over the grid.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from vllm_local import command, environ

from trimtab.observe.mapping import fleet
from trimtab.observe.observation import Observation
from trimtab.observe.scrape import ScrapeSource
from trimtab.search.control import random_control
from trimtab.tune.argv import CommandLine
from trimtab.tune.frontdoor import FrontDoor
from trimtab.tune.load import LoadProcess
from trimtab.tune.local import LocalOptions, ProcessTarget

BLOCKS, CLIENTS = 200, 64
GRID = (8, 16, 24, 32, 48, 128)
WARMUP_SECONDS = 12.0
#: tokens per event of a stream: one by one, API server and clients need more CPU than the engine, and hide its speed
STREAM_INTERVAL = 16
#: as benchmarks/storm_traffic.py draws them
LOAD = (
    f"--clients={CLIENTS}", "--rate=20", "--duration=1000", "--prompt=170:0.5", "--output=112:1.15",
    "--max-output-tokens=1000", "--prompt-unit=char", "--model=tiny", "--natural-lengths=forced", "--drain=0",
)  # fmt: skip
Json = dict[str, Any]


def engine_command(caching: bool, *settings: str) -> list[str]:
    prefixes = "--enable-prefix-caching" if caching else "--no-enable-prefix-caching"
    return command(BLOCKS, f"--stream-interval={STREAM_INTERVAL}", prefixes, *settings)


def figures(o: Observation) -> Json:
    """Nobody leaves, so every generated token is useful; tokens computed again are in no counter of them."""
    ttft, tpot = o.ttft_seconds, o.tpot_seconds
    return {
        "useful_tokens_per_second": o.generated_tokens_per_second,
        "finished": o.finished,
        "preemptions_per_second": o.preemptions_per_second,
        "ttft_p50_seconds": ttft.quantile(0.5) if ttft else None,
        "ttft_p99_seconds": ttft.quantile(0.99) if ttft else None,
        "tpot_p50_seconds": tpot.quantile(0.5) if tpot else None,
        "tpot_p99_seconds": tpot.quantile(0.99) if tpot else None,
        "running": o.running,
        "waiting": o.waiting,
        "kv_usage": o.kv_usage,
    }


async def measure(setting: Sequence[str], options: argparse.Namespace, seed: int) -> Json:
    """One engine from its start to its end."""
    line = CommandLine.read(engine_command(options.caching == "on", *setting))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder, door = Path(name), FrontDoor("127.0.0.1", 0)
        target = ProcessTarget(line, LocalOptions(1, 5.0, 30.0, folder, environ()), door)
        source = ScrapeSource(1.0)
        sending: asyncio.Task[None] | None = None
        await door.start()
        await target.start()
        try:
            while not target.ready_refs():
                await target.look(time.time())
                await asyncio.sleep(0.2)
            started = time.monotonic() - began
            load = LoadProcess(door.url, [*LOAD, f"--seed={seed}"], folder, lambda: None)
            sending = asyncio.create_task(load.run())
            await asyncio.sleep(WARMUP_SECONDS / 3)
            refs = target.ready_refs()
            source.watch(refs)
            await asyncio.sleep(WARMUP_SECONDS * 2 / 3)
            since = time.time()
            await asyncio.wait([sending], timeout=options.seconds)
            if sending.done():
                sending.result()
            now = time.time()
            seen = fleet(source.fetch(refs, since, now, 1.0), [r.name for r in refs], since, now)
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            source.close()
            await target.close()
            await door.close()
    assert seen is not None
    return {**figures(seen), "start_seconds": started, "minutes": (time.monotonic() - began) / 60}


def tune(options: argparse.Namespace) -> Json:
    """As a person would run it."""
    folder = options.out.with_suffix(".tune")
    words = [
        sys.executable, "-m", "trimtab.cli.main", "tune", "--replicas", "1", "--state", str(folder / "tune.json"),
        "--json", str(folder / "result.json"), "--report", str(folder / "report.html"),
        "--load", shlex.join(LOAD), "--search", f"max_num_seqs={min(GRID)}:{max(GRID)}", "--prefix-caching", "keep",
        *shlex.split(options.tune_options), "--",
        *engine_command(options.caching == "on", f"--max-num-seqs={options.start}"),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    subprocess.run(words, env=environ(), check=True)
    result: Json = json.loads((folder / "result.json").read_text())
    return {"result": result, "start": options.start, "minutes": (time.monotonic() - began) / 60}


def setting_of(result: Json, start: int) -> list[str]:
    """What tune changed, as flags; its start where it found nothing better."""
    promoted = [t for t in result["trials"] if t["phase"] == "Promoted"]
    seqs = promoted[-1]["configuration"]["max_num_seqs"] if promoted else start
    return [f"--max-num-seqs={seqs}"]


def show(found: Json) -> None:
    console = Console(width=160)
    grid = {int(n): r for n, r in found.get("grid", {}).items()}
    names = (
        "max_num_seqs",
        "useful tok/s",
        "preempt/s",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50 ms",
        "KV",
        "running",
        "waiting",
    )
    table = Table(*names)
    for seqs, r in sorted(grid.items()):
        table.add_row(
            str(seqs), f"{r['useful_tokens_per_second']:.0f}", f"{r['preemptions_per_second']:.2f}",
            f"{r['ttft_p50_seconds']:.2f}", f"{r['ttft_p99_seconds']:.2f}", f"{1e3 * r['tpot_p50_seconds']:.1f}",
            f"{r['kv_usage']:.2f}", f"{r['running']:.1f}", f"{r['waiting']:.1f}",
        )  # fmt: skip
    console.print(table)
    if grid:
        minutes = sum(r["minutes"] for r in grid.values())
        console.print(f"exhaustive search: {len(grid)} starts, {minutes:.1f} minutes")
    if "tune" in found:
        result = found["tune"]["result"]
        trials = result["trials"]
        for t in trials:
            verdict = t["verdict"] or {}
            console.print(
                f"trial {t['number']}: {t['configuration']} {t['phase']} {verdict.get('kind')} {verdict.get('reason')} "
                f"gain {verdict.get('gain')} restarts {t['restarts']}"
            )
        restarts = sum(t["restarts"] for t in trials)
        tried = sum(t["verdict"] is not None for t in trials)
        console.print(f"tune: {tried} trials, {restarts} restarts, {found['tune']['minutes']:.1f} minutes")
        if grid and tried:
            begun = found["tune"]["start"]
            values = {n: r["useful_tokens_per_second"] for n, r in grid.items() if n != begun}
            start = grid[begun]["useful_tokens_per_second"] if begun in grid else None
            console.print(f"random search, as many trials: {random_control(list(values.values()), tried, start)}")
    again: dict[str, list[float]] = {}
    for name, rows in found.get("again", {}).items():
        again[name] = [r["useful_tokens_per_second"] for r in rows]
    for name, speeds in again.items():
        each = " ".join(f"{s:.0f}" for s in speeds)
        console.print(f"again, {name}: median {statistics.median(speeds):.0f} useful tokens/s ({each})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--grid", type=lambda text: tuple(map(int, text.split(","))), default=GRID)
    parser.add_argument("--start", type=int, default=128, help="max_num_seqs that tune begins with")
    parser.add_argument("--caching", choices=("on", "off"), default="off", help="prefix caching of every engine")
    parser.add_argument("--seconds", type=float, default=35.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=2, help="of measuring again")
    parser.add_argument("--only", action="append", choices=("grid", "tune", "again"), help="default: all")
    parser.add_argument("--tune-options", default="", help="further options of trimtab tune, in one text")
    parser.add_argument("--show", action="store_true", help="print OUT, measure nothing")
    options = parser.parse_args()
    found: Json = json.loads(options.out.read_text()) if options.out.exists() else {}

    def keep() -> None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    steps = () if options.show else options.only or ("grid", "tune", "again")
    if "grid" in steps:
        for seqs in options.grid:
            run = asyncio.run(measure([f"--max-num-seqs={seqs}"], options, seed=1))
            found.setdefault("grid", {})[str(seqs)] = run
            print(f"max_num_seqs {seqs}: {run['useful_tokens_per_second']:.0f} useful tokens/s", flush=True)
            keep()
    if "tune" in steps:
        found["tune"] = tune(options)
        keep()
    if "again" in steps:
        best = max(found["grid"], key=lambda n: found["grid"][n]["useful_tokens_per_second"])
        tuned = setting_of(found["tune"]["result"], options.start)
        chosen = {
            f"best static ({best})": [f"--max-num-seqs={best}"],
            f"tuned ({tuned[0]})": tuned,
            f"start ({options.start})": [f"--max-num-seqs={options.start}"],
        }
        for number in range(options.rounds):
            names = list(chosen)
            for name in names if number % 2 == 0 else reversed(names):
                run = asyncio.run(measure(chosen[name], options, seed=2 + number))
                found.setdefault("again", {}).setdefault(name, []).append(run)
                print(f"again {number}, {name}: {run['useful_tokens_per_second']:.0f} useful tokens/s", flush=True)
                keep()
    show(found)


if __name__ == "__main__":
    main()
