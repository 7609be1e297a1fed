"""The simulator before the restart: what cannot win is not tried, what promises most is tried first.

A candidate is dropped when even the upper end of its predicted score does not reach the least gain over what runs
now, when the improvement to be expected does not pay for the change, or when fewer requests are within the SLO than
wanted and than now even at the optimistic end. Ends include what the profile leaves open (step times, load) and how
far the simulator was off in the trials so far (`bias`). Nothing is dropped for good: each trial's lesson can bring a
candidate back. Without a profile there is no screen.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from trimtab.engine.settings import Configuration
from trimtab.search.bias import PRIOR_ERROR, Bias, Lesson, Place, learn, likeness
from trimtab.search.candidate import NOISE, Outcome, levels
from trimtab.search.normal import positive_part
from trimtab.search.predict import Prediction, Simulated
from trimtab.search.space import Space
from trimtab.search.stakes import Stakes
from trimtab.simulate.profile import Profile
from trimtab.simulate.state import F64
from trimtab.simulate.summary import Limits

#: standard deviations of a bound: 97.7% of a normal distribution lie below
_BOUND: Final = 2.0
#: share of requests within the SLO that counts as meeting it
ATTAINMENT: Final = 0.9
#: below this log score trials are not told apart: a guardrail ended them, and how bad it would have got is unknown
_FLOOR: Final = -1.0
#: log score that an octave away from what runs now must bring: what changes nothing is left as it is
_PER_OCTAVE: Final = 0.02
#: weights of mean TTFT and TPOT in a score; the defaults of `trimtab.judge.verdict`
LATENCY_WEIGHTS: Final = (0.1, 0.1)
#: deviation of the error where hardly anything is served in time, as a share of the log headroom there
_CLIFF: Final = 0.3
#: one trial makes a pair at most e^-3 as likely: an odd trial rules none out
_MOST_UNLIKELY: Final = 3.0
#: deviation of what a ceiling hides, as a share of the log goodput by which what runs now fell short
_HIDDEN: Final = 0.3


@dataclass(frozen=True)
class Forecast:
    """Log score over what runs now, corrected: `mean`, its upper end `high`, `deviation`. `attainment`: its optimistic
    end. promise: expected improvement beyond the least gain, if it starts at all, less what the distance costs.
    `dropped`: why it is not tried, "" if it may be.
    """

    configuration: Configuration
    mean: float
    high: float
    deviation: float
    attainment: float
    promise: float
    dropped: str = ""

    def __str__(self) -> str:
        low, high = (_percent(v) for v in (self.mean - _BOUND * self.deviation, self.high))
        return f"simulated {_percent(self.mean)} ({low} to {high}) against what runs now"


def _percent(log: float) -> str:
    share = math.expm1(log)
    return f"{share:+.0%}" if share < 2 else f"x{1 + share:.0f}"


@dataclass
class Screen:
    """`least_gain`: a share; less is not worth a restart. `attainment`: share of requests that meets the SLO.

    `forecasts`: of the latest call, best first, the dropped ones included.
    """

    simulated: Simulated
    space: Space
    least_gain: float = 0.0
    attainment: float = ATTAINMENT
    forecasts: list[Forecast] = field(default_factory=list)
    #: of the pairs, by how well each predicted the trials so far
    weights: F64 = field(default_factory=lambda: np.zeros(0))
    _stakes: Stakes | None = None

    def best_first(
        self,
        candidates: Sequence[Configuration],
        history: Sequence[Outcome],
        baseline: Configuration,
        stakes: Stakes | None = None,
    ) -> list[Forecast]:
        """What may be tried, by expected improvement. Candidates that the model knows nothing of are left out.

        stakes: what a trial costs, which its expected improvement has to pay for.
        """
        self._stakes = stakes
        known = [c for c in candidates if self.simulated.knows(c)]
        if not known or not self.simulated.knows(baseline):
            self.forecasts = []
            return []
        bias = self.bias(history)
        found = self._forecasts(known, bias, baseline, [self._place(o.configuration) for o in history if o.infeasible])
        self.forecasts = sorted(found, key=lambda f: (bool(f.dropped), -f.promise, -f.mean, f.configuration.key()))
        return [f for f in self.forecasts if not f.dropped]

    def summary(self) -> str:
        """Of the latest call, for people."""
        dropped = sum(bool(f.dropped) for f in self.forecasts)
        return f"{dropped} of {len(self.forecasts)} candidates dropped by simulation"

    def bias(self, history: Sequence[Outcome]) -> Bias:
        """What the trials so far teach. Scores are made comparable first: promotions change the control."""
        measured = [level for level in levels(history) if self.simulated.knows(level.configuration)]
        controls = (o.control for o in history if o.control is not None)
        # a level is against the first control, a prediction against the profile's own configuration
        start = next((c for c in controls if self.simulated.knows(c)), Configuration.of())
        first = self.simulated.predict([start])[0]
        predicted = self.simulated.predict([m.configuration for m in measured])
        # rows: trials, columns: pairs
        shape = (len(measured), self.simulated.pairs)
        said = np.array([np.subtract(p.scores, first.scores) for p in predicted]).reshape(shape)
        found = np.array([m.value for m in measured]).reshape(-1, 1)
        off = np.maximum(_FLOOR, found) - np.maximum(_FLOOR, said)
        self.weights = likelihoods(off)
        errors = (off @ self.weights).tolist()
        lessons = [
            Lesson(self._place(m.configuration), error, m.deviation) for m, error in zip(measured, errors, strict=True)
        ]
        return learn(lessons, self._place(start), cliff=_CLIFF * first.headrooms[0])

    def _place(self, configuration: Configuration) -> Place:
        return self.simulated.place(configuration, self.space)

    def _forecasts(
        self, known: Sequence[Configuration], bias: Bias, baseline: Configuration, crashes: Sequence[Place]
    ) -> list[Forecast]:
        here = self._place(baseline)
        *predicted, now = self.simulated.predict([*known, baseline])
        hidden, doubt = self._hidden(bias, here)
        room = max(now.headrooms) + hidden + doubt
        # what comes caps the simulated goodputs; where the real engine is behind, their differences are hidden by it
        unseen = _HIDDEN * min(1.0, hidden)
        out = []
        for configuration, p in zip(known, predicted, strict=True):
            place = self._place(configuration)
            error, deviation = bias.difference(place, here)
            expected = _Expected(
                self._mean(p.goodputs, now.goodputs) + error, self._mean(p.latencies, now.latencies),
                math.hypot(self._spread(p, now), deviation, unseen), room,
            )  # fmt: skip
            starts = math.prod(1 - likeness(place, crash) for crash in crashes)
            away = sum(abs(a - b) for a, b in zip(place, here, strict=True))
            promise = starts * expected.improvement(math.log1p(self.least_gain)) - _PER_OCTAVE * away
            if self._stakes is not None:
                loss = 1 - math.exp(-float(positive_part(-expected.mean, expected.deviation)))
                promise -= self._stakes.cost(loss, 1 - starts) / self._stakes.worth(1.0)
            optimistic = min(1.0, max(p.attainments) * math.exp(_BOUND * deviation))
            out.append(self._forecast(configuration, expected, optimistic, promise, min(now.attainments)))
        return out

    def _mean(self, ours: Sequence[float], theirs: Sequence[float]) -> float:
        return float(np.subtract(ours, theirs) @ self.weights)

    def _spread(self, ours: Prediction, theirs: Prediction) -> float:
        """Standard deviation of the difference over the pairs."""
        apart = np.subtract(ours.scores, theirs.scores)
        return float(((apart - apart @ self.weights) ** 2 @ self.weights) ** 0.5)

    def _hidden(self, bias: Bias, here: Place) -> tuple[float, float]:
        """Log goodput by which what runs now fell short of its prediction in trials, and how uncertain that is."""
        if here == bias.origin:
            return 0.0, 0.0
        error, deviation = bias.difference(here, bias.origin)
        return max(0.0, -error), min(deviation, bias.error)

    def _forecast(
        self, configuration: Configuration, expected: _Expected, optimistic: float, promise: float, served: float
    ) -> Forecast:
        """`served`: share of the requests within the SLO now, at the pessimistic end."""
        found = Forecast(configuration, expected.mean, expected.high, expected.deviation, optimistic, promise)
        why = ""
        if expected.high < math.log1p(self.least_gain) or promise <= 0:
            why = f"{found}: not worth a restart"
        elif optimistic < min(self.attainment, served):
            why = f"at most {optimistic:.0%} of the requests would be within the SLO"
        return replace(found, dropped=why)


@dataclass(frozen=True)
class _Expected:
    """Of a candidate over what runs now, log: goodput (normal, cut at `room`) and the part of the latencies."""

    goodput: float
    latency: float
    deviation: float
    room: float

    @property
    def mean(self) -> float:
        return min(self.goodput, self.room) + self.latency

    @property
    def high(self) -> float:
        return min(self.goodput + _BOUND * self.deviation, self.room) + self.latency

    def improvement(self, least: float) -> float:
        """Expected improvement beyond `least` (Mockus 1978; Jones et al. 1998), of a normal variable cut from above."""
        wanted = least - self.latency
        if self.room <= wanted:
            return 0.0
        beyond = positive_part(self.goodput - wanted, self.deviation)
        return float(beyond - positive_part(self.goodput - self.room, self.deviation))


def screen_of(
    profile: Profile,
    space: Space,
    slo_seconds: tuple[float | None, float | None],
    least_gain: float,
    latency_weights: tuple[float, float] = LATENCY_WEIGHTS,
) -> Screen:
    """A screen for an SLO (TTFT and TPOT, None: no limit), on all cores."""
    limits = Limits(*(math.inf if limit is None else limit for limit in slo_seconds))
    workers = os.cpu_count() or 1
    return Screen(Simulated(profile, limits, latency_weights=latency_weights, workers=workers), space, least_gain)


def likelihoods(off: F64) -> F64:
    """Weights of the pairs, their sum is 1. `off`: measured minus predicted log scores, a row per trial."""
    fit = np.minimum(off**2 / (2 * (NOISE**2 + PRIOR_ERROR**2)), _MOST_UNLIKELY).sum(axis=0)
    weights = np.exp(-(fit - fit.min()))
    return np.asarray(weights / weights.sum(), dtype=np.float64)
