"""What is compared, window by window: goodput, SLO attainment, latencies. From pairs of windows to `Series`.

Which one decides. A saturated target (requests wait) shows a better configuration as more goodput. One that is not
saturated serves what arrives, however good it is: its goodput is the arrivals' noise, so there the share of requests
inside the SLO decides, and without an SLO, or where both arms always meet it, latency.

Less noise. Useful tokens are counted when a request ends, in lumps that say little about a window's speed. Generated
tokens are counted step by step. Over the whole measurement the two differ by what was wasted, and by what is in flight
at its ends, so a window's goodput is its generated tokens times the arm's share of useful ones, unless so much is
wasted that the share is noise itself. What is in flight at the ends makes that share uncertain: `Series.edge_sd`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trimtab.judge.objective import Objective
from trimtab.judge.windows import Pair
from trimtab.observe.observation import Histogram, Observation, merge

#: up to this share of wasted tokens a window's goodput comes from its generated tokens
MOST_WASTE: Final = 0.05
#: requests waiting per pod, averaged over time, from which a target counts as saturated
WAITING: Final = 0.5
#: share of requests inside the SLO below which goodput tells the arms no longer apart
_HARDLY_MET: Final = 0.1
#: the slowest tenth of both arms' requests: with 60 requests per window its size varies by 40%, that of 1% by 130%
TAIL: Final = 0.9


@dataclass(frozen=True)
class Series:
    """Differences canary - control per window, and the same between arms that are equal.

    before: of the canary's pod, before the trial. controls: per control pod, from the mean of all control pods, in the
    same windows as `values`; empty where they are not told apart. edge_sd: of the mean of `values`, from what was in
    flight at the ends; it is in no window's scatter.
    """

    values: list[float]
    before: list[float]
    controls: list[list[float]]
    edge_sd: float = 0.0

    def equal(self) -> list[list[float]]:
        """Independent series with the noise of `values`: before the trial, and contrasts of control pods.

        Contrast j, pod j + 1 against the mean of those before it, has (1 + 1 / j) times the noise of one pod, `values`
        have (1 + 1 / pods).
        """
        pods = len(self.controls)
        out = [self.before] if self.before else []
        for j in range(1, pods):
            scale = math.sqrt((1 + 1 / pods) / (1 + 1 / j))
            means = [math.fsum(row) / j for row in zip(*self.controls[:j], strict=True)]
            out.append([scale * (a - b) for a, b in zip(self.controls[j], means, strict=True)])
        return out


Value = Callable[[Observation], float | None]


def saturated(windows: Sequence[Pair]) -> bool | None:
    """Whether requests wait in either arm, on the average of the windows; None where the queue is unknown."""
    means = []
    for arm in ("canary", "control"):
        known = [w for p in windows if (w := getattr(p, arm).waiting) is not None]
        if not known:
            return None
        means.append(math.fsum(known) / len(known))
    return max(means) >= WAITING


def all_late(totals: Sequence[Observation], objective: Objective) -> bool:
    """In a queue without end all requests are late, whatever the settings: then goodput is 0 beside 0, and latency
    alone would promote whoever serves fewer requests at a time. There useful tokens/s decide."""
    met = [o.attainment(objective.ttft_seconds, objective.tpot_seconds) for o in totals]
    return all(m is not None and m < _HARDLY_MET for m in met)


def goodput(windows: Sequence[Pair], before: Sequence[Pair], objective: Objective) -> Series | None:
    """Differences over the mean goodput of both arms and all windows: -2 to 2 on average; None when unknown.

    Antisymmetric in the arms, and no window can weigh more than its tokens. Half a request's tokens is added to the
    scale, so that two arms without goodput are equal, not undefined.
    """
    finished = math.fsum((p.canary.finished or 0) + (p.control.finished or 0) for p in windows)
    useful = math.fsum((p.canary.useful_tokens or 0) + (p.control.useful_tokens or 0) for p in windows)
    seconds = math.fsum(p.canary.window_seconds for p in windows)
    if finished <= 0 or seconds <= 0:
        return None
    half_request = 0.5 * useful / finished * len(windows) / seconds

    def value(share: float | None) -> Value:
        return lambda o: _goodput(o, objective, share)

    shares = [_useful_share([getattr(p, arm) for p in windows]) for arm in ("canary", "control")]
    smooth = all(s is not None and 1 - MOST_WASTE <= s <= 1 + MOST_WASTE for s in shares)
    canary, control = (value(s if smooth else None) for s in shares)
    found = _series(windows, before, canary, control, half_request)
    if found is None or not smooth:
        return found
    edges = (
        _edge([getattr(p, arm) for p in windows], s or 1.0)
        for arm, s in zip(("canary", "control"), shares, strict=True)
    )
    return replace(found, edge_sd=math.hypot(*edges))


def attainment(windows: Sequence[Pair], before: Sequence[Pair], objective: Objective) -> Series | None:
    """Of the share of requests inside the SLO, over the mean of both arms: the goodput per arriving request."""
    if objective.ttft_seconds is None and objective.tpot_seconds is None:
        return None

    def value(o: Observation) -> float | None:
        return o.attainment(objective.ttft_seconds, objective.tpot_seconds)

    return _series(windows, before, value, value, 1e-9)


def latency(windows: Sequence[Pair], before: Sequence[Pair], name: str) -> Series | None:
    """Log ratios of mean latencies: sum / count is exact where quantiles are as coarse as the buckets."""

    def value(o: Observation) -> float | None:
        histogram: Histogram | None = getattr(o, name)
        mean = histogram.mean if histogram is not None else None
        return math.log(mean) if mean is not None and 0 < mean < math.inf else None

    return _differences(windows, before, value, value, 1.0)


def tail(windows: Sequence[Pair], before: Sequence[Pair], name: str) -> tuple[Series, float] | None:
    """Of the share of requests slower than a limit, over its mean, and the limit in seconds: the bucket edge next to
    both arms' p90. An edge, because inside a bucket nothing is known."""
    whole = merge([h for p in windows for o in (p.canary, p.control) if (h := getattr(o, name)) is not None])
    middle = whole.quantile(TAIL) if whole is not None else None
    if whole is None or middle is None or middle <= 0:
        return None
    edges = [b for b in whole.bounds if 0 < b < math.inf]
    limit = min(edges, key=lambda b: abs(math.log(b / middle)), default=None)
    if limit is None:
        return None

    def value(o: Observation) -> float | None:
        histogram: Histogram | None = getattr(o, name)
        share = histogram.share_below(limit) if histogram is not None else None
        return None if share is None else 1 - share

    found = _series(windows, before, value, value, 1e-9)
    return None if found is None else (found, limit)


