"""What goes out of the search (`Proposal`) and what comes back (`Outcome`), and scores on one scale (`levels`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.engine.settings import Configuration

#: standard deviation of a trial's log score where the verdict does not tell it
NOISE: Final = 0.05
#: no trial is believed more than this: the load of the next hour differs from this one's
LEAST_NOISE: Final = 0.01


@dataclass(frozen=True)
class Proposal:
    """A configuration to try; `origin` says in plain words why.

    asked: a person named it, so it is tried whatever the model says. Else it is a guess.
    """

    configuration: Configuration
    origin: str
    asked: bool = False


@dataclass(frozen=True)
class Outcome:
    """A finished trial. `score`: `Verdict.score`, log scale against the trial's control; None when nothing was
    measured.

    infeasible: crash, out of memory, never ready (`Breach.infeasible`). inconclusive: measured, but within noise.
    control: the configuration it was compared with; None means the first baseline.
    deviation: standard deviation of `score`, from the verdict's interval; None: unknown (`NOISE` is assumed).
    again: the judge wants another start of the same configuration before it decides.
    context: the load it was measured under (`search.context.place`); empty: as now.
    breached: a guardrail ended it, so that `score` only says "very bad".
    """

    name: str
    configuration: Configuration
    score: float | None = None
    infeasible: bool = False
    inconclusive: bool = False
    control: Configuration | None = None
    deviation: float | None = None
    again: bool = False
    context: tuple[float, ...] = ()
    breached: bool = False

    @property
    def decided(self) -> bool:
        """Whether trying it again would teach nothing."""
        return self.infeasible or (self.measured and not self.inconclusive)

    @property
    def measured(self) -> bool:
        return self.score is not None and math.isfinite(self.score) and not self.infeasible

    @property
    def noise(self) -> float:
        """Standard deviation of the score, never 0."""
        known = self.deviation is not None and math.isfinite(self.deviation)
        return max(LEAST_NOISE, self.deviation or 0.0) if known else NOISE


@dataclass(frozen=True)
class Level:
    """A configuration's log score against the first control, from all trials of it together, and its deviation."""

    configuration: Configuration
    value: float
    deviation: float


def explicit(candidates: Sequence[Configuration], baseline: Configuration) -> list[Proposal]:
    """The user's own candidates, each laid over the baseline, in the user's order."""
    return [Proposal(baseline.with_(dict(c)), "listed in spec.search.candidates", asked=True) for c in candidates]


def levels(history: Sequence[Outcome]) -> list[Level]:
    """Measured configurations in order of their first trial, on one scale: a score is relative to its control, and the
    control changes on promotion.

    Least squares over all trials together, each weighted by the inverse of its variance: what was measured twice counts
    twice, and a lucky window counts little beside a long one. The first control stands at 0, and so does any other
    that was never tried itself.
    """
    measured = [o for o in history if o.measured]
    if not measured:
        return []
    first = measured[0].control
    fixed = first.key() if first is not None else None
    tried = {o.configuration.key(): o.configuration for o in measured if o.configuration.key() != fixed}
    column = {key: i for i, key in enumerate(tried)}
    rows, scores = np.zeros((len(measured), len(column))), np.zeros(len(measured))
    for i, o in enumerate(measured):
        assert o.score is not None  # measured
        scores[i] = o.score / o.noise
        for key, sign in ((o.configuration.key(), 1.0), (o.control.key() if o.control is not None else None, -1.0)):
            if key in column:
                rows[i, column[key]] += sign / o.noise
    inverse = np.linalg.pinv(rows.T @ rows)
    values = inverse @ rows.T @ scores
    spread = np.sqrt(np.maximum(np.diag(inverse), 0.0))
    return [Level(c, float(values[i]), float(spread[i])) for i, c in enumerate(tried.values())]
