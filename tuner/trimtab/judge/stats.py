"""The little statistics the judge needs: intervals that may be looked at on every tick, and bounds of histogram
quantiles.

Why these. A trial is looked at whenever a window is full, and ends when the answer is clear: a fixed-sample interval
would then be wrong several times as often as it says (Johari, Koomen, Pekelis, Walsh: Always Valid Inference, 2022).
A mixture over possible effects gives a bound that holds at all times at once (Robbins 1970; Howard, Ramdas, McAuliffe,
Sekhon: Time-uniform, nonparametric, nonasymptotic confidence sequences, 2021). With the variance unknown and few
windows the normal form is too narrow, so this is the one of the t statistic, exact for Gaussian values from the second
one on (Lai 1976; Wang and Ramdas: Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
variance, 2024; with the degrees of freedom of a linear model: Lindon, Ham, Tingley, Bojinov: Anytime-valid linear
models, 2022). What is not exact is autocorrelation: the sample size is cut by an estimate that few windows blur; the
benchmark (`benchmarks/judge.py`) shows what remains of the error rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from scipy.special import stdtrit  # what scipy.stats.t.ppf calls; scipy.stats takes half a second to load

from trimtab.observe.observation import Histogram

#: an estimate of lag-1 autocorrelation above this is cut: with the few windows of a trial it would be mostly noise
_MAX_RHO: Final = 0.8
#: the lag-1 autocorrelation assumed before any window is seen, and the windows that this is worth. Chosen on simulated
#: equal arms (rho 0, 0.3, 0.6; 41 looks): without it the error rate at 0.6 is half as high again
_PRIOR_RHO, _PRIOR_WINDOWS = 0.3, 10
#: weight and variance of the mixture's normal parts, over effect / noise of one window: the first has the most power
#: between 10 and 30 windows, without the second five to ten windows could not show even a large effect
MIXTURE: Final = ((0.75, 0.5), (0.25, 16.0))
#: the canary's own noise counts as that of equal arms up to this ratio of variances
_EQUAL_NOISE: Final = 2.0
#: beyond e to this a ratio is beyond any doubt that is asked for, and beyond what a float holds
_MOST_LOG: Final = 700.0


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided interval. `effective`: the sample size after autocorrelation."""

    mean: float
    low: float
    high: float
    effective: float

    def shifted(self, by: float) -> Interval:
        return replace(self, mean=self.mean + by, low=self.low + by, high=self.high + by)

    def widened(self, half: float) -> Interval:
        """With an independent uncertainty of half-width `half` added in squares."""
        below, above = math.hypot(self.mean - self.low, half), math.hypot(self.high - self.mean, half)
        return replace(self, low=self.mean - below, high=self.mean + above)


@dataclass(frozen=True)
class Noise:
    """Of one window's difference between the arms: variance, its degrees of freedom, lag-1 autocorrelation."""

    variance: float
    degrees: float
    rho: float


def lag1(series: Sequence[Sequence[float]]) -> float:
    """Lag-1 autocorrelation in [0, 0.8] of series that share it; drawn towards what is usual, as few windows blur it.

    The first-order bias -(1 + 3 rho) / n of the plain estimate is added back. Negative estimates count as 0: they would
    narrow the interval, and a narrow interval promotes.
    """
    weight, total = float(_PRIOR_WINDOWS), _PRIOR_RHO * _PRIOR_WINDOWS
    for values in series:
        n, squares = len(values), _squares(values)
        if n < 3 or squares <= 0:
            continue
        mean = math.fsum(values) / n
        plain = math.fsum((a - mean) * (b - mean) for a, b in pairwise(values)) / squares
        weight, total = weight + n, total + n * plain + (1 + 3 * max(0.0, plain))
    return min(_MAX_RHO, max(0.0, total / weight))


def noise(values: Sequence[float], equal: Sequence[Sequence[float]] = ()) -> Noise | None:
    """From the trial's differences and from series of equal arms on the same scale (before the trial, or between
    control pods); None for fewer than 3 values.

    Equal arms add degrees of freedom, and never make the noise look smaller than the trial's own.
    """
    if len(values) < 3:
        return None
    rho = lag1([values, *equal])
    own, own_degrees = _variance(values, rho)
    others = [_variance(v, rho) for v in equal if len(v) >= 3]
    degrees = own_degrees + math.fsum(d for _, d in others)
    pooled = (own * own_degrees + math.fsum(v * d for v, d in others)) / degrees
    if own > _EQUAL_NOISE * pooled:
        return Noise(own, own_degrees, rho)
    return Noise(max(own, pooled), degrees, rho)


def always_valid(values: Sequence[float], confidence: float, equal: Sequence[Sequence[float]] = ()) -> Interval | None:
    """An interval of the mean that holds, with `confidence`, at all lengths of `values` at once; None for fewer than 3.

    All m whose likelihood ratio is below 1 / (1 - confidence): over the parts of the mixture the weighted mean of
    sqrt(r) ((1 + t^2 / v) / (1 + r t^2 / v))^((v + 1) / 2), t of mean - m, r = 1 / (1 + n g), v degrees of freedom.
    """
    found = noise(values, equal)
    if found is None:
        return None
    n = len(values)
    mean, size = math.fsum(values) / n, effective(n, found.rho)
    radius = _radius(size, found.degrees, 1 - confidence)
    half = radius * math.sqrt(found.variance / size) if radius < math.inf else math.inf
    return Interval(mean, mean - half, mean + half, size)


def effective(n: int, rho: float) -> float:
    """Independent values that n of an AR(1) series are worth, at least 3 (or n - 1)."""
    return max(min(3.0, n - 1.0), n * (1 - rho) / (1 + rho))


def mean_error(values: Sequence[float], found: Noise) -> float:
    """Standard error of the mean of `values` under that noise."""
    return math.sqrt(found.variance / effective(len(values), found.rho))


def student_half(degrees: float, confidence: float) -> float:
    """Two-sided half-width in standard errors, for what is looked at once."""
    return float(stdtrit(degrees, 0.5 + confidence / 2))


def _radius(size: float, degrees: float, error: float) -> float:
    """|t| beyond which the mixture likelihood ratio exceeds 1 / error; inf where no |t| does. By bisection: it grows
    with |t|."""
    if likelihood_ratio(math.inf, size, degrees) <= 1 / error:
        return math.inf
    low, high = 0.0, 8.0
    while likelihood_ratio(high, size, degrees) <= 1 / error:
        low, high = high, 2 * high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if likelihood_ratio(middle, size, degrees) > 1 / error else (middle, high)
    return high


def likelihood_ratio(t: float, size: float, degrees: float) -> float:
    """Of the mixture of effects against none, given |t|."""
    total = 0.0
    for weight, variance in MIXTURE:
        shrunk = 1 / (1 + size * variance)
        square = t * t / degrees
        gain = 1 / shrunk if math.isinf(square) else (1 + square) / (1 + shrunk * square)
        total += weight * math.exp(min(_MOST_LOG, 0.5 * math.log(shrunk) + (degrees + 1) / 2 * math.log(gain)))
    return total


def _variance(values: Sequence[float], rho: float) -> tuple[float, float]:
    """Variance and degrees of freedom. That of a positively autocorrelated series is too small: divided by n - n/n_eff
    instead of n - 1. With rho known there were n - 1 degrees of freedom (of the whitened series), with none of it known
    n_eff - 1; half way between them the error rate held in simulation up to rho 0.6."""
    n = len(values)
    size = effective(n, rho)
    return _squares(values) / (n - n / size), (size + n) / 2 - 1


def _squares(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values)


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
