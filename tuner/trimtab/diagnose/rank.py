"""Of all findings, the one cause; the rest are its consequences or context. One table each.

Faults come before cancellation, that before what stands beside the engine, and settings last: no setting is advised
where the engine is broken, clients leave, or the load is above capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from trimtab.diagnose.finding import ORDER, Finding, Role, Severity

#: who is the cause where several are found and believed; the first wins
PRECEDENCE: Final = (
    "Hang", "HeadNeverAdmissible", "LeakedBlocks", "SchedulerDeadlock", "OutOfMemory",
    "CancellationDominates", "CancellationHidden",
    "DeferredFillSlots", "Imbalance", "FrontendBound", "FlagNotTheLever", "SlowerWithAge", "BusyNotHung",
    "DeathSpiral", "Preemption", "OverReservation", "KvBound", "ComputeBound", "PrefixCacheOff",
    "SlotBound", "QueueHeadBlocked", "MixedTraffic", "PrefillBound", "QueueOverCapacity", "MetricsMissing",
)  # fmt: skip
_QUEUES: Final = frozenset({"KvBound", "SlotBound", "PrefillBound", "QueueHeadBlocked", "QueueOverCapacity"})
_PRESSURE: Final = _QUEUES | {
    "DeathSpiral",
    "Preemption",
    "ComputeBound",
    "OverReservation",
    "PrefixHitsFromPreemption",
}
#: cause -> what follows from it
FOLLOWS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(
        ("Hang", "HeadNeverAdmissible", "LeakedBlocks", "SchedulerDeadlock"),
        _PRESSURE
        | {"CancellationDominates", "CancellationHidden", "SchedulerDeadlock", "BusyNotHung", "SlowerWithAge"},
    ),
    **dict.fromkeys(("CancellationDominates", "CancellationHidden"), _PRESSURE),
    "OutOfMemory": frozenset({"MetricsMissing"}),
    "DeferredFillSlots": _QUEUES,
    "Imbalance": _PRESSURE | {"PrefixCacheCold"},
    "FrontendBound": frozenset({"CancellationDominates", "FlagNotTheLever"}),
    "FlagNotTheLever": frozenset({"ComputeBound"}),
    "DeathSpiral": _QUEUES | {"PrefixHitsFromPreemption", "SlowerWithAge"},
    "Preemption": _QUEUES | {"PrefixHitsFromPreemption"},
    "OverReservation": _QUEUES,
    **dict.fromkeys(("KvBound", "SlotBound", "PrefillBound", "ComputeBound"), frozenset({"QueueOverCapacity"})),
    "MixedTraffic": frozenset({"PrefillBound"}),
    "QueueHeadBlocked": frozenset({"QueueOverCapacity", "MixedTraffic"}),
    "PrefixCacheOff": frozenset({"PrefillBound", "QueueOverCapacity", "KvBound"}),
}
#: at or above it a finding is believed; below, the most confident one leads
BELIEVED: Final = 0.7
_LEAST: Final = 0.4
#: causes that a bigger queue cannot be blamed on settings for
_BEYOND: Final = frozenset({"SlotBound", "KvBound", "PrefillBound"})


def ranked(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The main cause first, then its consequences, then context; each most severe, most confident first."""
    main = main_cause(found)
    if main is None:
        return tuple(sorted(found, key=_order))
    follows = FOLLOWS.get(main.name, frozenset())
    roles = {f.name: Role.CONSEQUENCE if f.name in follows else Role.CONTEXT for f in found}
    rest = [replace(_left_alone(f, main), role=roles[f.name]) for f in found if f is not main]
    rest.sort(key=lambda f: (f.role is not Role.CONSEQUENCE, *_order(f)))
    return (replace(main, role=Role.MAIN), *rest)


def _left_alone(f: Finding, main: Finding) -> Finding:
    """Beside a cause that no setting mends, nothing is to be tuned."""
    if main.tunable or not f.tunable:
        return f
    return replace(f, tunable=False, settings=(), advice=f"Mend {main.name} first, then look again.")


def main_cause(found: Sequence[Finding]) -> Finding | None:
    grave = [f for f in found if f.severity is not Severity.INFO and f.confidence >= _LEAST]
    if not grave:
        return None
    believed = [f for f in grave if f.confidence >= BELIEVED]
    if not believed:
        return max(grave, key=lambda f: (f.confidence, -_place(f)))
    first = min(believed, key=_place)
    capacity = next((f for f in believed if f.name == "QueueOverCapacity"), None)
    beyond = (capacity.evidence.get("overload") or 0.0) if capacity else 0.0
    if capacity is not None and first.name in _BEYOND and beyond > 2.5 * first.evidence.get("room", 1.0):
        return capacity  # no setting makes up for that much
    return first


def _place(f: Finding) -> int:
    return PRECEDENCE.index(f.name) if f.name in PRECEDENCE else len(PRECEDENCE)


def _order(f: Finding) -> tuple[int, float, str]:
    return ORDER[f.severity], -f.confidence, f.name
