"""The little statistics the judge needs: means of short autocorrelated series, and bounds of histogram quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy.stats import t as student_t

from trimtab.observe.observation import Histogram

#: an estimate of lag-1 autocorrelation above this is cut: with the few windows of a trial it would be mostly noise
_MAX_RHO = 0.8


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided confidence interval. `effective` is the sample size after autocorrelation."""

    mean: float
    low: float
    high: float
    effective: float


def lag1(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation in [0, 0.8]; the first-order bias -(1 + 3 rho) / n of the plain estimate is added back.

    Negative estimates count as 0: they would narrow the interval, and a narrow interval promotes.
    """
    n = len(values)
    if n < 3:
        return 0.0
    mean = math.fsum(values) / n
    centred = [v - mean for v in values]
    total = math.fsum(c * c for c in centred)
    if total <= 0:
        return 0.0
    plain = math.fsum(a * b for a, b in pairwise(centred)) / total
    return min(_MAX_RHO, max(0.0, plain + (1 + 3 * max(0.0, plain)) / n))


def mean_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """Student-t interval of the mean, with n (1 - rho) / (1 + rho) as sample size (AR(1)); None for fewer than 3
    values.

    The sample variance of a positively autocorrelated series is too small; it is enlarged by (n - 1) / (n - n / n_eff).
    """
    n = len(values)
    if n < 3:
        return None
    mean = math.fsum(values) / n
    rho = lag1(values)
    effective = max(min(3.0, n - 1.0), n * (1 - rho) / (1 + rho))
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - n / effective)
    half = float(student_t.ppf(0.5 + confidence / 2, effective - 1)) * math.sqrt(variance / effective)
    return Interval(mean, mean - half, mean + half, effective)


def quantile_bounds(histogram: Histogram, q: float, z: float) -> tuple[float, float] | None:
    """(low, high) of the q-quantile: the quantiles at q -+ z standard errors of the empirical share; None when empty.

    Distribution-free. With few samples the high bound is the largest bucket seen: that is meant.
    """
    if histogram.count <= 0:
        return None
    error = z * math.sqrt(q * (1 - q) / histogram.count)
    low, high = histogram.quantile(max(0.0, q - error)), histogram.quantile(min(1.0, q + error))
    return None if low is None or high is None else (low, high)


def quantile_exceeds(
    canary: Histogram | None, control: Histogram | None, factor: float, *, z: float, least: int
) -> bool:
    """Whether the canary's p99 is above `factor` x the control's, beyond doubt z; False when unknown or under `least`
    samples.

    p99 of 300 requests with a log-normal spread of 1 varies by 30% between equal arms, so a plain comparison would
    not do.
    """
    if canary is None or control is None or min(canary.count, control.count) < least:
        return False
    ours, theirs = quantile_bounds(canary, 0.99, z), quantile_bounds(control, 0.99, z)
    return ours is not None and theirs is not None and theirs[1] > 0 and ours[0] > factor * theirs[1]
