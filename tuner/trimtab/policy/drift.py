"""Did output lengths change between two windows? Both a test and a size: with many requests every trifle is
significant.

Sources: two-sample Kolmogorov-Smirnov on bucket edges (binning only lowers D, so the p-value is on the safe side);
population stability index, whose customary marks are 0.1 and 0.25 (Siddiqi, Credit Risk Scorecards, 2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from scipy.special import kolmogorov

from trimtab.errors import InputError
from trimtab.observe.observation import Histogram

P_VALUE: Final = 0.001
#: requests of one client come in runs, which makes the p-value too small: the size must be there too
LEAST_PSI: Final = 0.1
#: of each window; below it PSI is mostly noise (its expectation without drift is about buckets / n)
MIN_SAMPLES: Final = 200.0
#: PSI bands hold this share of the older window each, as is customary
_BANDS: Final = 10


@dataclass(frozen=True)
class Drift:
    """ks: largest difference of the two distribution functions, 0-1. drifted None: too few requests to say."""

    ks: float
    p_value: float
    psi: float
    drifted: bool | None

    def __str__(self) -> str:
        said = {True: "changed", False: "did not change", None: "cannot be compared yet"}[self.drifted]
        return f"Output lengths {said} (KS {self.ks:.2f}, p {self.p_value:.1g}, PSI {self.psi:.2f})."


def drift(before: Histogram, after: Histogram) -> Drift:
    """InputError when the edges differ: vLLM's depend on max_model_len."""
    if before.bounds != after.bounds:
        raise InputError(
            "after", "has other bucket edges than before", "Compare windows of engines with one max_model_len."
        )
    n, m = before.count, after.count
    if min(n, m) < 1:
        return Drift(0.0, 1.0, 0.0, None)
    ks = max(abs(a / n - b / m) for a, b in zip(before.counts, after.counts, strict=True))
    p_value = float(kolmogorov(math.sqrt(n * m / (n + m)) * ks))
    psi = _psi(before, after)
    known = min(n, m) >= MIN_SAMPLES
    return Drift(ks, p_value, psi, (p_value < P_VALUE and psi >= LEAST_PSI) if known else None)


def _psi(before: Histogram, after: Histogram) -> float:
    """Neighbouring buckets are joined until a band holds a tenth of the older window."""
    total, last_a, last_b = 0.0, 0.0, 0.0
    n, m = before.count, after.count
    for number, (a, b) in enumerate(zip(before.counts, after.counts, strict=True)):
        full = a - last_a >= n / _BANDS and n - a >= n / _BANDS
        if full or number == len(before.counts) - 1:
            # half a request, so that an empty band does not make it infinite
            p, q = (max(0.5, a - last_a) / n, max(0.5, b - last_b) / m)
            total += (q - p) * math.log(q / p)
            last_a, last_b = a, b
    return total
