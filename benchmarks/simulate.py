"""How fast the simulator is, how much memory it takes, and how far its step times are off on runs of a real vLLM.

    python benchmarks/simulate.py speed TRACE...        # Azure .csv, ten times as dense; Mooncake .jsonl or .jsonl.gz
    python benchmarks/simulate.py memory [COUNT...]     # peak memory of a stream of so many requests, a process each
    python benchmarks/simulate.py groundtruth FOLDER... # see groundtruth.py

Processor seconds, one core, the best of several: other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from groundtruth import groundtruth

from trimtab.load.readers import read_azure, read_mooncake
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.stream import simulate_stream
from trimtab.simulate.workload import Workload

#: made up, only to have work to do
START = StepTimes(0.02, 0.00003, 0.0, 0.00005, 1e-8)
ROUNDS = 5
PART = 20_000
#: of a stream: names of shared beginnings live for about this many requests
NAMES = 50_000


def speed(trace: Path) -> None:
    """At 256 sequences. Azure arrivals are made ten times as dense, so that most of them are busy."""
    if trace.suffix == ".csv":
        load = Workload.from_requests(read_azure(trace))
        load, blocks, budget, longest = replace(load, arrival=load.arrival / 10), 28_000, 2048, 32_768
    else:
        # blocks for all that run, as a fleet would have; the trace's own density
        load, blocks, budget, longest = Workload.from_requests(read_mooncake(trace)), 400_000, 8192, 131_072
    print(
        f"{trace.name}: {len(load)} requests, {load.prompt.mean():,.0f} + {load.output.mean():,.0f} tokens on average"
    )
    for caching in (False, True):
        config = EngineConfig(blocks, 256, budget, max_model_len=longest, enable_prefix_caching=caching)
        begin = time.process_time()
        simulate(Workload.of([0.0], [32], [2], chunks=[[0]], chunk_tokens=[32]), config, START)
        built = time.process_time() - begin
        best = float("inf")
        for _ in range(ROUNDS):
            begin = time.process_time()
            outcome = simulate(load, config, START)
            best = min(best, time.process_time() - begin)
        c = outcome.counters
        print(
            f"  prefix caching {caching}: {len(load) / best:,.0f} requests/s, {c.steps / best:,.0f} steps/s, "
            f"{c.mean_running:.0f} running on average, {c.prefix_cache_hits / max(1, c.prefix_cache_queries):.0%} of "
            f"the prompts cached; first call {built:.1f} s"
        )


def parts(count: int) -> Iterator[Workload]:
    """A third of the prompts begins with one of the beginnings of its time, a tenth of the clients leaves."""
    rng = np.random.default_rng(1)
    begin = 0.0
    for first in range(0, count, PART):
        n = min(PART, count - first)
        arrival = begin + np.cumsum(rng.exponential(0.045, n))
        begin = float(arrival[-1])
        output = np.clip(rng.lognormal(4.9, 0.8, n), 1, 1500).astype(np.int32)
        name = first // NAMES * 200 + rng.integers(0, 200, n)
        shared = rng.random(n) < 1 / 3
        yield Workload.of(
            arrival,
            np.clip(rng.lognormal(6.0, 0.8, n), 1, 2500).astype(np.int32),
            output,
            cancel_tokens=np.where(rng.random(n) < 0.1, output // 2, 0),
            patience=np.full(n, 60.0),
            chunks=[(k,) if s else () for k, s in zip(name.tolist(), shared.tolist(), strict=True)],
            chunk_tokens=np.full(n, 256, np.int32),
        )


def one_stream(count: int) -> None:
    """In a process of its own: its peak memory is this stream's."""
    begin = time.process_time()
    figures = simulate_stream(parts(count), EngineConfig(28_000, 256, 2048), START)
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    c = figures.counters
    print(
        f"{count:>12,} requests: peak {peak:,.0f} MiB, {count / seconds:,.0f} requests/s with making them up, "
        f"{c.mean_running:.0f} running, {c.prefix_cache_hits / c.prefix_cache_queries:.0%} of the prompts cached, "
        f"{figures.endings}"
    )


def memory(counts: list[int]) -> None:
    for count in counts:
        subprocess.run([sys.executable, __file__, "stream", str(count)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory", "stream", "groundtruth"))
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    if args.what in ("memory", "stream"):
        counts = [int(text) for text in args.arguments] or [1_000_000, 10_000_000]
        memory(counts) if args.what == "memory" else one_stream(counts[0])
        return
    paths = [Path(text) for text in args.arguments]
    if not paths:
        parser.error("which files?")
    if args.what == "groundtruth":
        groundtruth(paths)
        return
    for path in paths:
        speed(path)


if __name__ == "__main__":
    main()
