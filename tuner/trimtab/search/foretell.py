"""The simulator before the restart: what it says of candidates and of the trials so far, in each world that is possible
by the profile. How far that is believed is decided by the trials (`posterior`). Without a profile there is none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from trimtab.engine.settings import Configuration
from trimtab.search.candidate import Outcome
from trimtab.search.posterior import F64, Foretold, Place
from trimtab.search.predict import Prediction, Predictions, Simulated
from trimtab.search.space import Space
from trimtab.simulate.profile import Profile
from trimtab.simulate.summary import Limits

#: weights of mean TTFT and TPOT in a score; the defaults of `trimtab.judge.verdict`
LATENCY_WEIGHTS: Final = (0.1, 0.1)
#: deviation of the error where hardly anything is served in time, as a share of the log headroom there
_HOPELESS: Final = 0.3
#: deviation of the log of a simulated ratio of p99s: what the ground-truth runs show for p99 (docs/simulator.md), twice
_TAIL_ERROR: Final = 0.3
#: threads: a GPU node has a hundred cores, and they are not ours
_MOST_WORKERS: Final = 8


@dataclass(frozen=True)
class Oracle:
    """A profile's simulations for one space. ratios: of a canary's p99 TTFT and TPOT to the control's, beyond which a
    guardrail ends a trial; inf: not watched."""

    simulated: Simulated
    space: Space
    ratios: tuple[float, float] = (math.inf, math.inf)

    def knows(self, configuration: Configuration) -> bool:
        return self.simulated.knows(configuration)

    def place(self, configuration: Configuration) -> Place:
        return self.simulated.place(configuration, self.space)

    def foretell(
        self, candidates: Sequence[Configuration], trials: Sequence[Outcome], baseline: Configuration
    ) -> tuple[Foretold, F64]:
        """What it says, and the probability that a guardrail ends a candidate's trial: a row each, a column per world.

        trials: measured to their end. What the simulator would refuse, it takes for no different from the control.
        """
        now = self._predict(baseline)
        controls = [o.control or Configuration.of() for o in trials]
        self.simulated.predict([c for c in candidates if self.knows(c)])
        told = [self._difference(c, baseline) for c in candidates]
        of_trials = [self._difference(o.configuration, control) for o, control in zip(trials, controls, strict=True)]
        worlds = self.simulated.pairs
        at_home = self.simulated.predict([Configuration.of()])[0]
        foretold = Foretold(
            np.array(told).reshape(-1, worlds), np.array(of_trials).reshape(-1, worlds),
            self.simulated.origin(self.space), _HOPELESS * at_home.headrooms[0],
        )  # fmt: skip
        ends = [self._ends(self._predict(c), now) for c in candidates]
        return foretold, np.array(ends).reshape(-1, worlds)

    def _predict(self, configuration: Configuration) -> Prediction | None:
        return self.simulated.predict([configuration])[0] if self.knows(configuration) else None

    def _difference(self, ours: Configuration, theirs: Configuration) -> F64:
        a, b = self._predict(ours), self._predict(theirs)
        if a is None or b is None:
            return np.zeros(self.simulated.pairs)
        return np.subtract(a.scores, b.scores)

    def _ends(self, ours: Prediction | None, theirs: Prediction | None) -> F64:
        if ours is None or theirs is None:
            return np.zeros(self.simulated.pairs)
        serves = np.ones(self.simulated.pairs)
        for i, ratio in enumerate(self.ratios):
            if math.isinf(ratio):
                continue
            a, b = (np.array([tail[i] for tail in p.tails]) for p in (ours, theirs))
            known = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
            apart = np.log(np.where(known, a, 1.0) / np.where(known, b, 1.0))
            serves *= np.where(known, ndtr((math.log(ratio) - apart) / _TAIL_ERROR), 1.0)
        return 1.0 - serves


def oracle_of(
    profile: Profile,
    space: Space,
    slo_seconds: tuple[float | None, float | None],
    latency_weights: tuple[float, float] = LATENCY_WEIGHTS,
    ratios: tuple[float, float] = (math.inf, math.inf),
    known: Predictions | None = None,
) -> Oracle:
    """For an SLO (TTFT and TPOT, None: no limit), on at most 8 cores. known: what an equal one has
    simulated; added to."""
    limits = Limits(*(math.inf if limit is None else limit for limit in slo_seconds))
    workers = min(_MOST_WORKERS, os.cpu_count() or 1)
    simulated = Simulated(profile, limits, latency_weights=latency_weights, workers=workers, known=known)
    return Oracle(simulated, space, ratios)
