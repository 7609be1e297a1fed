"""The table of rules, and `examine`, which asks them all. Adding a rule touches its own file, this table and `rank`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trimtab.diagnose import (
    arrival_bound,
    busy_not_hung,
    cancellation,
    compute_bound,
    deferred_fill_slots,
    flag_not_the_lever,
    frontend_bound,
    hang,
    head_never_admissible,
    imbalance,
    kv_bound,
    leaked_blocks,
    metrics_missing,
    mixed_traffic,
    no_traffic,
    out_of_memory,
    over_reservation,
    preemption,
    prefill_bound,
    prefix_cache,
    queue_head_blocked,
    queue_over_capacity,
    scheduler_deadlock,
    slot_bound,
    slower_with_age,
)
from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.diagnose.from_observation import case_of
from trimtab.diagnose.rank import ranked
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

Rule = Callable[[Case], Finding | None]

RULES: Final[Mapping[str, Rule]] = {
    "Hang": hang.rule,
    "HeadNeverAdmissible": head_never_admissible.rule,
    "SchedulerDeadlock": scheduler_deadlock.rule,
    "LeakedBlocks": leaked_blocks.rule,
    "OutOfMemory": out_of_memory.rule,
    "CancellationDominates": cancellation.dominates,
    "CancellationHidden": cancellation.hidden,
    "DeathSpiral": preemption.spiral,
    "Preemption": preemption.preemption,
    "DeferredFillSlots": deferred_fill_slots.rule,
    "Imbalance": imbalance.rule,
    "FrontendBound": frontend_bound.rule,
    "FlagNotTheLever": flag_not_the_lever.rule,
    "SlowerWithAge": slower_with_age.rule,
    "BusyNotHung": busy_not_hung.rule,
    "OverReservation": over_reservation.rule,
    "KvBound": kv_bound.rule,
    "ComputeBound": compute_bound.rule,
    "MixedTraffic": mixed_traffic.rule,
    "SlotBound": slot_bound.rule,
    "PrefillBound": prefill_bound.rule,
    "QueueHeadBlocked": queue_head_blocked.rule,
    "QueueOverCapacity": queue_over_capacity.rule,
    "MetricsMissing": metrics_missing.rule,
    "PrefixCacheOff": prefix_cache.off,
    "PrefixCacheNotPaying": prefix_cache.not_paying,
    "PrefixHitsFromPreemption": prefix_cache.from_preemption,
    "PrefixCacheCold": prefix_cache.cold,
    "PrefixCachePays": prefix_cache.pays,
    "ArrivalBound": arrival_bound.rule,
    "NoTraffic": no_traffic.rule,
}


def examine(case: Case) -> tuple[Finding, ...]:
    """Findings, the main cause first. `Healthy` where work gets done and nothing above Info was found."""
    found = [f for rule in RULES.values() if (f := rule(case)) is not None]
    if _works(case) and all(f.severity is Severity.INFO for f in found) and (healthy := _healthy(case)) is not None:
        found.append(healthy)
    return ranked(found)


def diagnose(observation: Observation, configuration: Configuration, limits: Limits) -> tuple[Finding, ...]:
    """`examine` for one window of a target."""
    return examine(case_of([observation], configuration, limits))


def _works(case: Case) -> bool:
    return (case.now("finished_per_second") or case.tokens_per_second() or 0.0) > 0


def _healthy(case: Case) -> Finding | None:
    """Confidence is the share known of what the rules need: little seen is little praised, nothing not at all."""
    needs = ("preemptions_per_second", "waiting", "kv_usage", "running", "requests_per_second")
    known = sum(case.now(n) is not None for n in needs) / len(needs)
    if not known:
        return None
    kv = case.now("kv_usage")
    used = " A well filled KV cache with nothing waiting is a good one." if kv is not None and kv >= 0.85 else ""
    return Finding(
        "Healthy", Severity.INFO, known,
        f"Requests finish and nothing that the rules know holds the target back.{used}",
        "A trial may still find a better setting.",
        evidence(finished_per_second=case.now("finished_per_second"), kv_usage=kv, waiting=case.now("waiting"),
                 generation_tokens_per_second=case.tokens_per_second()),
        avoid="Do not act on KV use alone: alarm on preemption, or on waiting together with KV." if used else "",
    )  # fmt: skip
