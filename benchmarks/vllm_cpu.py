"""How well three runs of a real vLLM predict the others: 40 runs of vLLM 0.32 on two CPU cores, one load, 20 settings.

    python benchmarks/vllm_cpu.py FOLDER [--calibrate b320_s8_apc_c0,b160_s32_apc_c30,b320_s64_noapc_c0] [--triples 20]

FOLDER holds b<blocks>_s<max_num_seqs>_<apc|noapc>_c<cancel %>.json.gz: every request as its client saw it, /metrics
before and after. Step times are fitted from the clients' logs of the runs named, all others are predicted.

The machine was not equally fast in all runs. So rank correlations are given four times: as it is; with the slowness of
the run's steps taken from its first fifth of requests, for the rest; with it taken from the whole run's decodes; and
what a faultless model would reach that does not know it (the prediction that knows against the one that does not).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import RequestLog, Run, fit_step_times
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64
from trimtab.simulate.workload import Workload

CALIBRATE = "b320_s8_apc_c0,b160_s32_apc_c30,b320_s64_noapc_c0"
#: other work ran beside these: said so by whoever recorded them
KNOWN_DISTURBED = tuple(f"b160_s128_{cache}_c{cancel}" for cache in ("apc", "noapc") for cancel in (0, 30))
#: found here: their steps took 1.9 to 3.8 times as long as predicted, those of runs that did the same steps did not
FOUND_DISTURBED = tuple(f"{name}_noapc_c{cancel}" for name in ("b160_s64", "b320_s8") for cancel in (0, 30))
#: limits that some of the 20 settings keep and others do not
TTFT_LIMIT, TPOT_LIMIT = 1.0, 0.005
FIGURES = ("throughput", "goodput", "TTFT mean", "TTFT p50", "TTFT p90", "TTFT p99", "TPOT mean", "TPOT p50",
           "TPOT p90", "E2E mean", "E2E p90")  # fmt: skip
#: settings that are predicted to differ less are told apart by max_num_seqs: the smaller one
TIE = 0.01
ONE_SIDED_95 = 1.64
#: share of the requests, by arrival, that tell the machine's speed
EARLY = 0.2
#: fewer preemptions are no count to be within 20% of
COUNTABLE = 10
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Recorded:
    """One run. Times in seconds since it began, as its clients saw them; counters by the engine."""

    name: str
    config: EngineConfig
    load: Workload
    first: F64
    last: F64
    ok: Mask
    seconds: float
    steps: int
    preemptions: int
    prefix_hits: int

    @property
    def cancel(self) -> str:
        return self.name.rsplit("_c", 1)[1]


def recorded(path: Path) -> Recorded:
    name = path.name.removesuffix(".json.gz")
    with gzip.open(path) as file:
        return recorded_from(name, json.load(file))


def recorded_from(name: str, run: dict[str, Any]) -> Recorded:
    """The engine's settings are in the name; the others were the defaults: 2,048 tokens a batch, no asynchronous
    scheduling on a CPU. A client left by closing its connection after so many events."""
    blocks, seqs, cache, _ = name.split("_")
    rows = sorted(run["requests"], key=lambda r: float(r["arrival"]))
    column = {
        k: np.array([np.nan if r[k] is None else r[k] for r in rows]) for k in ("arrival", "first", "last", "end")
    }
    load = Workload.of(
        column["arrival"],
        [r["prompt_tokens"] for r in rows],
        [r["planned_output"] for r in rows],
        cancel_tokens=[r["cancel_at"] or 0 for r in rows],
        chunks=[(0,) if r["shared_prefix"] else () for r in rows],
        chunk_tokens=[256] * len(rows),
    )
    config = EngineConfig(
        int(blocks[1:]), int(seqs[1:]), 2048, 32, 2048, enable_prefix_caching=cache == "apc", async_scheduling=False
    )
    counted = run.get("counted") or {
        key: round(total(run["metrics_after"], metric) - total(run["metrics_before"], metric))
        for key, metric in (("steps", "vllm:iteration_tokens_total_count"), ("hits", "vllm:prefix_cache_hits_total"),
                            ("preemptions", "vllm:num_preemptions_total"))
    }  # fmt: skip
    ok = np.array([r["status"] == "ok" for r in rows])
    return Recorded(
        name, config, load, column["first"], column["last"], ok, float(np.nanmax(column["end"])), counted["steps"],
        counted["preemptions"], counted["hits"],
    )  # fmt: skip


def total(metrics: str, name: str) -> float:
    """Sum over all labels."""
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(name))


# --- fit and predict --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibrated:
    """`overhead`: seconds between client and engine in each first token."""

    times: StepTimes
    overhead: float


def calibrate(runs: Sequence[Recorded]) -> Calibrated:
    fitted = fit_step_times([Run(_log(r), r.config, r.ok) for r in runs], api=True)
    return Calibrated(fitted.times, fitted.api_seconds)


def _log(run: Recorded) -> RequestLog:
    return RequestLog(run.load, np.full(len(run.load), np.nan), run.first, run.last)


def slower(times: StepTimes, factor: float) -> StepTimes:
    return replace(times, **{f.name: getattr(times, f.name) * factor for f in fields(times) if f.name != "free_tokens"})


def slowness(run: Recorded, times: StepTimes, use: Mask | None = None) -> float:
    """By how much to slow the steps for the decodes of the requests in `use` (all) to take as long as they did."""
    chosen = run.ok if use is None else run.ok & use
    wanted = float((run.last - run.first)[chosen].sum())
    low, high = 0.3, 10.0
    for _ in range(16):
        middle = float(np.sqrt(low * high))
        outcome = simulate(run.load, run.config, slower(times, middle))
        short = float(np.nansum((outcome.last - outcome.first)[chosen])) < wanted
        low, high = (middle, high) if short else (low, middle)
    return float(np.sqrt(low * high))


def figures(run: Recorded, first: F64, last: F64, seconds: float, use: Mask | None = None) -> F64:
    """In the order of FIGURES; latencies in seconds of the requests (of `use`) whose clients stayed."""
    ok = run.ok if use is None else run.ok & use
    tokens = run.load.output[ok]
    ttft, e2e = (first - run.load.arrival)[ok], (last - run.load.arrival)[ok]
    tpot = (last - first)[ok] / np.maximum(tokens - 1, 1)
    good = (ttft <= TTFT_LIMIT) & (tpot <= TPOT_LIMIT)
    return np.array([
        tokens.sum() / seconds, tokens[good].sum() / seconds, ttft.mean(), *np.percentile(ttft, (50, 90, 99)),
        tpot.mean(), *np.percentile(tpot, (50, 90)), e2e.mean(), np.percentile(e2e, 90),
    ])  # fmt: skip


def measured(run: Recorded, use: Mask | None = None) -> F64:
    return figures(run, run.first, run.last, run.seconds, use)


def predicted(run: Recorded, times: StepTimes, overhead: float, use: Mask | None = None) -> tuple[F64, Outcome]:
    outcome = simulate(run.load, run.config, times)
    first, last = outcome.first + overhead, outcome.last + overhead
    return figures(run, first, last, outcome.counters.end_seconds + overhead, use), outcome


# --- judge ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictions:
    """Of all runs, by name: measured; predicted; with the run's slowness known; the same for the requests after the
    first fifth, which told the slowness; with all steps slowed by `margin`. `counts`: preemptions as it is, knowing."""

    runs: dict[str, Recorded]
    margin: float
    real: dict[str, F64] = field(default_factory=dict)
    ours: dict[str, F64] = field(default_factory=dict)
    knowing: dict[str, F64] = field(default_factory=dict)
    real_rest: dict[str, F64] = field(default_factory=dict)
    rest: dict[str, F64] = field(default_factory=dict)
    slowed: dict[str, F64] = field(default_factory=dict)
    slowness: dict[str, float] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)


def predict(runs: dict[str, Recorded], by: Calibrated, chosen: Sequence[str]) -> Predictions:
    scatter = float(np.std([np.log(slowness(runs[n], by.times)) for n in chosen], ddof=1))
    out = Predictions(runs, float(np.exp(ONE_SIDED_95 * scatter)))
    for name, run in runs.items():
        early = np.arange(len(run.load)) < EARLY * len(run.load)
        out.real[name], out.real_rest[name] = measured(run), measured(run, ~early)
        out.ours[name], plain = predicted(run, by.times, by.overhead)
        out.slowed[name] = predicted(run, slower(by.times, out.margin), by.overhead)[0]
        out.slowness[name] = slowness(run, by.times)
        out.knowing[name], known = predicted(run, slower(by.times, out.slowness[name]), by.overhead)
        out.rest[name] = predicted(run, slower(by.times, slowness(run, by.times, early)), by.overhead, ~early)[0]
        out.counts[name] = plain.counters.preemptions, known.counters.preemptions
    return out


def ranks(names: Iterable[str], a: dict[str, F64], b: dict[str, F64]) -> list[float]:
    """Spearman's correlation per figure."""
    chosen = list(names)
    return [float(spearmanr([a[n][k] for n in chosen], [b[n][k] for n in chosen])[0]) for k in range(len(FIGURES))]


