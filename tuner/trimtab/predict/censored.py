"""Quantiles and losses where some lengths are only known to be at least so long. numpy only.

Sources: Kaplan and Meier 1958 (product-limit estimator); Powell 1986 (quantile regression with known limits).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.predict.samples import Bools, Floats


def survival(values: Floats, seen: Bools) -> tuple[Floats, Floats]:
    """(distinct values ascending, share that is longer), product-limit. `seen` False: at least that long.

    Where a value is both an end and a limit, the end comes first.
    """
    points, inverse = np.unique(values, return_inverse=True)
    ends = np.bincount(inverse, weights=seen.astype(np.float64), minlength=len(points))
    all_ = np.bincount(inverse, minlength=len(points)).astype(np.float64)
    at_risk = np.cumsum(all_[::-1])[::-1]
    return points, np.cumprod(1.0 - ends / at_risk, dtype=np.float64)


def quantile(values: Floats, seen: Bools, level: float, *, conservative: bool = False) -> float | None:
    """Smallest value that at most 1 - level exceed; None where limits hide it.

    conservative: the level becomes ceil((n + 1) level) / n, as split conformal prediction wants (Vovk et al. 2005).
    """
    n = len(values)
    if n == 0:
        return None
    if conservative:
        level = min(1.0, np.ceil((n + 1) * level) / n)
    points, longer = survival(values, seen)
    found = np.flatnonzero(longer <= 1.0 - level + 1e-12)
    return float(points[found[0]]) if len(found) else None


def share_up_to(values: Floats, seen: Bools, limit: float) -> float:
    """Share of values <= limit, product-limit."""
    points, longer = survival(values, seen)
    position = int(np.searchsorted(points, limit, side="right"))
    return 0.0 if position == 0 else 1.0 - float(longer[position - 1])


def pinball(tokens: Floats, predicted: Floats, cap_tokens: Floats, levels: Sequence[float]) -> Floats:
    """N x levels: q (y - p) above the prediction, (1 - q) (p - y) below, in tokens; predictions count up to the limit.

    tokens: N. predicted: N x levels (or 1 x levels). cap_tokens: N, inf for none. Where no limit holds it is the plain
    loss; with limits it is Powell's, which a model cannot better by guessing what nobody saw.
    """
    q = np.asarray(levels)[None, :]
    missed = tokens[:, None] - np.minimum(predicted, cap_tokens[:, None])
    return np.asarray(np.maximum(q * missed, (q - 1.0) * missed))
