"""SlotBound: requests wait while KV cache is free, because all slots are taken.

Where the limit is not known, `running` that stands still while requests wait shows it. A queue with free slots has
another cause (queue_head_blocked, vllm#53130), and raising the limit would not help it.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.compute_bound import saturation
from trimtab.diagnose.finding import Finding, Severity
from trimtab.diagnose.queue_over_capacity import overload

_KV_FREE = 0.8
#: KV use up to which slots may be added
_KV_GOAL = 0.9


def rule(case: Case) -> Finding | None:
    waiting, running, kv = case.now("waiting"), case.now("running"), case.now("kv_usage")
    queued = (case.now("queue_p50_seconds") or 0.0) >= 0.5 or (case.now("ttft_p50_seconds") or 0.0) >= 1.0
    if (
        case.tokens_per_second() == 0
        or running is None
        or not case.slots_full()
        or (waiting < 1 if waiting is not None else not queued)
    ):
        return None
    deferred = case.now("waiting_deferred") or 0.0
    if (kv or 0.0) > _KV_FREE or case.preempting() or saturation(case) or deferred >= 0.5 * (waiting or 1.0):
        return None
    slots = case.engine.slots
    room = _KV_GOAL / max(kv, 0.05) if kv is not None else None
    confidence = (0.85 if slots and case.engine.slots_stated else 0.7) - 0.15 * (kv is None)
    beyond = overload(case)
    if room is not None and (room < 1.25 or (beyond is not None and beyond > 1.1 * min(room, 4.0))):
        confidence -= 0.2  # what slots can give is less than what is asked
    gain = "" if room is None else f" KV leaves room for about {min(room, 10):.1f} times as many."
    return Finding(
        "SlotBound", Severity.WARNING, confidence,
        f"{'Requests' if waiting is None else f'{waiting:.1f} requests'} wait per pod; {running:.0f}"
        f"{f' of {slots:.0f}' if slots else ''} slots are taken"
        f"{'' if kv is None else f', {1 - kv:.0%} of KV is free'}.{gain}",
        f"Raise {' '.join(case.engine.lever('slots')) or 'the limit of running requests'} in steps until KV is about "
        "90% used or TPOT breaks its limit.",
        evidence(waiting=waiting, running=running, kv_usage=kv, max_num_seqs=slots,
                 ttft_p50_seconds=case.now("ttft_p50_seconds"), room=room, overload=beyond),
        avoid="Do not add KV memory: it is not what is short.", tunable=True, settings=case.engine.lever("slots"),
    )  # fmt: skip