def _goodput(o: Observation, objective: Objective, useful_share: float | None) -> float | None:
    if useful_share is None or o.generated_tokens is None or not o.finished:
        return _finite(o.goodput(objective.ttft_seconds, objective.tpot_seconds))
    share = o.attainment(objective.ttft_seconds, objective.tpot_seconds)
    rate = o.generated_tokens_per_second
    return None if share is None or rate is None else _finite(rate * useful_share * share / max(1, o.pods))


def _useful_share(arm: Sequence[Observation]) -> float | None:
    """useful / generated tokens of an arm over all windows."""
    if any(o.generated_tokens is None or o.useful_tokens is None for o in arm):
        return None
    generated = math.fsum(o.generated_tokens or 0 for o in arm)
    return math.fsum(o.useful_tokens or 0 for o in arm) / generated if generated > 0 else None


def _edge(arm: Sequence[Observation], useful_share: float) -> float:
    """Standard deviation of an arm's useful / generated tokens, relative to it: a window's useful tokens differ from
    their due by what is in flight at its begin less at its end, so their scatter is that of two ends, as is the sum's.
    """
    rest = [(o.useful_tokens or 0) - useful_share * (o.generated_tokens or 0) for o in arm]
    total = math.fsum(o.useful_tokens or 0 for o in arm)
    return math.sqrt(math.fsum(r * r for r in rest) / max(1, len(rest) - 1)) / total if total > 0 else 0.0


def _series(
    windows: Sequence[Pair], before: Sequence[Pair], canary: Value, control: Value, least: float
) -> Series | None:
    """Differences as shares of the mean of both arms; `least` is added to the scale."""
    known = [v for p in windows for v in (canary(p.canary), control(p.control)) if v is not None]
    if not known:
        return None
    scale = math.fsum(known) / len(known) + least
    return _differences(windows, before, canary, control, scale)


def _differences(
    windows: Sequence[Pair], before: Sequence[Pair], canary: Value, control: Value, scale: float
) -> Series | None:
    """Before the trial all pods have the control's settings, and are read like it."""
    values: list[float] = []
    rows: list[list[float] | None] = []
    for pair in windows:
        ours, theirs = canary(pair.canary), control(pair.control)
        if ours is None or theirs is None:
            continue
        values.append((ours - theirs) / scale)
        rows.append(_row([control(o) for o in pair.controls], scale))
    arms = [(control(p.canary), control(p.control)) for p in before]
    earlier = [(a - b) / scale for a, b in arms if a is not None and b is not None]
    pods = len(rows[0]) if rows and rows[0] is not None else 0
    told_apart = pods > 1 and all(r is not None and len(r) == pods for r in rows)
    controls = [list(c) for c in zip(*(r for r in rows if r is not None), strict=True)] if told_apart else []
    return Series(values, earlier, controls) if values else None


def _row(values: Sequence[float | None], scale: float) -> list[float] | None:
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    mean = math.fsum(known) / len(known)
    return [(v - mean) / scale for v in known]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
