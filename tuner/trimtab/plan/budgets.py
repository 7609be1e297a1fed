"""How much may go on at the same time and within a day, over all tuners that one operator serves. Pure.

All that is counted stands in TuningTrials, so that a restarted operator counts the same. Who waits is asked anew: the
order of the waiting (whose last trial is longest ago, a tuner without trials by its age) stands in objects, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.plan.block import Block

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Limits:
    """concurrent_trials: in flight over all served namespaces. restarts_per_namespace_per_day: pods that trials start
    anew, over all tuners of a namespace. 0 is no limit."""

    concurrent_trials: int = 0
    restarts_per_namespace_per_day: int = 0


@dataclass(frozen=True)
class Flight:
    """A trial in flight, or a place taken for one that is about to be created. owner: its tuner's uid."""

    owner: str
    namespace: str
    target_uid: str
    trial: str = ""


@dataclass(frozen=True)
class Spending:
    """One trial's pod restarts. open: it is in flight and may need up to `need` in all."""

    started_at: float
    restarts: int
    need: int = 0
    open: bool = False


@dataclass(frozen=True)
class Applicant:
    """A tuner whose next trial is due. since: unix seconds of its last trial's end, or of its creation. need: pods the
    trial may restart; 0 where it restarts none."""

    owner: str
    namespace: str
    target_uid: str
    since: float
    need: int


@dataclass(frozen=True)
class Crowd:
    """What else goes on. waiting: the others that were refused a place a moment ago, by uid -> since."""

    flights: Sequence[Flight] = ()
    waiting: Mapping[str, float] = field(default_factory=dict)
    #: of the applicant's namespace, its own among them; None where no budget is set and nothing was asked
    spendings: Sequence[Spending] | None = None


def refused(who: Applicant, crowd: Crowd, limits: Limits, now: float) -> Block | None:
    """Why this tuner's trial may not begin now, None when it may."""
    return _same_target(who, crowd) or _namespace(who, crowd, limits, now) or _places(who, crowd, limits)


def _same_target(who: Applicant, crowd: Crowd) -> Block | None:
    other = next((f for f in crowd.flights if f.target_uid == who.target_uid and f.owner != who.owner), None)
    if other is None:
        return None
    return Block("TargetInTrial", f"trial {other.trial or 'of another tuner'} holds the Deployment: wait for its end")


def _namespace(who: Applicant, crowd: Crowd, limits: Limits, now: float) -> Block | None:
    limit = limits.restarts_per_namespace_per_day
    if not limit or not who.need or crowd.spendings is None:
        return None
    if who.need > limit:
        text = (
            f"a trial may restart {who.need} pods, and all tuners of this namespace together may restart {limit} in "
            "24 h: raise limits.restartsPerNamespacePerDay of the chart"
        )
        return Block("NamespaceBudgetTooSmall", text, hard=True)
    if spent(crowd.spendings, now) + who.need > limit:
        text = (
            f"the tuners of this namespace have spent their {limit} pod restarts in 24 h "
            "(limits.restartsPerNamespacePerDay)"
        )
        return Block("NamespaceBudgetSpent", text)
    return None


def spent(spendings: Sequence[Spending], now: float) -> int:
    """Restarts of the last 24 h; what is in flight counts with all it may still need."""
    return sum(max(s.restarts, s.need) if s.open else s.restarts for s in spendings
               if s.open or now - s.started_at < DAY_SECONDS)  # fmt: skip


def _places(who: Applicant, crowd: Crowd, limits: Limits) -> Block | None:
    limit = limits.concurrent_trials
    if not limit:
        return None
    taken = len({f.owner for f in crowd.flights if f.owner != who.owner})
    first = sorted((since, owner) for owner, since in crowd.waiting.items() if owner != who.owner)
    before_me = sum(entry < (who.since, who.owner) for entry in first)
    if taken + before_me < limit:
        return None
    text = (
        f"at most {limit} trials run at the same time (limits.concurrentTrials of the chart); the tuner that has "
        "waited longest goes next"
    )
    return Block("TooManyTrials", text)
