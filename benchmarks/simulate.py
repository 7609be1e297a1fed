"""How fast the simulator is, and how far its fitted step times are off on runs of a real vLLM.

    python benchmarks/simulate.py speed TRACE.csv       # Azure format
    python benchmarks/simulate.py groundtruth FOLDER... # see groundtruth.py

Processor seconds, one core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from groundtruth import groundtruth

from trimtab.load.readers import read_azure
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

#: made up, only to have work to do
START = StepTimes(0.02, 0.00003, 0.0, 0.00005, 1e-8)


def speed(trace: Path) -> None:
    """Azure arrivals ten times as dense, so that 256 sequences are busy."""
    load = Workload.from_requests(read_azure(trace))
    load = replace(load, arrival=load.arrival / 10)
    for caching in (False, True):
        config = EngineConfig(28_000, 256, max_model_len=32_768, enable_prefix_caching=caching)
        begin = time.process_time()
        simulate(Workload.of([0.0], [8], [2]), config, START)
        built = time.process_time() - begin
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            outcome = simulate(load, config, START)
            best = min(best, time.process_time() - begin)
        c = outcome.counters
        print(
            f"prefix caching {caching}: {len(load) / best:,.0f} requests/s, {c.steps / best:,.0f} steps/s, "
            f"{c.mean_running:.0f} running on average; first call {built:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "groundtruth"))
    parser.add_argument("paths", type=Path, nargs="+")
    args = parser.parse_args()
    if args.what == "groundtruth":
        groundtruth(args.paths)
        return
    for path in args.paths:
        speed(path)


if __name__ == "__main__":
    main()
