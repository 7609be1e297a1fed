"""The normal distribution's part of expected improvement. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

F64 = npt.NDArray[np.float64]


def positive_part(mean: npt.ArrayLike, deviation: npt.ArrayLike) -> F64:
    """Mean of max(0, x) for normal x, element by element; a deviation of 0 is a certain value."""
    mean, deviation = np.asarray(mean, dtype=np.float64), np.asarray(deviation, dtype=np.float64)
    safe = np.maximum(deviation, 1e-12)
    z = mean / safe
    density = np.exp(-0.5 * np.minimum(z**2, 1400.0)) / np.sqrt(2 * np.pi)
    part = np.where(deviation > 0, mean * ndtr(z) + safe * density, np.maximum(mean, 0.0))
    return np.asarray(part, dtype=np.float64)