def regret(names: Sequence[str], all_: Predictions, figure: int, tie: float) -> tuple[str, float]:
    """What is chosen among `names`, and the share of the measured best that is lost by it."""
    best = max(all_.ours[n][figure] for n in names)
    near = [n for n in names if all_.ours[n][figure] >= (1 - tie) * best]
    chosen = min(near, key=lambda n: (all_.runs[n].config.max_num_seqs, -all_.ours[n][figure]))
    return chosen, float(1 - all_.real[chosen][figure] / max(all_.real[n][figure] for n in names))


def false_safe(names: Sequence[str], real: dict[str, F64], bound: dict[str, F64]) -> tuple[int, int]:
    """(measured outside a limit but predicted within, measured outside): limits at each tenth of each latency."""
    wrong = outside = 0
    for k in range(2, len(FIGURES)):
        values = np.array([real[n][k] for n in names])
        for limit in np.percentile(values, range(10, 100, 10)):
            beyond = [n for n in names if real[n][k] > limit]
            outside += len(beyond)
            wrong += sum(bound[n][k] <= limit for n in beyond)
    return wrong, outside


def within(names: Sequence[str], all_: Predictions, which: int) -> tuple[int, list[str]]:
    """How many countable preemption counts are within 20%, and the others."""
    off = []
    counted = [n for n in names if max(all_.runs[n].preemptions, all_.counts[n][which]) >= COUNTABLE]
    for n in counted:
        real, ours = all_.runs[n].preemptions, all_.counts[n][which]
        if abs(ours - real) > 0.2 * real:
            off.append(f"{n} {ours} for {real}")
    return len(counted), off


