"""One simulated run in the figures that a live trial would show: over a window, by the clients' own limits.

Tokens belong to the window in which their request ended, moved by the time that a request is served, requests and
latencies to the one in which they arrived, as in `trimtab.load.summary`. Counting to the end of the run instead would
credit an overloaded engine with what it did long after the load was over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.simulate import state as st
from trimtab.simulate.outcome import Counters, Outcome
from trimtab.simulate.state import F64
from trimtab.simulate.summary import Limits
from trimtab.simulate.workload import Workload

#: share of the arrivals' span in which the engine fills up; left out of the figures
WARMUP_SHARE: Final = 0.2
#: a ratio of latencies beyond e^1.5 = 4.5 moves a score no further; as `trimtab.judge.verdict` scores a live trial
_LATENCY_LIMIT: Final = 1.5
#: a ratio of goodputs beyond 100 is 100; as there
_MOST_RATIO: Final = 100.0
#: worth of a token that came too late, in tokens in time: where every request is late, more throughput is still better
LATE_WORTH: Final = 0.1


@dataclass(frozen=True)
class Measure:
    """`goodput`: tokens/s of requests within the limits, `useful`: of all that ended normally, `offered`:
    of all that came to stay. `floor`: half a
    request's tokens/s, so that logs exist.

    `attainment`: share within the limits of the requests that did not leave by themselves, nan without any. Latencies
    in seconds of requests that ended normally, nan without any. `refused`: share rejected, refused or stuck.
    """

    goodput: float
    useful: float
    offered: float
    floor: float
    attainment: float
    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    refused: float
    counters: Counters


def window(load: Workload) -> tuple[float, float] | None:
    """From where the engine is warm to the last arrival; None where all arrive at once: then the whole run counts."""
    first, last = (float(load.arrival[0]), float(load.arrival[-1])) if len(load) else (0.0, 0.0)
    return (first + WARMUP_SHARE * (last - first), last) if last > first else None


def measure(outcome: Outcome, limits: Limits) -> Measure:
    load, span = outcome.load, window(outcome.load)
    low, high = span or (float(load.arrival[0]) if len(load) else 0.0, max(outcome.counters.end_seconds, 1e-9))
    arrived = load.arrival >= low
    good = outcome.ok & (outcome.ttft <= limits.ttft_seconds) & ~(outcome.tpot > limits.tpot_seconds)
    later = _service_seconds(outcome, 0.25 * (high - low)) if span else 0.0
    ended = outcome.ok & (outcome.end >= low + later) & (outcome.end <= high + later)
    seconds = max(high - low, 1e-9)
    wanted = np.minimum(load.output, load.max_tokens)
    judged = arrived & (outcome.ending != st.CANCELLED)
    served = arrived & outcome.ok
    lost = np.isin(outcome.ending, (st.STUCK, st.REJECTED, st.REFUSED))
    return Measure(
        goodput=float(outcome.tokens[good & ended].sum(dtype=np.int64) / seconds),
        useful=float(outcome.tokens[ended].sum(dtype=np.int64) / seconds),
        offered=float(wanted[arrived & (load.cancel_tokens == 0)].sum(dtype=np.int64) / seconds),
        floor=float(0.5 * wanted.mean() / seconds) if len(load) else 1.0,
        attainment=_share(good, judged),
        ttft_mean=_mean(outcome.ttft[served]),
        ttft_p99=_p99(outcome.ttft[served]),
        tpot_mean=_mean(outcome.tpot[served]),
        tpot_p99=_p99(outcome.tpot[served]),
        refused=_share(lost, arrived),
        counters=outcome.counters,
    )


def _service_seconds(outcome: Outcome, most: float) -> float:
    """How much later requests end than they begin: by so much the window of ends is moved. Else a faster engine would
    seem to serve more than arrives."""
    served = (outcome.end - outcome.scheduled)[outcome.ok]
    return min(most, float(np.median(served))) if len(served) else 0.0


def log_goodput(ours: Measure, theirs: Measure) -> float:
    """Log ratio, of 100 at most; the floor makes two runs without goodput equal."""
    return _cut((ours.goodput + ours.floor) / (theirs.goodput + theirs.floor))


def log_worth(ours: Measure, theirs: Measure) -> float:
    """As `log_goodput`, with the tokens that came too late at `LATE_WORTH`."""

    return _cut(worth(ours) / worth(theirs))


def worth(m: Measure) -> float:
    """Tokens/s, late ones at `LATE_WORTH`; above 0."""
    return m.goodput + LATE_WORTH * (m.useful - m.goodput) + m.floor


def log_useful(ours: Measure, theirs: Measure) -> float:
    """Log ratio of the tokens/s of all requests that ended normally, in time or not."""
    return _cut((ours.useful + ours.floor) / (theirs.useful + theirs.floor))


def headroom(m: Measure) -> float:
    """Log ratio of what is offered and what is served in time: more goodput than that no setting can bring."""
    return max(0.0, math.log((m.offered + m.floor) / (m.goodput + m.floor)))


def latency_gain(ours: Measure, theirs: Measure, weights: tuple[float, float]) -> float:
    """The part of a live trial's score that its mean TTFT and TPOT make: less their weighted log ratios."""
    ratios = (log_ratio(ours.ttft_mean, theirs.ttft_mean), log_ratio(ours.tpot_mean, theirs.tpot_mean))
    cut = [0.0 if math.isnan(r) else min(_LATENCY_LIMIT, max(-_LATENCY_LIMIT, r)) for r in ratios]
    return -sum(w * r for w, r in zip(weights, cut, strict=True))


def log_ratio(ours: float, theirs: float) -> float:
    """nan where either is unknown or not above 0."""
    return math.log(ours / theirs) if ours > 0 and theirs > 0 else math.nan


def _cut(ratio: float) -> float:
    return math.log(min(_MOST_RATIO, max(1 / _MOST_RATIO, ratio)))


def _share(part: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_]) -> float:
    total = int(whole.sum())
    return float((part & whole).sum() / total) if total else math.nan


def _mean(values: F64) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else math.nan


def _p99(values: F64) -> float:
    kept = values[~np.isnan(values)]
    return float(np.percentile(kept, 99)) if len(kept) else math.nan
