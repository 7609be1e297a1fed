"""Places for trials over all tuners that this process serves: one at a time asks, and a place is taken before the trial
exists, so that two passes cannot both take the last one.

What is counted are TuningTrials (label `trimtab.dev/active`), so a new process counts the same; only the places of
trials that are about to be created, and who waits, are memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.plan.block import Block
from trimtab.plan.budgets import DAY_SECONDS, Applicant, Crowd, Flight, Limits, Spending, refused
from trimtab.plan.record import Phase, Strategy, TrialKind, TrialRecord
from trimtab.plan.switchback import MOST_RESTARTS
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import ACTIVE_LABEL, record_of, unix

Json = dict[str, Any]
#: one that waits asks again within this; 500 tuners are looked at every 100 s
WAITING_SECONDS: Final = 180.0
#: the namespace's trials are large: their sum is kept for this long
_SUM_SECONDS: Final = 30.0


@dataclass
class Admission:
    """scopes: the namespaces served; None is all."""

    cluster: Cluster
    limits: Limits
    scopes: Sequence[str | None]
    clock: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _places: dict[str, Flight] = field(default_factory=dict)
    #: uid -> (since, when it last asked)
    _waiting: dict[str, tuple[float, float]] = field(default_factory=dict)
    _sums: dict[str, tuple[float, list[Spending]]] = field(default_factory=dict)

    def ask(self, tuner: Json, target_uid: str, need: int, trials: Sequence[Json]) -> Block | None:
        """Takes a place for this tuner's next trial, which may restart `need` pods, or says why there is none.
        trials: its own. `done` gives the place back."""
        meta, now = tuner["metadata"], self.clock()
        who = Applicant(meta["uid"], meta["namespace"], target_uid, _since(meta, trials), need)
        with self._lock:
            block = refused(who, self._crowd(who, now), self.limits, now)
            if block is None:
                self._places[who.owner] = Flight(who.owner, who.namespace, target_uid)
                self._waiting.pop(who.owner, None)
            else:
                self._waiting[who.owner] = (who.since, now)
            return block

    def done(self, tuner: Json) -> None:
        """The trial exists now, or will not: its place is no longer held in memory."""
        with self._lock:
            self._places.pop(tuner["metadata"]["uid"], None)
            self._sums.pop(tuner["metadata"]["namespace"], None)

    def full(self, tuner: Json) -> bool:
        """Whether a trial that a person has approved must wait for a place."""
        limit = self.limits.concurrent_trials
        others = {f.owner for f in self._flights()} - {tuner["metadata"]["uid"]} if limit else set()
        return bool(limit) and len(others) >= limit

    def _crowd(self, who: Applicant, now: float) -> Crowd:
        waiting = {uid: since for uid, (since, asked) in self._waiting.items() if now - asked < WAITING_SECONDS}
        self._waiting = {uid: kept for uid, kept in self._waiting.items() if uid in waiting}
        flights = [*self._flights(), *self._places.values()]
        if not self.limits.restarts_per_namespace_per_day or not who.need:
            return Crowd(flights, waiting)
        return Crowd(flights, waiting, self._spendings(who.namespace, now))

    def _flights(self) -> list[Flight]:
        """Trials in flight; one that waits for approval has taken nothing yet."""
        found = [t for scope in self.scopes for t in self.cluster.list("TuningTrial", scope, {ACTIVE_LABEL: "true"})]
        records = ((t, record_of(t)) for t in found)
        return [_flight(t) for t, r in records if not r.ended and r.phase is not Phase.AWAITING_APPROVAL]

    def _spendings(self, namespace: str, now: float) -> list[Spending]:
        at, known = self._sums.get(namespace, (0.0, []))
        if at and 0 <= now - at < _SUM_SECONDS:
            return known
        records = [record_of(t) for t in self.cluster.list("TuningTrial", namespace)]
        found = [
            Spending(r.started_at, r.restarts, _need(r), open=not r.ended)
            for r in records
            if not r.ended or now - r.started_at < DAY_SECONDS
        ]
        self._sums[namespace] = (now, found)
        return found


def _need(record: TrialRecord) -> int:
    """What a trial in flight may still restart in all, as it was asked for at its start."""
    if record.kind is TrialKind.POLICY:
        return 0
    return MOST_RESTARTS if record.strategy is Strategy.SWITCHBACK else record.replicas + 1


def _since(meta: Json, trials: Sequence[Json]) -> float:
    ends = [record_of(t).finished_at or 0.0 for t in trials]
    created = meta.get("creationTimestamp")
    return max([*ends, unix(created) if created else 0.0])


def _flight(trial: Json) -> Flight:
    meta = trial["metadata"]
    owner = next((r["uid"] for r in meta.get("ownerReferences") or () if r.get("controller")), "")
    return Flight(owner, meta["namespace"], trial["spec"]["baseline"]["deploymentUid"], meta["name"])