def report(runs: dict[str, Recorded], by: Calibrated, chosen: Sequence[str]) -> None:
    all_ = predict(runs, by, chosen)
    print(by.times, f"overhead {by.overhead * 1e3:.1f} ms", sep="\n")
    print("slowness:", " ".join(f"{n} {v:.2f}" for n, v in sorted(all_.slowness.items(), key=lambda kv: kv[1])))
    hits = [n for n, r in runs.items() if r.prefix_hits != predicted(r, by.times, 0.0)[1].counters.prefix_cache_hits]
    print("prefix cache hits, tokens: equal in all runs" if not hits else f"prefix cache hits differ: {hits}")
    for title, left_out in (
        ("without the runs known as disturbed", KNOWN_DISTURBED),
        ("and without those found to be", KNOWN_DISTURBED + FOUND_DISTURBED),
    ):
        names = [n for n in runs if n not in left_out and n not in chosen]
        print(f"\n{title}: {len(names)} runs predicted")
        _print_ranks(all_, names)
        for which, how in ((0, "as it is"), (1, "slowness known")):
            counted, off = within(names, all_, which)
            print(
                f"  preemptions within 20%, {how}: {counted - len(off)} of {counted}; off: {', '.join(off) or 'none'}"
            )
        for bound, how in (
            (all_.ours, "as it is"),
            (all_.slowed, f"steps slowed by {all_.margin:.2f}, as the calibration runs scatter"),
            (all_.knowing, "slowness known"),
        ):
            wrong, outside = false_safe(names, all_.real, bound)
            print(f"  false safe, {how}: {wrong} of {outside} ({wrong / outside:.1%})")
        _print_regret(all_, [n for n in runs if n not in left_out])


