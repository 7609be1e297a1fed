"""Output lengths as histograms, with those that a limit cut; what they say about a limit, and what they cannot say.

A length that ended by its limit is only known to be at least so long. Taken as it stands it hides the tail: the policy
would find every limit high enough. Source: life table with the limits at the end of their bucket (Kaplan and Meier
1958).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.special import betaincinv  # what scipy.stats.beta.ppf calls; scipy.stats takes half a second to load

from trimtab.errors import InputError
from trimtab.observe.observation import Histogram
from trimtab.observe.profile import coefficient_of_variation

#: about 8% wide from 1 to a million tokens: the bucket adds little to what the sample size leaves open
FINE_BOUNDS: Final = (*sorted({round(10 ** (n / 30)) for n in range(181)}), math.inf)
CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class ShareInterval:
    """A share (0-1) of requests, with a 95% interval that also covers where in its bucket a length lies.

    `known` False: nothing was seen beyond; `estimate` is then the most it can be.
    """

    estimate: float
    low: float
    high: float
    known: bool = True

    def __str__(self) -> str:
        if not self.known:
            return f"at most {self.high:.1%}"
        return f"{self.estimate:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True)
class Lengths:
    """natural: ended by itself. capped: ended by its limit (finish reason `length`); the same bounds, None for none."""

    natural: Histogram
    capped: Histogram | None = None

    def __post_init__(self) -> None:
        if self.capped is not None and self.capped.bounds != self.natural.bounds:
            raise InputError("capped", "has other bucket edges than natural", "Give histograms of one engine.")


def from_tokens(
    natural: Iterable[float], capped: Iterable[float] = (), bounds: Sequence[float] = FINE_BOUNDS
) -> Lengths:
    """From single lengths."""
    return Lengths(_histogram(natural, bounds), _histogram(capped, bounds))


def _histogram(values: Iterable[float], bounds: Sequence[float]) -> Histogram:
    counts, total, running = [0] * len(bounds), 0.0, 0
    for value in values:
        counts[bisect.bisect_left(bounds, value)] += 1
        total += value
    cumulative = []
    for count in counts:
        running += count
        cumulative.append(float(running))
    return Histogram(tuple(bounds), tuple(cumulative), total)


def split_at_cap(lengths: Histogram, cap_tokens: float, capped: float) -> Lengths:
    """Stock vLLM tells lengths and how many ended by `length` (`capped`), not which: with one limit for all they lie at
    it.

    Takes them out of the limit's bucket, as far as it holds them.
    """
    if capped < 0 or cap_tokens < 1:
        raise InputError(
            "capped", f"{capped:g} at {cap_tokens:g} tokens", "Give a count and a limit of at least 1 token."
        )
    place = bisect.bisect_left(lengths.bounds, cap_tokens)
    if place == len(lengths.bounds):
        raise InputError("cap_tokens", "lies above the last bucket", "Give a histogram that ends with +inf.")
    held = lengths.counts[place] - (lengths.counts[place - 1] if place else 0.0)
    moved = min(capped, held)
    natural = tuple(c - moved if n >= place else c for n, c in enumerate(lengths.counts))
    cut = tuple(moved if n >= place else 0.0 for n in range(len(lengths.bounds)))
    taken = moved * cap_tokens
    return Lengths(
        Histogram(lengths.bounds, natural, max(0.0, lengths.sum - taken)), Histogram(lengths.bounds, cut, taken)
    )


@dataclass(frozen=True)
class Estimate:
    """Lengths as if no limit held, as far as they are known.

    histogram: shares x samples; what limits hide is in its +inf bucket. hidden_share: of requests whose length is only
    known to be above `known_to_tokens`. capped_share: of requests that ended by their limit. at_risk: per bucket, how
    many were seen to reach it.
    """

    histogram: Histogram
    hidden_share: float
    known_to_tokens: float
    capped_share: float
    samples: float
    at_risk: tuple[float, ...]

    @property
    def mean_tokens(self) -> float | None:
        """A lower bound where something is hidden."""
        return self.histogram.mean

    @property
    def cv(self) -> float | None:
        """Standard deviation / mean; a lower bound where something is hidden."""
        return coefficient_of_variation(self.histogram)

    def quantile(self, q: float) -> float | None:
        """None where limits (or the last bucket) hide it."""
        if self.samples <= 0 or q > 1.0 - self.hidden_share:
            return None
        return self.histogram.quantile(q)

    def longer_than(self, tokens: float) -> ShareInterval:
        """Share of requests that would go beyond `tokens`: what a limit there would cut."""
        if self.samples <= 0:
            return ShareInterval(1.0, 0.0, 1.0, known=False)
        bounds = self.histogram.bounds
        place = bisect.bisect_left(bounds, tokens)
        above = self._longer(place - 1)
        trials = self._trials(place - 1, above)
        high = _upper(above * trials, trials)
        if tokens > self.known_to_tokens and self.hidden_share > 0:
            return ShareInterval(high, 0.0, high, known=False)
        below = self._longer(place)
        share = 1.0 - (self.histogram.share_below(tokens) or 0.0)
        return ShareInterval(share, _lower(below * trials, trials), high)

    def _longer(self, place: int) -> float:
        """Share above the upper edge of bucket `place`; -1: all."""
        if place < 0:
            return 1.0
        if math.isinf(self.histogram.bounds[place]):
            return 0.0
        return 1.0 - self.histogram.counts[place] / self.samples

    def _trials(self, place: int, share: float) -> float:
        """Requests whose limit let them show whether they pass the edge."""
        reached = self.at_risk[place + 1] if place + 1 < len(self.at_risk) else 0.0
        return (
            min(self.samples, reached / share) if share > 0 and reached > 0 else self.samples * (1 - self.capped_share)
        )


def estimate(lengths: Lengths) -> Estimate:
    """Life table over the buckets; without limits it is the histogram itself."""
    natural, capped = lengths.natural, lengths.capped
    bounds, samples = natural.bounds, natural.count + (capped.count if capped else 0.0)
    ends = _per_bucket(natural)
    cuts = _per_bucket(capped) if capped else [0.0] * len(bounds)
    at_risk, left = [], samples
    for end, cut in zip(ends, cuts, strict=True):
        at_risk.append(left)
        left = max(0.0, left - end - cut)
    if capped is None or capped.count <= 0:
        hidden = samples - natural.counts[-2] if len(bounds) > 1 else 0.0
        known = bounds[-2] if len(bounds) > 1 else 0.0
        return Estimate(natural, hidden / samples if samples else 0.0, known, 0.0, samples, tuple(at_risk))
    longer, shares, known = 1.0, [], 0.0
    for bound, end, risk in zip(bounds, ends, at_risk, strict=True):
        share = longer * end / risk if risk > 1e-9 and not math.isinf(bound) else 0.0
        shares.append(share)
        longer -= share
        if risk > 1e-9 and not math.isinf(bound):
            known = bound
    return Estimate(
        _as_histogram(bounds, shares, longer, known, samples),
        longer,
        known,
        capped.count / samples,
        samples,
        tuple(at_risk),
    )


def _as_histogram(
    bounds: Sequence[float], shares: Sequence[float], hidden: float, known: float, samples: float
) -> Histogram:
    total, low, running, counts = hidden * known, 0.0, 0.0, []
    for bound, share in zip(bounds, shares, strict=True):
        running += share
        counts.append(samples if math.isinf(bound) else running * samples)
        total += share * (low + (low if math.isinf(bound) else bound)) / 2
        low = bound
    return Histogram(tuple(bounds), tuple(counts), total * samples)


def _per_bucket(histogram: Histogram) -> list[float]:
    below = (0.0, *histogram.counts)
    return [max(0.0, c - b) for c, b in zip(histogram.counts, below, strict=False)]


def _lower(hits: float, trials: float) -> float:
    """Clopper and Pearson 1934, with fractions allowed (Prometheus interpolates counts)."""
    return float(betaincinv(hits, trials - hits + 1, (1 - CONFIDENCE) / 2)) if hits > 1e-9 else 0.0


def _upper(hits: float, trials: float) -> float:
    return float(betaincinv(hits + 1, trials - hits, (1 + CONFIDENCE) / 2)) if trials - hits > 1e-9 else 1.0
