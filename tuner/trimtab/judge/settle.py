"""Has a fresh canary settled? What its first windows say about a cold prefix cache and a process that warms up. Pure.

A restarted backend had no cache hits beside a sibling with 96% (Fastllm-proxy#22); measured then, it loses whatever its
settings. Only a canary that is getting better beside the control warms up: one that gets worse is to be measured, not
waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, variance
from typing import Final

from trimtab.judge.windows import Pair
from trimtab.observe.observation import Histogram, Observation

#: windows that make a statement: two halves of two
LEAST_WINDOWS: Final = 4
#: at most so many of the latest windows are looked at: what was before them is over
_MOST_WINDOWS: Final = 6
#: a change between the halves below this is none: 2 points of the hit ratio, 5% of a latency or of the token rate
_FLOOR_RATIO, _FLOOR_LOG = 0.02, 0.05
#: and it must be this many standard errors of what the windows scatter
_ERRORS: Final = 2.0


def unsettled(pairs: Sequence[Pair]) -> str | None:
    """What still gets better, in words; None when nothing does, or when fewer than four windows are known.

    pairs: canary and control since the canary is ready, in any order.
    """
    latest = sorted(pairs, key=lambda p: p.start)[-_MOST_WINDOWS:]
    for name, sign, floor, value in _MEASURES:
        values = [sign * v for p in latest if (v := value(p)) is not None]
        half = len(values) // 2
        if 2 * half < LEAST_WINDOWS:
            continue
        first, second = values[:half], values[-half:]
        error = math.sqrt((variance(first) + variance(second)) / half)
        if fmean(second) - fmean(first) > max(floor, _ERRORS * error):
            return f"{name} of the canary still gets better"
    return None


def _hits(pair: Pair) -> float | None:
    ours, theirs = pair.canary.prefix_hit_ratio, pair.control.prefix_hit_ratio
    return None if ours is None else ours - (theirs or 0.0)


def _log_ratio(value: Callable[[Observation], float | None]) -> Callable[[Pair], float | None]:
    def of(pair: Pair) -> float | None:
        ours, theirs = value(pair.canary), value(pair.control)
        return math.log(ours / theirs) if ours and theirs and ours > 0 and theirs > 0 else None

    return of


def _mean(histogram: Histogram | None) -> float | None:
    return histogram.mean if histogram is not None else None


#: name, the sign with which more is better, the floor, and how it is read
_MEASURES: Final[tuple[tuple[str, float, float, Callable[[Pair], float | None]], ...]] = (
    ("the prefix cache's hit ratio", 1.0, _FLOOR_RATIO, _hits),
    ("TTFT", -1.0, _FLOOR_LOG, _log_ratio(lambda o: _mean(o.ttft_seconds))),
    ("TPOT", -1.0, _FLOOR_LOG, _log_ratio(lambda o: _mean(o.tpot_seconds))),
    ("the token rate", 1.0, _FLOOR_LOG, _log_ratio(lambda o: o.generated_tokens_per_second)),
)
