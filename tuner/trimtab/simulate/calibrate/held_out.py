"""Figures of the part that was not fitted: measured beside predicted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.errors import InputError
from trimtab.observe.observation import Histogram, merge
from trimtab.simulate.calibrate.metrics_fit import MetricsRun, members
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.profile import HeldOut
from trimtab.simulate.state import F64

#: mean TPOT this far off on the held-out part: the settings or the load are not what was assumed
MOST_ERROR: Final = 0.3
_QUANTILES: Final = (0.5, 0.9)


def of_metrics(run: MetricsRun, outcomes: Sequence[Outcome], api_seconds: float) -> dict[str, HeldOut]:
    """Means, quantiles (both from the same buckets), rate and preemptions of the segments after the fitted ones."""
    period, first = run.period, run.fitted
    segments = period.segments[first:]
    since, until = period.edges[first], period.edges[-1]
    mine = [np.logical_or.reduce([members(period, o, k) for k in range(first, len(period.segments))]) for o in outcomes]
    begun = [(o.first >= since) & (o.first < until) for o in outcomes]
    found: dict[str, HeldOut] = {}
    for name, histograms, values in (
        ("ttft", [s.ttft_seconds for s in segments], _chosen([o.ttft + api_seconds for o in outcomes], begun)),
        ("e2e", [s.e2e_seconds for s in segments], _chosen([o.e2e + api_seconds for o in outcomes], mine)),
        ("queue", [s.queue_seconds for s in segments], _chosen([o.scheduled - o.load.arrival for o in outcomes], mine)),
        ("tpot", [s.tpot_seconds for s in segments], _chosen([o.tpot for o in outcomes], mine)),
    ):
        found |= _compared(name, merge(histograms), values)
    seconds = sum(s.window_seconds for s in segments)
    useful = [s.useful_tokens for s in segments]
    if all(v is not None for v in useful):
        tokens = float(np.mean([o.tokens[m].sum() for o, m in zip(outcomes, mine, strict=True)]))
        rate = sum(v for v in useful if v is not None) / seconds
        found["useful_tokens_per_second"] = HeldOut(measured=rate, predicted=tokens / seconds)
    preempted = [s.preemptions for s in segments]
    if all(v is not None for v in preempted):
        count = float(np.mean([o.preemptions[m].sum() for o, m in zip(outcomes, mine, strict=True)]))
        found["preemptions"] = HeldOut(measured=sum(v for v in preempted if v is not None), predicted=count)
    return found


def of_log(measured: Mapping[str, F64], predicted: Mapping[str, F64]) -> dict[str, HeldOut]:
    """Mean, p50, p90 and p99 of each figure; nan: did not happen."""
    found = {}
    for name, values in measured.items():
        both = ~np.isnan(values) & ~np.isnan(predicted[name])
        real, ours = values[both], predicted[name][both]
        if not len(real):
            continue
        found[f"{name}_mean_seconds"] = HeldOut(measured=float(real.mean()), predicted=float(ours.mean()))
        for q in (50, 90, 99):
            pair = HeldOut(measured=float(np.percentile(real, q)), predicted=float(np.percentile(ours, q)))
            found[f"{name}_p{q}_seconds"] = pair
    return found


def require_plausible(heldout: Mapping[str, HeldOut]) -> None:
    """InputError where a fit contradicts the part it has not seen so much that its predictions are worth nothing."""
    tpot = heldout.get("tpot_mean_seconds")
    if tpot is not None and abs(tpot.error) > MOST_ERROR:
        problem = (
            f"time per token on the held-out part is {tpot.measured:.4g} s, and {tpot.predicted:.4g} s "
            "by what fits the rest"
        )
        fix = "Check that these are the engine's settings, or take a range in which nothing else used the machine."
        raise InputError("--set", problem, fix)


def _chosen(values: Sequence[F64], masks: Sequence[npt.NDArray[np.bool_]]) -> F64:
    every = np.concatenate([v[m] for v, m in zip(values, masks, strict=True)])
    return np.asarray(every[~np.isnan(every)], dtype=np.float64)


def _compared(name: str, real: Histogram | None, ours: F64) -> dict[str, HeldOut]:
    if real is None or real.mean is None or not len(ours):
        return {}
    counts = tuple(float((ours <= bound).sum()) for bound in real.bounds)
    same = Histogram(real.bounds, counts, float(ours.sum()))
    found = {f"{name}_mean_seconds": HeldOut(measured=real.mean, predicted=float(ours.mean()))}
    for q in _QUANTILES:
        measured, predicted = real.quantile(q), same.quantile(q)
        if measured is not None and predicted is not None:
            found[f"{name}_p{round(100 * q)}_seconds"] = HeldOut(measured=measured, predicted=predicted)
    return found
