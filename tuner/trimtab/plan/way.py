"""How the next trial takes place: canary or switchback, one pod more or one pod less; or why neither can. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trimtab.plan.block import Block
from trimtab.plan.record import Strategy, TrialKind, TrialRecord
from trimtab.plan.room import full_until
from trimtab.plan.spec import Rollout
from trimtab.plan.switchback import MOST_RESTARTS

_OUTAGE: Final = "takes the only pod down until the next engine has loaded"


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
        text = f"one replica: a switchback restarts it {MOST_RESTARTS - 1} or {MOST_RESTARTS} times, and each restart "
        text += f"{_OUTAGE}. Allow that with spec.rollout.allowDowntime: true, or "
        text += "free a GPU for a second pod" if full else "leave spec.rollout.maxSurge unset where a second pod fits"
        return Block("NoSpareCapacity" if full else "DowntimeNotAllowed", text, hard=True)
    if full:
        return Block("NoSpareCapacity", "one replica, and no node had room for a second pod beside it: free a GPU, run 2 "
                     f"replicas, or set spec.rollout.strategy: Switchback with allowDowntime: true, which {_OUTAGE} at "
                     "each restart", hard=True)  # fmt: skip
    return _alone("a canary needs a control: run 2 replicas, or leave spec.rollout.maxSurge unset where a second pod fits, "
                  "or set spec.rollout.strategy: Switchback")  # fmt: skip


def _alone(text: str) -> Block:
    return Block("TooFewReplicas", text, hard=True)
