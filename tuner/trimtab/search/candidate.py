"""What goes out of the search (`Proposal`) and what comes back (`Outcome`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.engine.settings import Configuration


@dataclass(frozen=True)
class Proposal:
    """A configuration to try; `origin` says in plain words why."""

    configuration: Configuration
    origin: str


@dataclass(frozen=True)
class Outcome:
    """A finished trial. `score`: `Verdict.score`, log scale against the trial's control; None when nothing was
    measured.

    infeasible: crash, out of memory, never ready (`Breach.infeasible`). inconclusive: measured, but within noise.
    control: the configuration it was compared with; None means the first baseline.
    """

    name: str
    configuration: Configuration
    score: float | None = None
    infeasible: bool = False
    inconclusive: bool = False
    control: Configuration | None = None

    @property
    def decided(self) -> bool:
        """Whether trying it again would teach nothing."""
        return self.infeasible or (self.measured and not self.inconclusive)

    @property
    def measured(self) -> bool:
        return self.score is not None and math.isfinite(self.score) and not self.infeasible


def explicit(candidates: Sequence[Configuration], baseline: Configuration) -> list[Proposal]:
    """The user's own candidates, each laid over the baseline, in the user's order."""
    return [Proposal(baseline.with_(dict(c)), "listed in spec.search.candidates") for c in candidates]


def levels(history: Sequence[Outcome]) -> list[tuple[Outcome, float]]:
    """Measured outcomes with scores made comparable: a score is relative to its control, and the control changes on
    promotion.

    A control that was itself a trial stands at that trial's level; any other control stands at 0.
    """
    level: dict[str, float] = {}
    out: list[tuple[Outcome, float]] = []
    for outcome in history:
        if not outcome.measured or outcome.score is None:
            continue
        base = level.get(outcome.control.key(), 0.0) if outcome.control is not None else 0.0
        level[outcome.configuration.key()] = base + outcome.score
        out.append((outcome, base + outcome.score))
    return out
