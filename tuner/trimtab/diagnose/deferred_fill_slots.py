"""DeferredFillSlots: requests parked as `deferred` (grammar compilation, KV transfer) count against max_num_seqs.

Running + deferred = limit ends admission while the KV cache is free (vllm#53130).
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_KV_FREE = 0.85


def rule(case: Case) -> Finding | None:
    deferred, running, kv = case.now("waiting_deferred"), case.now("running"), case.now("kv_usage")
    if deferred is None or deferred < 1 or running is None or (kv or 0.0) > _KV_FREE:
        return None
    slots, waiting = case.engine.slots, case.now("waiting")
    if slots:
        taken = (running + deferred) / case.engines_in_sum(running + deferred) / slots
        if taken < 0.9 or deferred < 0.1 * slots:
            return None
        confidence, of = 0.9 if case.engine.slots_stated else 0.75, f" of {slots:.0f} slots"
    elif deferred >= 0.5 * max(running, 1.0):
        confidence, of = 0.6, ""
    else:
        return None
    return Finding(
        "DeferredFillSlots", Severity.WARNING, confidence,
        f"{running:.0f} running and {deferred:.0f} deferred requests take {running + deferred:.0f}{of}; the KV cache "
        f"is "
        f"{'idle' if kv is None else f'{kv:.0%} used'}.",
        "Find what parks them: grammars compiled for each request (cache them, reuse schemas), or KV transfers that "
        "hang. Newer versions may not count them.",
        evidence(running=running, waiting_deferred=deferred, waiting=waiting, kv_usage=kv, max_num_seqs=slots),
        avoid="More max_num_seqs only parks more of them.", said=case.fact("structured", "disaggregated"),
    )  # fmt: skip
