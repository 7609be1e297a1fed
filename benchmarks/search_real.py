"""The search on a real vLLM: landscapes that were recorded, not simulated.

    python benchmarks/search_real.py FOLDER [--seeds 30] [--json FILE]     # as benchmarks/vllm_cpu.py takes it

Four targets: vLLM 0.32 on two CPU cores with 160 or 320 KV blocks, nobody or 30% of the clients leaving, found at
vLLM's own 128 sequences with prefix caching. Ten configurations of each were run once (8, 16, 32, 64 and 128 sequences,
caching on and off); what lies between is taken from its neighbours. So machine noise is part of the landscape, and some
runs are known to be disturbed: they look worse than they are, for all methods alike. The profile is calibrated from the
one run of the configuration that is found, as before a first trial.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from search_report import by_target, tables
from search_run import Run, search
from search_targets import Target
from search_trial import NOISES
from search_world import LATENCY_WEIGHTS, Truth, World, histogram
from vllm_cpu import Recorded, calibrate, recorded

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.search.space import Space
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.measure import log_ratio
from trimtab.simulate.profile import LoadModel, Profile, SharedPrefix
from trimtab.simulate.state import F64
from trimtab.simulate.summary import Limits

MEASURED: Final = (8, 16, 32, 64, 128)
METHODS: Final = ("ours, with a profile", "ours, no profile", "random", "grid", "TPE", "GP")
SPACE: Final = Space({"max_num_seqs": (MEASURED[0], MEASURED[-1])})
#: standard error of each step time from one run, as a share: half of what whole runs differ by (search_noise.py)
STEP_ERROR: Final = 0.07
PREFIX_TOKENS, PREFIX_SHARE = 256, 0.5


@dataclass(frozen=True)
class Recording(World):
    """A world whose metrics are those of a run: of the nearest one that was made."""

    runs: Mapping[tuple[int, bool], Recorded] = field(default_factory=dict)

    def observe(self, configuration: Configuration) -> Observation:
        seqs, cached = _of(configuration)
        nearest = min(MEASURED, key=lambda n: abs(math.log(n / seqs)))
        return observed(self.runs[nearest, cached])


def _of(c: Configuration) -> tuple[int, bool]:
    return c.integer("max_num_seqs") or MEASURED[-1], c.get("enable_prefix_caching") is not False


def observed(run: Recorded) -> Observation:
    arrival, inside = run.load.arrival, run.ok
    ttft, tpot = latencies(run)
    tokens = run.load.output.astype(float)
    running = float(np.nansum(run.last - run.first) / run.seconds)
    waiting = float(np.nansum(np.clip(run.first - arrival, 0, None)) / run.seconds)
    return Observation(
        1, run.seconds, requests=float(len(run.load)), finished=float(inside.sum()), running=running, waiting=waiting,
        preemptions=float(run.preemptions), useful_tokens=float(tokens[inside].sum()),
        prefix_queries=float(run.load.prompt.sum()) if run.config.enable_prefix_caching else 0.0,
        kv_capacity_tokens=float(run.config.usable_blocks * run.config.block_size),
        ttft_seconds=histogram(ttft[inside]), tpot_seconds=histogram(tpot[inside]),
        prompt_length=_lengths(run.load.prompt), output_length=_lengths(run.load.output),
    )  # fmt: skip


def _lengths(tokens: F64) -> Histogram:
    return histogram(np.asarray(tokens, dtype=float))


def latencies(run: Recorded) -> tuple[F64, F64]:
    """TTFT and TPOT per request, seconds, as its client saw them; nan without."""
    tokens = np.maximum(run.load.output - 1, 1)
    return run.first - run.load.arrival, np.where(run.load.output > 1, (run.last - run.first) / tokens, np.nan)


def score(run: Recorded, base: Recorded) -> float:
    """As a live trial is scored without an SLO: useful tokens/s, and the mean latencies by their weights."""

    def useful(r: Recorded) -> float:
        return float(r.load.output[r.ok].sum()) / r.seconds

    gains = []
    for ours, theirs in zip(latencies(run), latencies(base), strict=True):
        ratio = log_ratio(float(np.nanmean(ours[run.ok])), float(np.nanmean(theirs[base.ok])))
        gains.append(-min(1.5, max(-1.5, ratio)))
    return math.log(useful(run) / useful(base)) + sum(w * g for w, g in zip(LATENCY_WEIGHTS, gains, strict=True))


def recording(folder: Path, blocks: int, cancel: int) -> Recording:
    runs = {
        (seqs, cached): recorded(
            folder / f"b{blocks}_s{seqs}_{'apc' if cached else 'noapc'}_c{cancel}.json.gz"
        )
        for seqs in MEASURED
        for cached in (True, False)
    }  # fmt: skip
    base = runs[MEASURED[-1], True]
    target = Target(f"real: {blocks} blocks, {cancel}% leave", profile(base, cancel), Limits(), space=SPACE)
    truth: dict[str, Truth | None] = {}
    for c in [target.baseline, *SPACE.all(target.baseline)]:
        seqs, cached = _of(c)
        known = [score(runs[n, cached], base) for n in MEASURED]
        value = float(np.interp(math.log(seqs), np.log(MEASURED), known))
        truth[c.key()] = Truth(value, 1.0, 0.0, 0.0, math.inf)
    return Recording(target, truth, runs=runs)


def profile(run: Recorded, cancel: int) -> Profile:
    """As a calibration of the configuration that was found gives it."""
    times = calibrate([run]).times
    names = ("fixed", "per_prefill_token", "per_pair", "per_decode_seq", "per_kv_token", "per_prefill_step")
    load = LoadModel(
        requests_per_second=len(run.load) / float(run.load.arrival[-1]), prompt_tokens=_drawn(run.load.prompt),
        output_tokens=_drawn(run.load.output), cancel_share=cancel / 100,
        shared_prefix=SharedPrefix(share=PREFIX_SHARE, tokens=PREFIX_TOKENS, groups=1),
    )  # fmt: skip
    errors = {n: STEP_ERROR * getattr(times, n) for n in names}
    return Profile(
        engine=run.config, times=times, times_stderr=errors, workload=load, source=f"vLLM on CPU, {run.name}"
    )


def _drawn(tokens: F64) -> Lengths:
    shares = np.linspace(0.0, 1.0, 21)
    return Lengths(shares=tuple(shares.tolist()), tokens=tuple(np.quantile(tokens, shares).clip(1).tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs: list[Run] = []
    for blocks in (160, 320):
        for cancel in (0, 30):
            known = recording(options.folder, blocks, cancel)
            print(f"{known.target.name}: the best is {known.best:+.3f} (log) from what was found", file=sys.stderr)
            for method in METHODS:
                for seed in range(options.seeds):
                    runs += search(method, known, seed, 0, NOISES["seen"])
    print(tables(runs, METHODS))
    print(f"\n{by_target(runs, METHODS)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in runs]))


if __name__ == "__main__":
    main()
