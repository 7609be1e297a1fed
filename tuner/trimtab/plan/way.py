"""How the next trial takes place: canary or switchback, one pod more or one pod less; or why neither can. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trimtab.plan.block import Block
from trimtab.plan.record import Strategy, TrialKind, TrialRecord
from trimtab.plan.room import full_until
from trimtab.plan.spec import Rollout
from trimtab.plan.switchback import MOST_RESTARTS

_OUTAGES: Final = (
    f"one replica: a switchback restarts it {MOST_RESTARTS - 1} or {MOST_RESTARTS} times, and each time nothing serves "
    "until the next engine has loaded. Allow that with spec.rollout.allowDowntime: true, or "
)
_ROOM: Final = "free a GPU for a second pod"
_UNSET: Final = "leave spec.rollout.maxSurge unset where a second pod fits"
_SWITCH: Final = (
    "set spec.rollout.strategy: Switchback with allowDowntime: true (each of its restarts is an outage until the "
    "engine has loaded)"
)
_FULL: Final = (
    "one replica, and no node had room for a second pod beside it: free a GPU and set spec.rollout.maxSurge: 1, run 2 "
    f"replicas, or {_SWITCH}"
)
_CONTROL: Final = (
    f"a canary needs a control: run 2 replicas, leave spec.rollout.maxSurge unset where a second pod fits, or {_SWITCH}"
)


class Way(NamedTuple):
    """strategy and maxSurge of a trial; restarts: the most that it may need, a promotion that is taken back aside."""

    strategy: Strategy
    max_surge: int
    restarts: int


def way(rollout: Rollout, replicas: int, kind: TrialKind, trials: Sequence[TrialRecord], now: float) -> Way | Block:
    """The way of a trial that begins now. trials: of this target, of any question, from the last hours at least."""
    if replicas == 0:
        return Block("ScaledToZero", "the target has no replicas")
    if kind is TrialKind.POLICY:
        return Way(Strategy.CANARY, 0, 0) if replicas >= 2 else _alone("a policy's canary needs a control: 2 replicas")
    full = rollout.max_surge is None and full_until(trials) > now
    surge = rollout.max_surge if rollout.max_surge is not None else int(not full)
    if replicas >= 2:
        return Way(Strategy.CANARY, surge, replicas + 1)
    return _for_one(rollout, surge, full=full)


def _for_one(rollout: Rollout, surge: int, *, full: bool) -> Way | Block:
    switchback = rollout.strategy == "Switchback"
    if surge:
        return Way(Strategy.SWITCHBACK, 1, MOST_RESTARTS) if switchback else Way(Strategy.CANARY, 1, 2)
    if switchback and rollout.allow_downtime:
        return Way(Strategy.SWITCHBACK, 0, MOST_RESTARTS)
    if switchback:
        return Block(
            "NoSpareCapacity" if full else "DowntimeNotAllowed", _OUTAGES + (_ROOM if full else _UNSET), hard=True
        )
    return Block("NoSpareCapacity", _FULL, hard=True) if full else _alone(_CONTROL)


def _alone(text: str) -> Block:
    return Block("TooFewReplicas", text, hard=True)
