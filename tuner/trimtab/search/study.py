"""`Study`: which configuration to try next, or that nothing is worth a trial any more.

Another start where the judge asks for one; then what a person listed; then what the trials so far promise, with the
simulator's word where there is a profile, else with the diagnosis' guesses (`prospects`): a gain is weighed against
what its trial costs, and the search ends where none pays. Another `sampler` draws, and nothing ends by gain.

The history from the custom resources is the authority. The storage only remembers outcomes that are older than that
history; it can be lost or corrupt without stopping anything: `Study.warning` says so and the search goes on with what
it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trimtab.engine.settings import Configuration
from trimtab.errors import StorageError
from trimtab.search.candidate import Outcome, Proposal, levels
from trimtab.search.context import apart, of_another_target
from trimtab.search.fits import Capacity
from trimtab.search.memory import Memory
from trimtab.search.method import sampler as sampler_of
from trimtab.search.prospects import prospects
from trimtab.search.refuse import another_start, refusal
from trimtab.search.sampling import Point
from trimtab.search.space import Space
from trimtab.search.stakes import Stakes

if TYPE_CHECKING:  # it imports the simulator and with it numba, which a search without a profile does not need
    from trimtab.search.foretell import Oracle

MODEL: Final = "Model"
#: octaves of load from which a stored trial is none of this search: the default of spec.search.driftPercent
_OTHER_LOAD: Final = 0.585
#: worth of a guess against the best one, from which they are taken to be equal
_EQUAL: Final = 0.75
_TRIED: Final = "every configuration in the search space that may be tried was tried"


class Study:
    """One per tuner. `storage`: path of a journal file, database URL, or None for no memory. Same input and seed,
    same answer. `sampler`: `MODEL` or one of `method.NAMES`.

    `warning` is the last StorageError, None while the storage works. `stopped`: why the last `propose` gave None.
    """

    def __init__(
        self, storage: str | None, name: str, space: Space, seed: int = 0, sampler: str = MODEL, target: str = ""
    ) -> None:
        """target: what makes two studies alike (model, hardware, arguments); "" is like nothing."""
        self._memory = Memory(storage, name, target) if storage is not None else None
        self._space, self._seed, self._sampler = space, seed, sampler
        self.warning: StorageError | None = None
        self.stopped = ""

    def propose(
        self,
        history: Sequence[Outcome],
        baseline: Configuration,
        seeds: Sequence[Proposal] = (),
        oracle: Oracle | None = None,
        *,
        stakes: Stakes | None = None,
        room: float | None = None,
        context: tuple[float, ...] = (),
        earlier: Sequence[Outcome] = (),
        fits: Capacity | None = None,
    ) -> Proposal | None:
        """The next configuration, or None when nothing is left that may be tried or is worth it (`stopped` says which).

        history: finished trials, oldest first. baseline: what runs now. seeds: `explicit(...)` then `candidates(...)`.
        oracle: simulates candidates by the target's profile; what it does not know is then not tried.
        stakes: what a trial costs; None: gain never ends the search. room: log score that any setting can bring at
        most. context: the load now. earlier: trials of like targets or loads, which teach and forbid nothing.
        fits: of the KV cache; what would not start for want of it is not tried unless a person asks for it.
        """
        self.stopped = ""
        known = self._remember(history, {o.name for o in earlier}, context)
        waiting = another_start(known, baseline, self._space)
        if waiting is not None:
            return Proposal(waiting, "another start of the same configuration, as its last trial asked", asked=True)
        for seed in seeds:
            wanted = seed.asked or self._sampler != MODEL
            if wanted and not self._measured(seed.configuration, known) and self._allowed(
                seed.configuration, known, baseline
            ):  # fmt: skip
                return seed
        allowed = [c for c in self._space.all(baseline) if self._allowed(c, known, baseline)]
        allowed = [c for c in allowed if fits is None or fits.starts(c)]
        if not allowed:
            self.stopped = _TRIED
            return None
        if self._sampler != MODEL:
            points = self._points(known, baseline)
            drawn = sampler_of(self._sampler).draw(points, allowed, self._space, baseline, self._seed + len(known))
            return Proposal(drawn, f"drawn by {self._sampler} after {len(known)} trials") if drawn is not None else None
        if oracle is not None and oracle.knows(baseline) and (simulated := [c for c in allowed if oracle.knows(c)]):
            return self._promising(known, (), simulated, seeds, baseline, stakes, room, context, oracle)
        return self._promising(known, earlier, allowed, seeds, baseline, stakes, room, context)

    def kin(self) -> list[Outcome]:
        """What studies of like targets in the same storage have found; none where it cannot be read."""
        if self._memory is None:
            return []
        return [replace(o, context=of_another_target(o.context)) for o in self._memory.kin()]

    def _promising(
        self, known: Sequence[Outcome], earlier: Sequence[Outcome], allowed: Sequence[Configuration],
        seeds: Sequence[Proposal], baseline: Configuration, stakes: Stakes | None, room: float | None,
        context: tuple[float, ...], oracle: Oracle | None = None,
    ) -> Proposal | None:  # fmt: skip
        guesses = {s.configuration: s.origin for s in seeds if not s.asked}
        found = prospects(
            allowed, [*earlier, *known], baseline, self._space, guesses=list(guesses), stakes=stakes, room=room,
            context=context, oracle=oracle,
        )  # fmt: skip
        best = next((p for p in found if p.near and p.net > 0), found[0])
        # among near equals the reason that a person can check decides
        best = next((p for p in found if p.configuration in guesses and p.net > _EQUAL * best.net > 0), best)
        if stakes is not None and best.net <= 0:
            self.stopped = f"nothing to gain: of {len(found)} configurations the best is {best}; " + stakes.compare(
                best.worth, best.cost
            )
            return None
        why = f"{guesses[best.configuration]}; " if best.configuration in guesses else ""
        learned = f" and {len(earlier)} of other loads or targets" if earlier else ""
        return Proposal(best.configuration, f"{why}{best}, after {len(known)} trials{learned}")

    def _allowed(self, configuration: Configuration, known: Sequence[Outcome], baseline: Configuration) -> bool:
        return refusal(configuration, known, baseline, self._space) is None

    def _measured(self, configuration: Configuration, known: Sequence[Outcome]) -> bool:
        cell = self._space.cell(configuration)
        return any(o.measured and self._space.cell(o.configuration) == cell for o in known)

    def _remember(self, history: Sequence[Outcome], earlier: set[str], context: tuple[float, ...]) -> list[Outcome]:
        """Older outcomes from the storage, then the history. The only place where a lost storage is noticed.

        What was measured under another load is not the history of this search, or it would forbid to look again.
        """
        self.warning = None
        if self._memory is None:
            return list(history)
        try:
            self._memory.record(history, self._space)
            older = self._memory.recall()
        except StorageError as error:
            self.warning = error
            return list(history)
        names = {o.name for o in history} | earlier
        ours = (o for o in older if o.infeasible or apart(o.context, context) <= _OTHER_LOAD)
        return [*(o for o in ours if o.name not in names), *history]

    def _points(self, known: Sequence[Outcome], baseline: Configuration) -> list[Point]:
        """What a sampler learns from: measured configurations on one scale, crashes, and the baseline, which costs
        nothing."""
        measured = levels(known)
        points = [Point(m.configuration, m.value) for m in measured]
        points += [Point(o.configuration, None) for o in known if o.infeasible]
        if not any(m.configuration == baseline for m in measured):
            points.append(Point(baseline, 0.0))
        return points
