"""What a switchback knows of drift: the baseline's second period against its first. Pure.

The candidate's windows are compared with the mean of both, so a steady drift cancels. A sudden change may lie at either
end of the candidate's period, where it looks like half of itself: the verdict's interval is widened by that half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from trimtab.judge.objective import Objective
from trimtab.judge.verdict import Kind, Verdict
from trimtab.judge.windows import Pair
from trimtab.observe.observation import Observation

_LATENCIES: Final = ("ttft", "tpot")
#: verdicts that no drift of the load explains: a limit that is the candidate's own, an engine that serves nothing
_ITS_OWN: Final = frozenset({"LimitBroken", "CanaryServedNothing", "MetricsMissing"})


def less_drift(verdict: Verdict, drift: Sequence[Pair], goal: Objective) -> Verdict:
    """The verdict, its interval wider by half of the drift; Inconclusive where that half explains it.

    drift: windows of the second period (as `canary`) beside those of the first. Without any, nothing is sure.
    """
    if verdict.reason in _ITS_OWN:
        return verdict
    goodput = _shift(drift, lambda o: o.goodput(goal.ttft_seconds, goal.tpot_seconds))
    if goodput is None:
        text = f"how much the load itself changed is not known; {verdict.message}"
        return replace(verdict, kind=Kind.INCONCLUSIVE, reason="MetricsMissing", message=text)
    half = abs(goodput) / 2
    low, high = (_log(g) for g in (verdict.gain_low, verdict.gain_high))
    wide = replace(
        verdict,
        gain_low=None if low is None else math.expm1(low - half),
        gain_high=None if high is None else math.expm1(high + half),
        numbers={**verdict.numbers, "drift": math.expm1(goodput)},
    )
    if verdict.kind not in (Kind.BETTER, Kind.WORSE) or _surely(verdict, low, high, half, drift):
        return wide
    text = f"the baseline itself moved by {math.expm1(goodput):+.1%} between its two periods; {verdict.message}"
    return replace(wide, kind=Kind.INCONCLUSIVE, reason="Drifted", message=text)


def _surely(verdict: Verdict, low: float | None, high: float | None, half: float, drift: Sequence[Pair]) -> bool:
    """Whether the verdict stands when half of the drift is taken from it."""
    if not verdict.reason.startswith("Latency"):
        better = low is not None and low > half
        return better if verdict.kind is Kind.BETTER else high is not None and high < -half
    sign = 1.0 if verdict.kind is Kind.BETTER else -1.0
    return any(sign * gain > moved for gain, moved in _latency_gains(verdict, drift))


def _latency_gains(verdict: Verdict, drift: Sequence[Pair]) -> list[tuple[float, float]]:
    """By latency: how much lower the candidate's median is (log), and half of what the baseline's mean moved."""
    out: list[tuple[float, float]] = []
    for name in _LATENCIES:
        ours, theirs = (verdict.numbers.get(f"{arm}_{name}_p50_seconds") for arm in ("canary", "control"))
        moved = _shift(drift, lambda o, n=name: _mean(o, n))  # type: ignore[misc]
        if ours and theirs and moved is not None:
            out.append((math.log(theirs / ours), abs(moved) / 2))
    return out


def _mean(seen: Observation, latency: str) -> float | None:
    histogram = seen.ttft_seconds if latency == "ttft" else seen.tpot_seconds
    return histogram.mean if histogram is not None else None


def _shift(drift: Sequence[Pair], measure: Callable[[Observation], float | None]) -> float | None:
    """Log ratio of the means, second period over first; None where either is unknown or nothing."""
    both = [(a, b) for p in drift if (a := measure(p.canary)) is not None and (b := measure(p.control)) is not None]
    after, before = (math.fsum(side) for side in zip(*both, strict=True)) if both else (0.0, 0.0)
    return math.log(after / before) if after > 0 and before > 0 else None


def _log(gain: float | None) -> float | None:
    return math.log1p(gain) if gain is not None and gain > -1 else None
