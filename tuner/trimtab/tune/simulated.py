"""`SimulatedTarget`: replicas of an engine in virtual time, behind the same choice of a replica as the front door's.

For a dry run of a whole tuning in seconds, and for tests. The plan, the search and the judge are the real ones; they
see vLLM's metrics of simulated engines. Start times are what the caller says; a machine's own noise is not in it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.judge.guardrail import PodHealth
from trimtab.observe.ring import Ring
from trimtab.observe.samples import BASELINE_SECONDS, PodRef, Samples
from trimtab.plan.record import PodView
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.workload import Workload
from trimtab.tune.argv import configuration_of
from trimtab.tune.slots import Slot, SlotTarget
from trimtab.tune.virtual import Arrival, VirtualEngine, arrivals

#: of virtual time; between two of them no engine starts or ends
_TURN_SECONDS: Final = 0.5
#: the load is drawn piece by piece
_PIECE_SECONDS: Final = 600.0
_RETAIN_SECONDS: Final = 7200.0
#: the model's settings that a Configuration may name, too
_SETTINGS: Final = tuple(f.name for f in fields(EngineConfig))
_CAP: Final = "max_new_tokens"


@dataclass(frozen=True)
class Simulation:
    """What is simulated. load: piece n of the whole target's arrivals, `seconds` long. fails: why an engine does not
    start, "" if it does. Times in seconds."""

    engine: EngineConfig
    times: StepTimes
    load: Callable[[int, float], Workload]
    replicas: int = 2
    start_seconds: float = 60.0
    drain_seconds: float = 60.0
    scrape_seconds: float = 5.0
    fails: Callable[[EngineConfig], str] = lambda _: ""
    seed: int = 0


@dataclass
class SimulatedSlot:
    """One place. exit_code: of an engine that did not start; `said` are its last words."""

    slot: int
    template: Mapping[str, Any]
    candidate: bool = False
    ready: bool = False
    draining: bool = False
    port: int = 0
    starts: int = 0
    engine: VirtualEngine | None = None
    began: float = 0.0
    turn: float = 0.0
    #: replacement under way: by when the old one ends
    ends_by: float | None = None
    next_: tuple[Mapping[str, Any], bool] | None = None
    exit_code: int | None = None
    said: str = ""

    @property
    def name(self) -> str:
        return f"replica-{self.slot}-{self.starts}"

    def pod(self) -> PodView:
        code = self.exit_code
        why = None if code is None else "Error"
        health = PodHealth(self.ready, 0, None, why, code, self.turn - self.began, self.said)
        return PodView(self.name, "127.0.0.1", health, f"slot-{self.slot}", self.began)


class SimulatedTarget(SlotTarget):
    """A `trimtab.tune.target.Target`, and the `source` of its metrics. `now` is virtual unix seconds; `advance` moves
    it."""

    def __init__(self, template: Mapping[str, Any], simulation: Simulation, now: float) -> None:
        super().__init__(template)
        self.now, self._what = now, simulation
        self.source = SimulatedSource()
        self._random = random.Random(f"{simulation.seed}:door")
        self._round: list[str] = []
        self._began: float | None = None  # the load's start: once every replica answers, as the built-in load
        self._pieces = 0
        self._coming: deque[Arrival] = deque()
        self._waiting: list[Arrival] = []
        self._scraped_at = -float("inf")
        self._slots = [SimulatedSlot(i, template) for i in range(simulation.replicas)]
        for slot in self._slots:
            self._start(slot)

    # --- Target -------------------------------------------------------------------------------------------------------
    @property
    def slots(self) -> Sequence[Slot]:
        return self._slots

    @property
    def busy(self) -> bool:
        return any(s.next_ is not None for s in self._slots)

    async def look(self, now: float) -> None:
        self.note_settled(now)

    def replace(self, slot: Slot, template: Mapping[str, Any], *, candidate: bool) -> None:
        mine = self._slots[slot.slot]
        mine.draining, mine.next_, mine.ends_by = True, (template, candidate), self.now + self._what.drain_seconds

    # --- time ---------------------------------------------------------------------------------------------------------
    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = min(until, self.now + _TURN_SECONDS)
            for slot in self._slots:
                self._turn(slot)
            self._route()
            for slot in self._slots:
                if slot.engine is not None and (slot.ready or slot.draining):
                    slot.engine.run(self.now)
            if self.now - self._scraped_at >= self._what.scrape_seconds:
                self._scrape()

    def _turn(self, slot: SimulatedSlot) -> None:
        slot.turn = self.now
        if slot.next_ is not None and slot.ends_by is not None:
            serving = slot.engine is not None and slot.engine.unfinished and slot.exit_code is None
            if serving and self.now < slot.ends_by:
                return
            if slot.engine is not None:
                slot.engine.end_all()
            (slot.template, slot.candidate), slot.next_, slot.ends_by = slot.next_, None, None
            self._start(slot)
        elif not slot.ready and slot.exit_code is None and self.now - slot.began >= self._what.start_seconds:
            self._started(slot)

    def _start(self, slot: SimulatedSlot) -> None:
        slot.starts += 1
        slot.began = slot.turn = self.now
        slot.ready = slot.draining = False
        slot.engine, slot.exit_code, slot.said = None, None, ""
        self.note_port(slot)

    def _started(self, slot: SimulatedSlot) -> None:
        configuration = configuration_of(slot.template)
        try:
            config = engine_of(self._what.engine, configuration)
            slot.said = self._what.fails(config)
        except InputError as error:
            slot.said = str(error)
        if slot.said:
            slot.exit_code = 1
            return
        slot.engine = VirtualEngine(config, self._what.times, self.now, configuration.integer(_CAP))
        slot.ready = True

    def _route(self) -> None:
        """Each request to a replica that is ready, in rounds as the front door; where none is they wait."""
        if self._began is None:
            if not self._all_ready():
                return
            self._began = self.now
        while self._began + self._pieces * _PIECE_SECONDS < self.now:
            offset = self._began + self._pieces * _PIECE_SECONDS
            self._coming.extend(arrivals(self._what.load(self._pieces, _PIECE_SECONDS), offset))
            self._pieces += 1
        while self._coming and self._coming[0].at < self.now:
            self._waiting.append(self._coming.popleft())
        open_ = {s.name: s for s in self._slots if s.ready and not s.draining}
        for request in self._waiting if open_ else ():
            engine = open_[self._next_name(list(open_))].engine
            assert engine is not None
            engine.offer(request)
        self._waiting = [] if open_ else self._waiting

    def _next_name(self, names: list[str]) -> str:
        self._round = [n for n in self._round if n in names]
        if not self._round:
            self._round = self._random.sample(names, len(names))
        return self._round.pop(0)

    def _scrape(self) -> None:
        self._scraped_at = self.now
        for slot in self._slots:
            if slot.engine is not None and slot.ready:
                self.source.add(slot.name, self.now, slot.engine.scrape())


class SimulatedSource:
    """A `MetricsSource` of what `SimulatedTarget` scraped."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring] = {}

    def add(self, pod: str, at: float, values: Mapping[Any, float]) -> None:
        self._rings.setdefault(pod, Ring(_RETAIN_SECONDS)).add(at, values)

    def watch(self, pods: Sequence[PodRef], keep: Collection[str] = ()) -> None:
        """Everything is watched anyway."""

    def fetch(self, pods: Sequence[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        found = {p.name: self._rings[p.name] for p in pods if p.name in self._rings}
        read = {name: ring.read(start - BASELINE_SECONDS, end, step_seconds) for name, ring in found.items()}
        return Samples({name: series for name, series in read.items() if series})

    def close(self) -> None:
        """Nothing is open."""


def engine_of(base: EngineConfig, configuration: Configuration) -> EngineConfig:
    """`base` with the settings that the configuration names. InputError for a combination that vLLM refuses."""
    known = {name: configuration[name] for name in _SETTINGS if name in configuration}
    changes = {name: value for name, value in known.items() if not isinstance(value, str)}  # "auto" says nothing
    return replace(base, **changes)  # type: ignore[arg-type]
