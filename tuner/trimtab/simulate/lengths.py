"""A distribution of token counts as points of its quantile function: small, exact enough, and drawn from by seed. Pure.

Hazard: what the engine counted ends at the requests' max_tokens; what the model would have said beyond is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from trimtab.observe.observation import Histogram
from trimtab.simulate.state import F64, I32, I64

#: points of a table made from samples
POINTS: Final = 65


class Lengths(BaseModel):
    """Tokens at ascending shares from 0 to 1, linear between. Equal shares make a jump."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shares: tuple[float, ...]
    tokens: tuple[float, ...]

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if len(self.shares) != len(self.tokens) or len(self.shares) < 2:
            raise ValueError("shares and tokens need the same number of points, at least 2")
        if self.shares[0] != 0 or self.shares[-1] != 1:
            raise ValueError("shares must begin with 0 and end with 1")
        for name, values in (("shares", self.shares), ("tokens", self.tokens)):
            if not all(a <= b for a, b in pairwise(values)):
                raise ValueError(f"{name} must ascend")
        if not (self.tokens[0] >= 0 and math.isfinite(self.tokens[-1])):
            raise ValueError("tokens must be 0 or more, and finite")
        return self

    @classmethod
    def of(cls, values: Sequence[int] | I32 | I64) -> Lengths:
        """From at least one sample."""
        shares = np.linspace(0.0, 1.0, POINTS)
        found = np.quantile(np.asarray(values, dtype=np.float64), shares)
        return cls(shares=tuple(shares.tolist()), tokens=tuple(found.tolist()))

    @classmethod
    def fixed(cls, tokens: int) -> Lengths:
        return cls(shares=(0.0, 1.0), tokens=(tokens, tokens))

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> Lengths | None:
        """From a Prometheus histogram: its buckets, and its mean. None when it is empty.

        Buckets of 1-2-5 edges are wide: in each, half of the mass lies below an inner point, and one position of that
        point for all buckets makes the mean right. vLLM's last finite edge is the largest one up to max_model_len, so
        what lies above it is below the next one.
        """
        if histogram.count <= 0 or not any(map(math.isfinite, histogram.bounds)):
            return None
        low, below, pieces = 0.0, 0.0, []
        for bound, cumulative in zip(histogram.bounds, histogram.counts, strict=True):
            high = next_edge(low) if math.isinf(bound) else bound
            if cumulative > below:
                pieces.append((low, high, (cumulative - below) / histogram.count))
            low, below = high, max(below, cumulative)
        place = _inner_place(pieces, histogram.sum / histogram.count)
        shares, tokens, share = [], [], 0.0
        for low, high, weight in pieces:
            shares += [share, share + weight / 2, share + weight]
            tokens += [low, low + place * (high - low), high]
            share += weight
        shares[-1] = 1.0
        return cls(shares=tuple(min(1.0, s) for s in shares), tokens=tuple(tokens))

    @property
    def mean(self) -> float:
        area = sum(
            (b - a) * (low + high) / 2
            for a, b, low, high in zip(self.shares, self.shares[1:], self.tokens, self.tokens[1:], strict=False)
        )
        return float(area)

    def quantile(self, share: float) -> float:
        return float(np.interp(share, self.shares, self.tokens))

    def draw(self, uniform: F64) -> I32:
        """One whole number of at least 1 for each number in [0, 1)."""
        return np.maximum(1, np.rint(np.interp(uniform, self.shares, self.tokens))).astype(np.int32)


def next_edge(edge: float) -> float:
    """The one after `edge` in the series 1, 2, 5, 10, 20, ... of vLLM's length buckets; 1 after 0."""
    if edge <= 0:
        return 1.0
    first = edge / 10 ** math.floor(math.log10(edge))
    return edge * (2.5 if 1.5 < first < 3.5 else 2.0)


def _inner_place(pieces: Sequence[tuple[float, float, float]], mean: float) -> float:
    """Where in (low, high) the inner points lie, 0 to 1, for this mean; 0.5 where the buckets have no width."""
    fixed = sum(w * (3 * low + high) / 4 for low, high, w in pieces)
    moving = sum(w * (high - low) / 2 for low, high, w in pieces)
    return min(1.0, max(0.0, (mean - fixed) / moving)) if moving > 0 else 0.5
