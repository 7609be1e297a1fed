"""QueueHeadBlocked: requests wait although slots and KV cache are free.

A prompt that needs more KV than is free blocks all behind it (strict FCFS; vllm#39734), adapters beyond --max-loras
wait for a place, or parked requests stand in the queue. Raising max_num_seqs helps none of these.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_KV_FREE = 0.82
_SLOTS_FREE = 0.85
_FEW = 4.0


def rule(case: Case) -> Finding | None:
    waiting, running, kv = case.now("waiting"), case.now("running"), case.now("kv_usage")
    if waiting is None or running is None or kv is None or waiting < 1 or kv > _KV_FREE or running <= 0.01:
        return None
    share, deferred = case.slot_share(), case.now("waiting_deferred") or 0.0
    if share is None and case.slots_full() is None and len(case.points) < 3:
        return None
    if case.slots_full() or (share is not None and share >= _SLOTS_FREE) or case.preempting():
        return None
    said, lora = case.fact("long_prompt"), case.engine.has("enable-lora", "lora-modules", "max-loras")
    adapters = case.fact("lora") if lora or case.fact("lora") else ()
    typical, longest = case.now("prompt_tokens_p50"), case.highest("prompt_tokens_p99")
    giants = bool(typical) and longest is not None and longest >= 8 * (typical or 1.0)
    confidence = (
        0.5 + 0.15 * (share is not None) + 0.15 * bool(said or adapters or giants) + 0.1 * (deferred >= 0.5 * waiting)
    )
    # a request or two that wait now and then wait for the step's budget
    confidence -= 0.2 * ((case.highest("waiting") or 0.0) < max(_FEW, 0.2 * running))
    slots = f" of {case.engine.slots:.0f}" if case.engine.slots else ""
    first = "Requests wait for adapters beyond --max-loras: raise it or route adapters together. " if adapters else ""
    return Finding(
        "QueueHeadBlocked", Severity.WARNING, confidence,
        f"{waiting:.1f} requests wait per pod with {running:.0f}{slots} slots and {kv:.0%} of the KV cache in use.",
        f"{first}Look at the first request in the queue: a very long prompt holds back all behind it. Give long "
        "prompts a target of their own, bound max_model_len, or look for requests parked as deferred.",
        evidence(waiting=waiting, running=running, kv_usage=kv, max_num_seqs=case.engine.slots,
                 waiting_deferred=deferred or None, prompt_tokens_p99=case.now("prompt_tokens_p99")),
        avoid="Raising max_num_seqs will not help: slots are free.", said=(*said, *adapters),
    )  # fmt: skip
