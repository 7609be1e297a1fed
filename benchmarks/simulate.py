"""How fast the simulator is, and how far its fitted step times are off on runs of a real vLLM.

    python benchmarks/simulate.py speed TRACE.csv       # Azure format
    python benchmarks/simulate.py groundtruth FOLDER    # requests.jsonl and meta.json of a run, see docs/simulator.md

Processor seconds, one core. Fitted on the first half of the requests by arrival, error on the second half.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from trimtab.load.readers import read_azure
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import RequestLog, fit_step_times
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64
from trimtab.simulate.workload import Workload

#: where a run does not say its block count: far more than it can use
PLENTY_OF_BLOCKS = 100_000
#: made up, only to have work to do and a place to start the fit from
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


def read_run(folder: Path) -> tuple[RequestLog, EngineConfig]:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda r: r["queued_ts"])
    meta = json.loads((folder / "meta.json").read_text())
    engine, cache = meta["engine_kwargs"], meta.get("kv_cache", {})
    begin = rows[0]["queued_ts"]
    column = {k: np.array([r[k] for r in rows]) for k in rows[0] if k != "request_id"}
    load = Workload.of(column["queued_ts"] - begin, column["input_toks"], column["output_toks"])
    log = RequestLog(load, *(column[k] - begin for k in ("scheduled_ts", "first_token_ts", "last_token_ts")))
    replicas = engine["data_parallel_size"]
    config = EngineConfig(
        cache.get("num_gpu_blocks", PLENTY_OF_BLOCKS),
        engine["max_num_seqs"] * replicas,
        engine["max_num_batched_tokens"] * replicas,
        cache.get("block_size", 16),
        max_model_len=engine["max_model_len"] or 40_960,
    )
    return log, config


def groundtruth(folder: Path) -> None:
    log, config = read_run(folder)
    n = len(log.load)
    first_half = np.arange(n) < n // 2
    begin = time.process_time()
    times = fit_step_times(log, config, first_half, START)
    print(f"{folder.name}: {times}, fitted in {time.process_time() - begin:.1f} s")
    outcome = simulate(log.load, config, times)
    rest = ~first_half
    gaps = np.maximum(log.load.output - 1, 1)
    real = {
        "TTFT": log.first - log.load.arrival,
        "TPOT": (log.last - log.first) / gaps,
        "latency": log.last - log.load.arrival,
    }
    ours = {"TTFT": outcome.ttft, "TPOT": outcome.tpot, "latency": outcome.e2e}
    for name, values in real.items():
        print(f"  {name:8}", " ".join(f"{k} {e:+.1%}" for k, e in errors(values[rest], ours[name][rest]).items()))


def errors(real: F64, ours: F64) -> dict[str, float]:
    """Relative errors of mean and quantiles."""
    out = {"mean": float(np.nanmean(ours) / real.mean() - 1)}
    for q in (50, 90, 99):
        out[f"p{q}"] = float(np.nanpercentile(ours, q) / np.percentile(real, q) - 1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "groundtruth"))
    parser.add_argument("paths", type=Path, nargs="+")
    args = parser.parse_args()
    for path in args.paths:
        (speed if args.what == "speed" else groundtruth)(path)


if __name__ == "__main__":
    main()
