"""An Outcome in figures that configurations are compared by, and many configurations over one load on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.outcome import Counters, Outcome
from trimtab.simulate.parallel import in_order
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import CANCELLED, ENDINGS, F64
from trimtab.simulate.workload import Workload


@dataclass(frozen=True)
class Limits:
    """A request within both is good; seconds, inf: no limit. TPOT is the mean over the tokens of one request."""

    ttft_seconds: float = float("inf")
    tpot_seconds: float = float("inf")


@dataclass(frozen=True)
class Quantiles:
    """Seconds; None without samples."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class Figures:
    """One configuration under one load. Latencies are of requests that ended normally; tokens/s are over the whole run.

    `slo_attainment`: share within the limits of the requests that did not leave by themselves.
    `useful_token_ratio`: tokens of requests that ended normally / sum of max_tokens. `wasted_tokens`: generated for
    clients that had left or left later.
    """

    config: EngineConfig
    endings: dict[str, int]
    goodput_tokens_per_second: float
    slo_attainment: float | None
    useful_token_ratio: float | None
    wasted_tokens: int
    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    counters: Counters


def summarise(outcome: Outcome, config: EngineConfig, limits: Limits) -> Figures:
    ok, tokens = outcome.ok, outcome.tokens.astype(np.int64)
    in_time = ~(outcome.tpot > limits.tpot_seconds)  # nan: one token, no gap to be late
    good = ok & (outcome.ttft <= limits.ttft_seconds) & in_time
    seconds = outcome.counters.end_seconds - (float(outcome.load.arrival[0]) if len(ok) else 0.0)
    names, counts = np.unique(outcome.ending, return_counts=True)
    judged = int((outcome.ending != CANCELLED).sum())
    useful, reserved = int(tokens[ok].sum()), int(outcome.load.max_tokens.sum(dtype=np.int64))
    return Figures(
        config,
        {ENDINGS[name]: int(count) for name, count in zip(names, counts, strict=True)},
        float(tokens[good].sum() / seconds) if seconds > 0 else 0.0,
        float(good.sum() / judged) if judged else None,
        useful / reserved if reserved else None,
        outcome.counters.generation_tokens - useful,
        _quantiles(outcome.ttft[ok]),
        _quantiles(outcome.tpot[ok]),
        _quantiles(outcome.e2e[ok]),
        outcome.counters,
    )


def _quantiles(values: F64) -> Quantiles:
    kept = values[~np.isnan(values)]
    if not len(kept):
        return Quantiles(None, None, None, None)
    return Quantiles(float(kept.mean()), *(float(v) for v in np.percentile(kept, (50, 90, 99))))


@dataclass(frozen=True)
class Study:
    """One load and what all configurations share."""

    load: Workload
    times: StepTimes
    limits: Limits

    def figures(self, config: EngineConfig) -> Figures:
        return summarise(simulate(self.load, config, self.times), config, self.limits)


def sweep(
    study: Study,
    configs: Sequence[EngineConfig],
    *,
    processes: int = 1,
    on_result: Callable[[], None] = lambda: None,
) -> list[Figures]:
    """In the order of `configs`, the same for any number of `processes` (threads). `on_result` is called after each."""
    results = []
    for figures in in_order(study.figures, configs, processes):
        results.append(figures)
        on_result()
    return results
