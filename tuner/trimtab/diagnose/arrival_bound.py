"""ArrivalBound: the engine has room in every respect; it serves what arrives. No setting makes more requests come."""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_ROOM = 0.6


def rule(case: Case) -> Finding | None:
    waiting, running, kv = case.now("waiting"), case.now("running"), case.now("kv_usage")
    moves = max(case.tokens_per_second() or 0.0, case.now("requests_per_second") or 0.0)
    share = case.slot_share()
    if waiting is None or running is None or kv is None or waiting >= 0.5 or kv > _ROOM or moves <= 0:
        return None
    if (share is not None and share > _ROOM) or case.slots_full() or case.preempting() or _late(case):
        return None
    return Finding(
        "ArrivalBound", Severity.INFO, 0.8 if share is not None else 0.65,
        f"Nothing waits, {running:.0f} requests run, {kv:.0%} of the KV cache is used: the load is the limit.",
        "Nothing to tune for throughput. For cost: fewer replicas; for speed of one answer: hardware, quantization, "
        "speculation.",
        evidence(running=running, waiting=waiting, kv_usage=kv, max_num_seqs=case.engine.slots,
                 requests_per_second=case.now("requests_per_second"),
                 generation_tokens_per_second=case.tokens_per_second()),
        avoid="Do not raise limits that nothing touches.",
    )  # fmt: skip


def _late(case: Case) -> bool:
    limits = ((case.limits.ttft_seconds, "ttft_p50_seconds"), (case.limits.tpot_seconds, "tpot_mean_seconds"))
    return any(limit is not None and (case.now(name) or 0.0) > limit for limit, name in limits)
