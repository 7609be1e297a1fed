"""What the trials so far say of settings not tried: a Gaussian process over log2 of the settings. Pure.

A trial is a *difference* of two configurations with its own noise, so promotions, repeated starts and short
measurements need no care of their own: each counts by the inverse of its variance. How much settings matter, which of
them, and where the best place is (what runs now, a guess of the diagnosis, anywhere) is not fixed: each answer is a
hypothesis of its own, weighted by how well it foretold the trials. So a few trials without gain end the search where
nothing helps, and one lucky window does not steer it.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, ch. 2 and 5; the load as further dimensions:
Krause and Ong, Contextual Gaussian Process Bandit Optimization, 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.search.context import filled

F64 = npt.NDArray[np.float64]
Place = tuple[float, ...]
#: how far the best is above the rest (log score), and how likely that is before any trial: nearly nothing helps, as in
#: targets that are well set; a little; much; cliffs
AMPLITUDES: Final = ((0.01, 0.4), (0.1, 0.2), (0.3, 0.2), (0.8, 0.2))
#: prior probability that the best place is: anywhere, what runs now; the guesses of the diagnosis share the rest
_ANYWHERE, _HERE = 0.3, 0.3
#: a guess of the diagnosis is this much as likely as the one before it
_LATER: Final = 0.7
#: of the amplitude, what a peak leaves open
_RESIDUAL: Final = 0.5
#: octaves over which a setting that matters acts alike, and one that does not
_NEAR, _FAR = 2.0, 12.0
#: prior probability that a setting matters
_MATTERS: Final = 0.6
#: octaves of load over which settings act alike
_CONTEXT: Final = 1.5
#: log scores beyond are cut: how bad (or good) beyond a factor of e is not told apart
_CUT: Final = 1.0


@dataclass(frozen=True)
class Seen:
    """A trial: `difference` (log) of the configuration at `ours` less that at `theirs`, in one context."""

    ours: Place
    theirs: Place
    difference: float
    deviation: float
    context: Place = ()


@dataclass(frozen=True)
class Beliefs:
    """Of candidates against the baseline: a row per candidate, a column per hypothesis; `weights` sum to 1."""

    means: F64
    deviations: F64
    weights: F64

    def mean(self, i: int) -> float:
        return float(self.means[i] @ self.weights)

    def deviation(self, i: int) -> float:
        second = (self.deviations[i] ** 2 + self.means[i] ** 2) @ self.weights
        return float(max(0.0, second - self.mean(i) ** 2) ** 0.5)


def beliefs(
    seen: Sequence[Seen],
    places: Sequence[Place],
    baseline: Place,
    guesses: Sequence[Place] = (),
    context: Place = (),
) -> Beliefs:
    """Of each place, its log score less the baseline's, in `context`. guesses: best first."""
    found = np.array([float(np.clip(o.difference, -_CUT, _CUT)) for o in seen])
    noise = np.array([o.deviation**2 for o in seen])
    places_of_loads = [filled(o.context, context) for o in seen]
    loads = _kernel(places_of_loads, places_of_loads)
    now = _kernel(places_of_loads, [filled(context, context)])
    means, variances, logs = [], [], []
    for lengths in product((_NEAR, _FAR), repeat=len(baseline)):
        matter = sum(length == _NEAR for length in lengths)
        prior = matter * np.log(_MATTERS) + (len(lengths) - matter) * np.log(1 - _MATTERS)
        kernel = _Kernel(seen, places, baseline, guesses, np.array(lengths), loads, now)
        for mean, variance, log in kernel.hypotheses(found, noise):
            means.append(mean)
            variances.append(variance)
            logs.append(log + prior)
    weights = np.exp(np.array(logs) - max(logs))
    return Beliefs(np.array(means).T, np.sqrt(np.array(variances)).T, weights / weights.sum())


class _Kernel:
    """Covariances of the differences, and what peaks promise of them, for one set of lengths; amplitude 1."""

    def __init__(
        self, seen: Sequence[Seen], places: Sequence[Place], baseline: Place, guesses: Sequence[Place], lengths: F64,
        loads: F64, now: F64,
    ) -> None:  # fmt: skip
        ours, theirs = [o.ours for o in seen], [o.theirs for o in seen]
        self._n = len(seen)
        peaks = [baseline, *guesses]
        at_peaks = _kernel([*places, baseline, *ours, *theirs], peaks, lengths)
        c, n = len(places), self._n
        #: a column per peak
        self._promised = at_peaks[:c] - at_peaks[c]
        self._expected = at_peaks[c + 1 : c + 1 + n] - at_peaks[c + 1 + n :]
        self._own = 2 * (1 - _kernel(places, [baseline], lengths)[:, 0])
        if n:
            every = [*ours, *theirs]
            among = _kernel(every, every, lengths)
            self._among = (among[:n, :n] - among[:n, n:] - among[n:, :n] + among[n:, n:]) * loads
            to = _kernel(every, [*places, baseline], lengths)
            difference = to[:, :c] - to[:, c:]
            self._cross = (difference[:n] - difference[n:]) * now

    def hypotheses(self, found: F64, noise: F64) -> list[tuple[F64, F64, float]]:
        """(means and variances at the places, log of prior times likelihood) of each amplitude and peak."""
        guesses = self._promised.shape[1] - 1
        later = _LATER ** np.arange(guesses)
        shares = (1 - _ANYWHERE - _HERE) * later / later.sum() if guesses else later
        left = 0.0 if guesses else 1 - _ANYWHERE - _HERE
        peaks = [(-1, _ANYWHERE + left / 2), (0, _HERE + left / 2), *enumerate(shares, 1)]
        out = []
        for amplitude, likely in AMPLITUDES:
            for scale, chosen in ((amplitude, peaks[:1]), (_RESIDUAL * amplitude, peaks[1:])):
                out += self._with(scale, [(amplitude, p, likely * w) for p, w in chosen], found, noise)
        return out

    def _with(
        self, scale: float, peaks: Sequence[tuple[float, int, float]], found: F64, noise: F64
    ) -> list[tuple[F64, F64, float]]:
        own = scale**2 * self._own
        promised = [amplitude * self._promised[:, p] * (p >= 0) for amplitude, p, _ in peaks]
        if not self._n:
            return [(m, own, float(np.log(w))) for m, (_, _, w) in zip(promised, peaks, strict=True)]
        factor = np.linalg.cholesky(scale**2 * self._among + np.diag(noise))
        cross = np.linalg.solve(factor, scale**2 * self._cross)
        variance = np.maximum(own - (cross**2).sum(axis=0), 0.0)
        volume = float(np.log(np.diag(factor)).sum())
        out = []
        for mean, (amplitude, p, w) in zip(promised, peaks, strict=True):
            surprise = np.linalg.solve(factor, found - amplitude * self._expected[:, p] * (p >= 0))
            log = float(np.log(w)) - 0.5 * float(surprise @ surprise) - volume
            out.append((mean + cross.T @ surprise, variance, log))
        return out


def _kernel(first: Sequence[Place], second: Sequence[Place], lengths: F64 | float = _CONTEXT) -> F64:
    """Matern 5/2: smooth, but less so than a Gaussian, for there are cliffs. 1 where there is nothing to compare."""
    if not first or not len(first[0]):
        return np.ones((len(first), len(second)))
    a, b = np.array(first) / lengths, np.array(second) / lengths
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    scaled = np.sqrt(5.0 * np.maximum(squared, 0.0))
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled), dtype=np.float64)
