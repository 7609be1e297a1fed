"""What the trials so far say of settings not tried: a Gaussian process over log2 of the settings. Pure.

A trial is a *difference* of two configurations with its own noise, so promotions, repeated starts and short
measurements need no care of their own: each counts by the inverse of its variance. How much settings matter, which of
them, and where the best place is (what runs now, a guess of the diagnosis, anywhere) is not fixed: each answer is a
hypothesis of its own, weighted by how well it foretold the trials. So a few trials without gain end the search where
nothing helps, and one lucky window does not steer it. What a simulator says of each world that is possible by its
profile (`Foretold`) are hypotheses, too, with an error that the same process describes: a simulator that foretells the
trials is soon believed, one that does not soon weighs nothing.

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
I64 = npt.NDArray[np.int64]
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
#: octaves over which a setting acts alike, and how likely that is before any trial: there are cliffs and slopes, and a
#: setting that does not matter
_LENGTHS: Final = ((1.2, 0.6), (12.0, 0.4))
#: octaves of load over which settings act alike
_CONTEXT: Final = 1.5
#: log scores beyond what was expected are cut: how bad (or good) beyond a factor of e is not told apart
_CUT: Final = 1.0
#: prior probability that the simulator is right but for an error; the deviations of that error, and how likely each is:
#: between half and thrice the errors of single quantiles on the ground-truth runs (docs/simulator.md)
_TRUST: Final = 0.85
_ERRORS: Final = ((0.03, 0.3), (0.1, 0.4), (0.3, 0.3))


@dataclass(frozen=True)
class Seen:
    """A trial: `difference` (log) of the configuration at `ours` less that at `theirs`, in one context."""

    ours: Place
    theirs: Place
    difference: float
    deviation: float
    context: Place = ()


@dataclass(frozen=True)
class Foretold:
    """What a simulator says, a column per possible world. candidates: log scores over the baseline; trials: as
    `Seen.difference`. Where `origin`, the place the profile was taken at, serves next to nothing in time, how little
    is anybody's guess: an error of deviation `hopeless`, shared by all comparisons with it.
    """

    candidates: F64
    trials: F64
    origin: Place
    hopeless: float = 0.0


@dataclass(frozen=True)
class Beliefs:
    """Of candidates against the baseline: a row per candidate, a column per hypothesis; `weights` sum to 1. worlds: of
    the simulator, which a column takes for true; -1: none."""

    means: F64
    deviations: F64
    weights: F64
    worlds: I64

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
    foretold: Foretold | None = None,
) -> Beliefs:
    """Of each place, its log score less the baseline's, in `context`. guesses: best first. With `foretold` its worlds
    are the last columns of each set of lengths."""
    found = np.array([o.difference for o in seen])
    noise = np.array([o.deviation**2 for o in seen])
    places_of_loads = [filled(o.context, context) for o in seen]
    loads = _kernel(places_of_loads, places_of_loads)
    now = _kernel(places_of_loads, [filled(context, context)])
    columns: list[_Column] = []
    for chosen in product(_LENGTHS, repeat=len(baseline)):
        lengths = np.array([octaves for octaves, _ in chosen])
        prior = float(np.sum(np.log([likely for _, likely in chosen])))
        kernel = _Kernel(seen, places, baseline, guesses, lengths, loads, now)
        columns += kernel.columns(found, noise, prior, foretold)
    logs = np.array([c.log for c in columns])
    weights = np.exp(logs - logs.max())
    means, deviations = (np.array([getattr(c, n) for c in columns]).T for n in ("means", "deviations"))
    return Beliefs(means, deviations, weights / weights.sum(), np.array([c.world for c in columns]))


@dataclass(frozen=True)
class _Hypothesis:
    """What is expected of places and trials before any trial. world: of the simulator, -1: none. log: of its prior."""

    places: F64
    trials: F64
    log: float
    world: int = -1


@dataclass(frozen=True)
class _Column:
    """A hypothesis after the trials. log: of prior times likelihood."""

    means: F64
    deviations: F64
    log: float
    world: int


class _Kernel:
    """Covariances of the differences, and what peaks promise of them, for one set of lengths; amplitude 1."""

    def __init__(
        self, seen: Sequence[Seen], places: Sequence[Place], baseline: Place, guesses: Sequence[Place], lengths: F64,
        loads: F64, now: F64,
    ) -> None:  # fmt: skip
        ours, theirs = [o.ours for o in seen], [o.theirs for o in seen]
        self._differences = (ours, theirs), (places, baseline)
        self._n = n = len(seen)
        peaks = [baseline, *guesses]
        at_peaks = _kernel([*places, baseline, *ours, *theirs], peaks, lengths)
        c = len(places)
        #: a column per peak
        self._promised = at_peaks[:c] - at_peaks[c]
        self._expected = at_peaks[c + 1 : c + 1 + n] - at_peaks[c + 1 + n :]
        self._own = 2 * (1 - _kernel(places, [baseline], lengths)[:, 0])
        self._among, self._cross = np.zeros((n, n)), np.zeros((n, c))
        if n:
            every = [*ours, *theirs]
            among = _kernel(every, every, lengths)
            self._among = (among[:n, :n] - among[:n, n:] - among[n:, :n] + among[n:, n:]) * loads
            to = _kernel(every, [*places, baseline], lengths)
            difference = to[:, :c] - to[:, c:]
            self._cross = (difference[:n] - difference[n:]) * now

    def columns(self, found: F64, noise: F64, prior: float, foretold: Foretold | None) -> list[_Column]:
        """Of each amplitude and peak, then of each error and world of the simulator."""
        general = prior if foretold is None else prior + np.log(1 - _TRUST)
        out = []
        for amplitude, likely in AMPLITUDES:
            anywhere, *peaks = self._peaks(amplitude, general + np.log(likely))
            out += self._after(amplitude, [anywhere], found, noise)
            out += self._after(_RESIDUAL * amplitude, peaks, found, noise)
        if foretold is not None:
            worlds = foretold.candidates.shape[1]
            for error, likely in _ERRORS:
                log = prior + np.log(_TRUST * likely / worlds)
                told = [_Hypothesis(foretold.candidates[:, w], foretold.trials[:, w], log, w) for w in range(worlds)]
                out += self._after(error, told, found, noise, (foretold.origin, foretold.hopeless))
        return out

    def _peaks(self, amplitude: float, prior: float) -> list[_Hypothesis]:
        """The best place is anywhere, here, or at a guess."""
        guesses = self._promised.shape[1] - 1
        later = _LATER ** np.arange(guesses)
        shares = (1 - _ANYWHERE - _HERE) * later / later.sum() if guesses else later
        left = 0.0 if guesses else 1 - _ANYWHERE - _HERE
        weights = [_HERE + left / 2, *shares]
        anywhere = _Hypothesis(np.zeros(len(self._own)), np.zeros(self._n), prior + float(np.log(_ANYWHERE + left / 2)))
        return [anywhere, *(
            _Hypothesis(amplitude * self._promised[:, p], amplitude * self._expected[:, p], prior + float(np.log(w)))
            for p, w in enumerate(weights)
        )]  # fmt: skip

    def _after(
        self, scale: float, hypotheses: Sequence[_Hypothesis], found: F64, noise: F64,
        alone: tuple[Place, float] | None = None,
    ) -> list[_Column]:  # fmt: skip
        """alone: a place and the deviation of an error that only it has."""
        own, among, cross = scale**2 * self._own, scale**2 * self._among, scale**2 * self._cross
        if alone is not None and alone[1] > 0:
            of_trials, of_places = self._at(alone[0])
            own = own + (alone[1] * of_places) ** 2
            among = among + alone[1] ** 2 * np.outer(of_trials, of_trials)
            cross = cross + alone[1] ** 2 * np.outer(of_trials, of_places)
        factor = np.linalg.cholesky(among + np.diag(noise))
        cross = np.linalg.solve(factor, cross)
        deviations = np.sqrt(np.maximum(own - (cross**2).sum(axis=0), 0.0))
        volume = float(np.log(np.diag(factor)).sum())
        out = []
        for h in hypotheses:
            surprise = np.linalg.solve(factor, np.clip(found - h.trials, -_CUT, _CUT))
            log = h.log - 0.5 * float(surprise @ surprise) - volume
            out.append(_Column(h.places + cross.T @ surprise, deviations, log, h.world))
        return out

    def _at(self, place: Place) -> tuple[F64, F64]:
        """1 and -1 where a trial's, or a candidate's, difference is of that place."""
        (ours, theirs), (places, baseline) = self._differences
        of_trials = [float(a == place) - float(b == place) for a, b in zip(ours, theirs, strict=True)]
        return np.array(of_trials), np.array([float(p == place) - float(baseline == place) for p in places])


def _kernel(first: Sequence[Place], second: Sequence[Place], lengths: F64 | float = _CONTEXT) -> F64:
    """Matern 5/2: smooth, but less so than a Gaussian, for there are cliffs. 1 where there is nothing to compare."""
    if not first or not len(first[0]):
        return np.ones((len(first), len(second)))
    a, b = np.array(first) / lengths, np.array(second) / lengths
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    scaled = np.sqrt(5.0 * np.maximum(squared, 0.0))
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled), dtype=np.float64)