def _print_ranks(all_: Predictions, names: Sequence[str]) -> None:
    columns = {
        "as it is": ranks(names, all_.real, all_.ours),
        "first fifth": ranks(names, all_.real_rest, all_.rest),
        "known": ranks(names, all_.real, all_.knowing),
        "faultless": ranks(names, all_.knowing, all_.ours),
    }
    print(f"  {'rank correlation':17}", *(f"{title:>12}" for title in columns))
    for k, figure in enumerate(FIGURES):
        print(f"  {figure:17}", *(f"{values[k]:12.3f}" for values in columns.values()))


def _print_regret(all_: Predictions, kept: Sequence[str]) -> None:
    """Choosing max_num_seqs and caching for given blocks and load."""
    for figure in (0, 1):
        for blocks, cancel in ((160, "0"), (160, "30"), (320, "0"), (320, "30")):
            names = [n for n in kept if all_.runs[n].config.num_gpu_blocks == blocks and all_.runs[n].cancel == cancel]
            (best, lost), (near, near_lost) = (regret(names, all_, figure, tie) for tie in (0.0, TIE))
            print(
                f"  regret, {FIGURES[figure]}, {blocks} blocks, {cancel}% leave: {lost:.1%} ({best}), "
                f"smallest of near ties {near_lost:.1%} ({near})"
            )


def triples(runs: dict[str, Recorded], count: int) -> None:
    """The same with calibration runs drawn by lot."""
    usable = [n for n in runs if n not in KNOWN_DISTURBED + FOUND_DISTURBED]
    chance, rows = random.Random(0), []
    for _ in range(count):
        chosen = chance.sample(usable, 3)
        by = calibrate([runs[n] for n in chosen])
        names = [n for n in usable if n not in chosen]
        real, ours = ({n: f(runs[n]) for n in names} for f in (measured, _ours(by)))
        rows.append(ranks(names, real, ours))
    low, middle, high = np.percentile(rows, (10, 50, 90), axis=0)
    print(f"\nrank correlation over {count} triples drawn by lot, 10%, median, 90%")
    for k, figure in enumerate(FIGURES):
        print(f"  {figure:17} {low[k]:.3f} {middle[k]:.3f} {high[k]:.3f}")


def _ours(by: Calibrated) -> Callable[[Recorded], F64]:
    return lambda run: predicted(run, by.times, by.overhead)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibrate", default=CALIBRATE, help="names of runs, separated by commas")
    parser.add_argument("--triples", type=int, default=0, help="also with so many calibrations drawn by lot")
    args = parser.parse_args()
    runs = {r.name: r for r in map(recorded, sorted(args.folder.glob("*.json.gz")))}
    chosen = args.calibrate.split(",")
    report(runs, calibrate([runs[n] for n in chosen]), chosen)
    if args.triples:
        triples(runs, args.triples)


if __name__ == "__main__":
    main()
