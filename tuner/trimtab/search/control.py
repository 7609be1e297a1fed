"""What random search would have found: the control beside a tuning figure. Exact, by counting; pure.

For a grid that is known in full: k different configurations are drawn, each set as likely, and the best of them runs
afterwards, or what ran before where none is better. Hazard: measured values flatter it as they flatter any search that
takes the best of noisy figures; give the same values that the figure beside it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.errors import InputError

#: share of all outcomes that lies within `low` and `high`
RANGE: Final = 0.9


@dataclass(frozen=True)
class Control:
    """Best value after `trials` of `of` configurations: its mean over all ways to draw them, the range of the middle
    90%, and the best there is. Unit and scale are those of the values.

    outcomes: (value, probability that this is what is found), ascending.
    """

    trials: int
    of: int
    mean: float
    low: float
    high: float
    best: float
    outcomes: tuple[tuple[float, float], ...]

    def chance(self, value: float) -> float:
        """Probability that random search finds at least `value`."""
        return min(1.0, math.fsum(p for v, p in self.outcomes if v >= value))

    def __str__(self) -> str:
        found = f"{self.mean:.4g} on average ({self.low:.4g} to {self.high:.4g} in {RANGE:.0%} of cases)"
        return f"random search with {self.trials} of {self.of} configurations would have found {found}"


def random_control(values: Sequence[float | None], trials: int, start: float | None = None) -> Control:
    """Random search without repeats. `values`: one per configuration that may be tried, higher is better, None: it does
    not start, which costs a trial. `start`: what runs before; None: the worst of the values.

    InputError where there is nothing to draw from or `trials` is below 0. More trials than values: all are tried.
    """
    known = [v for v in values if v is not None]
    if not known or not all(math.isfinite(v) for v in (*known, *([] if start is None else [start]))):
        raise InputError("values", "has no finite value, or one that is none", "Give what each configuration measured.")
    if trials < 0:
        raise InputError("trials", f"{trials} is no number of trials", "Use 0 or more.")
    before = min(known) if start is None else start
    ascending = sorted(before if v is None else max(before, v) for v in values)
    n, k = len(ascending), min(trials, len(ascending))
    # the best of k is at most the i-th smallest: all k are among the i smallest
    ways = [math.comb(i, k) for i in range(n + 1)]
    found: dict[float, float] = {before: 0.0}
    if k == 0:
        found[before] = 1.0
    else:
        for value, below, upto in zip(ascending, ways, ways[1:], strict=False):
            found[value] = found.get(value, 0.0) + (upto - below) / ways[n]
    outcomes = tuple(sorted(found.items()))
    mean = math.fsum(v * p for v, p in outcomes)
    tail = (1 - RANGE) / 2
    return Control(k, n, mean, _quantile(outcomes, tail), _quantile(outcomes, 1 - tail), ascending[-1], outcomes)


def trials_until(good: int, of: int) -> float:
    """Mean number of trials until random search without repeats has met one of `good` among `of`: (of + 1) /
    (good + 1), the mean of a negative hypergeometric variable; inf where none is good."""
    if not 0 <= good <= of:
        raise InputError("good", f"{good} of {of} cannot be", "Give a count from 0 to the number of configurations.")
    return (of + 1) / (good + 1) if good else math.inf


def _quantile(outcomes: Sequence[tuple[float, float]], share: float) -> float:
    total = 0.0
    for value, probability in outcomes:
        total += probability
        if total >= share - 1e-12:
            return value
    return outcomes[-1][0]
