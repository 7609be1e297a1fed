"""A target that is a few places on this machine, real or simulated: which place runs which template, and which is
replaced next. What a replacement takes is the subclass's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trimtab.errors import EngineError, InputError
from trimtab.observe.samples import PodRef
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Desired, PodView, TargetView, Template
from trimtab.tune.argv import configuration_of

NAMESPACE = "local"


class Slot(Protocol):
    """One place. `name` changes with each start, so that metrics of two engines are never taken for one."""

    slot: int
    port: int
    candidate: bool
    ready: bool
    draining: bool

    @property
    def name(self) -> str: ...

    def pod(self) -> PodView: ...


class SlotTarget:
    """A `trimtab.tune.target.Target` but for `look` and the replacing: subclasses give `slots`, `busy` and `replace`.

    One place is replaced at a time, never a second one while another is not ready; a broken one goes first.
    """

    def __init__(self, baseline: Mapping[str, Any]) -> None:
        self._baseline = baseline
        self._candidate: Mapping[str, Any] | None = None
        self._whose = Template.BASELINE
        self._paused = self._held = False
        self._settled_since: float | None = None
        self._ports: dict[str, int] = {}

    # --- the subclass's -----------------------------------------------------------------------------------------------
    @property
    def slots(self) -> Sequence[Slot]:
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """A replacement is under way."""
        raise NotImplementedError

    def replace(self, slot: Slot, template: Mapping[str, Any], *, candidate: bool) -> None:
        """Begin to replace what runs there. Returns at once."""
        raise NotImplementedError

    # --- Target -------------------------------------------------------------------------------------------------------
    @property
    def template(self) -> Mapping[str, Any]:
        return self._baseline

    def view(self) -> TargetView:
        return TargetView(
            template=self._whose,
            paused=self._paused,
            held=self._held,
            replicas=len(self.slots),
            settled=self._settled() and not self._missing(),
            canary=tuple(s.pod() for s in self.slots if s.candidate),
            control=tuple(s.pod() for s in self.slots if not s.candidate),
        )

    def fleet(self, now: float) -> FleetView:
        try:
            configuration, problem = configuration_of(self._baseline), ""
        except (EngineError, InputError) as error:
            configuration, problem = None, error.told
        since = self._settled_since
        return FleetView(
            exists=True,
            replicas=len(self.slots),
            settled=since is not None,
            stable_seconds=now - since if since is not None else 0.0,
            engine_problem=problem,
            configuration=configuration,
        )

    def ref(self, pod: PodView) -> PodRef:
        """Port 0: one of an earlier run, which nobody finds any more."""
        return PodRef(pod.name, NAMESPACE, pod.ip, self._ports.get(pod.name, 0))

    def ready_refs(self) -> list[PodRef]:
        return [PodRef(s.name, NAMESPACE, "127.0.0.1", s.port) for s in self.slots if s.ready and not s.draining]

    def begin(self, candidate: Mapping[str, Any]) -> None:
        self._candidate = candidate

    def drive(self, wanted: Desired) -> None:
        if wanted is Desired.HOLD:
            self._whose, self._held, self._paused = Template.CANDIDATE, True, True
        elif wanted is Desired.SPREAD:
            self._whose, self._held, self._paused = Template.CANDIDATE, True, False
        elif wanted in (Desired.PROMOTE, Desired.RESTORE):
            self._paused = False
            self._whose = Template.CANDIDATE if wanted is Desired.PROMOTE else Template.BASELINE
        else:
            return
        if self.busy:
            return
        slot = self._next(wanted)
        if slot is not None:
            candidate = wanted is not Desired.RESTORE
            template = self._candidate if candidate else self._baseline
            assert template is not None  # begin() came before
            self.replace(slot, template, candidate=candidate)
        elif wanted in (Desired.PROMOTE, Desired.RESTORE) and self._settled():
            self._held = False

    def adopt(self) -> None:
        assert self._candidate is not None
        self._baseline, self._candidate, self._whose = self._candidate, None, Template.BASELINE
        for slot in self.slots:
            slot.candidate = False

    # --- for subclasses -----------------------------------------------------------------------------------------------
    def note_settled(self, now: float) -> None:
        """Call at the end of each look."""
        if not self._settled():
            self._settled_since = None
        elif self._settled_since is None:
            self._settled_since = now

    def note_port(self, slot: Slot) -> None:
        """Call after each start; a name's port is kept, so that an earlier engine's samples are still found."""
        self._ports[slot.name] = slot.port

    def _settled(self) -> bool:
        return not self.busy and self._all_ready()

    def _all_ready(self) -> bool:
        return all(s.ready and not s.draining for s in self.slots)

    def _next(self, wanted: Desired) -> Slot | None:
        if wanted is Desired.HOLD:
            return None if any(s.candidate for s in self.slots) else self.slots[-1]
        missing = sorted(self._missing(), key=lambda s: (s.ready, s.slot))
        if not missing or (missing[0].ready and not self._all_ready()):
            return None
        return missing[0]

    def _missing(self) -> list[Slot]:
        """Places that do not run the template that the target has now. While held, that is meant."""
        if self._paused:
            return []
        return [s for s in self.slots if s.candidate is not (self._whose is Template.CANDIDATE)]
