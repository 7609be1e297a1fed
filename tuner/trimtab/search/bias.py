"""What live trials teach about the simulator: how far off its scores are, by place in the search space. Pure.

The error is a Gaussian process over log2 of the settings, 0 where the profile was taken: near it the simulator was
calibrated, far from it nobody knows. A trial moves the errors around it; with few trials most of it is still the
prior's 0 (shrinkage). A single odd trial cannot move it far: what it says is cut (robust), and how wrong the simulator
is in general is learned from all trials together, so that a bad model soon stops dropping anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.search.candidate import NOISE
from trimtab.simulate.state import F64

Place = tuple[float, ...]
#: standard deviation of the error of a log score far from where the profile was taken, before any trial; about twice
#: the error of single quantiles on the ground-truth runs (docs/simulator.md)
PRIOR_ERROR: Final = 0.15
#: trials that the prior counts for when the size of the errors is learned
_PRIOR_TRIALS: Final = 4.0
#: octaves over which errors are alike
_LENGTH: Final = 2.0
#: deviations beyond which a trial says no more
_CUT: Final = 3.0


@dataclass(frozen=True)
class Lesson:
    """`error`: measured minus predicted log score against the place where the profile was taken; `noise`: standard
    deviation of the measurement."""

    place: Place
    error: float
    noise: float = NOISE


@dataclass(frozen=True)
class Bias:
    """Posterior of the errors. Build it with `learn`. Deviations: `error` of the model, `cliff` of the origin alone."""

    origin: Place
    places: tuple[Place, ...]
    weights: F64
    inverse: F64
    error: float
    cliff: float

    def difference(self, ours: Place, theirs: Place) -> tuple[float, float]:
        """Mean and standard deviation of the error of (score of ours - score of theirs)."""
        known, both = (self.origin, *self.places), (ours, theirs)
        to_known = np.array([1.0, -1.0]) @ self._covariance(both, known)
        among = self._covariance(both, both)
        variance = float(among[0, 0] + among[1, 1] - 2 * among[0, 1] - to_known @ self.inverse @ to_known)
        return float(to_known @ self.weights), max(0.0, variance) ** 0.5

    def _covariance(self, first: Sequence[Place], second: Sequence[Place]) -> F64:
        return _covariance(first, second, self.origin, self.error, self.cliff)


def learn(
    lessons: Sequence[Lesson],
    origin: Place,
    *,
    cliff: float = 0.0,
    prior_error: float = PRIOR_ERROR,
) -> Bias:
    """From none or more lessons, in any order.

    `cliff`: deviation of the error at the origin itself. Where it serves next to nothing in time, how much next to
    nothing is, is anybody's guess: an error that all comparisons with it share, and that says nothing of the others.
    """
    unlike = [2 * (1 - likeness(lesson.place, origin)) for lesson in lessons]
    noises = [lesson.noise**2 for lesson in lessons]
    expected = [(prior_error**2 * u + cliff**2 * (u > 0) + n) ** 0.5 for u, n in zip(unlike, noises, strict=True)]
    cut = [float(np.clip(lesson.error, -_CUT * e, _CUT * e)) for lesson, e in zip(lessons, expected, strict=True)]
    squares = sum((c / e) ** 2 for c, e in zip(cut, expected, strict=True))
    error = prior_error * ((_PRIOR_TRIALS + squares) / (_PRIOR_TRIALS + len(cut))) ** 0.5
    places = (origin, *(lesson.place for lesson in lessons))
    covariance = _covariance(places, places, origin, error, cliff)
    # at the origin the error is 0 by definition; the jitter is for the inverse only
    covariance += np.diag([1e-6 * error**2, *noises])
    inverse = np.linalg.inv(covariance)
    weights = np.asarray(inverse @ np.array([0.0, *cut]), dtype=np.float64)
    return Bias(origin, places[1:], weights, np.asarray(inverse, dtype=np.float64), error, cliff)


def likeness(first: Place, second: Place) -> float:
    """1 at the same place, 0 far away."""
    return float(_kernel([first], [second])[0, 0])


def _covariance(first: Sequence[Place], second: Sequence[Place], origin: Place, error: float, cliff: float) -> F64:
    elsewhere = [np.array([float(place != origin) for place in places]) for places in (first, second)]
    return np.asarray(error**2 * _kernel(first, second) + cliff**2 * np.outer(*elsewhere), dtype=np.float64)


def _kernel(first: Sequence[Place], second: Sequence[Place]) -> F64:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    squared = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squared / (2 * _LENGTH**2)), dtype=np.float64)
