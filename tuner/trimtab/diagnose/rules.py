"""The table of rules and `diagnose`, which asks them all. Adding a rule touches its own file and this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.diagnose import (
    cancellation,
    hang,
    kv_bound,
    no_traffic,
    over_reservation,
    preemption,
    prefix_cache,
    queue_head_blocked,
    queue_over_capacity,
    scheduler_deadlock,
    slot_bound,
)
from trimtab.diagnose.finding import ORDER, Finding, Limits, Rule, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

RULES: Final[Mapping[str, Rule]] = {
    "SchedulerDeadlock": scheduler_deadlock.rule,
    "Hang": hang.rule,
    "Preemption": preemption.rule,
    "CancellationDominates": cancellation.rule,
    "KvBound": kv_bound.rule,
    "SlotBound": slot_bound.rule,
    "QueueHeadBlocked": queue_head_blocked.rule,
    "QueueOverCapacity": queue_over_capacity.rule,
    "OverReservation": over_reservation.rule,
    "PrefixCacheOff": prefix_cache.off,
    "PrefixCacheNotPaying": prefix_cache.not_paying,
    "PrefixCachePays": prefix_cache.pays,
    "NoTraffic": no_traffic.rule,
}


def diagnose(observation: Observation, configuration: Configuration, limits: Limits) -> tuple[Finding, ...]:
    """Findings, most severe first, then most confident. `Healthy` where requests finished and nothing above Info was
    found."""
    found = [f for rule in RULES.values() if (f := rule(observation, configuration, limits)) is not None]
    if observation.finished and all(f.severity is Severity.INFO for f in found):
        found.append(_healthy(observation))
    return tuple(sorted(found, key=lambda f: (ORDER[f.severity], -f.confidence, f.name)))


def _healthy(observation: Observation) -> Finding:
    """Confidence is the share known of what the rules need: little seen is little praised."""
    o = observation
    needs = (o.preemptions, o.waiting, o.kv_usage, o.running, o.requests)
    known = sum(v is not None for v in needs) / len(needs)
    return Finding(
        "Healthy", Severity.INFO, known, "Requests finish and nothing that the rules know holds the target back.",
        "A trial may still find a better setting.", {"finished": observation.finished or 0.0},
    )  # fmt: skip
