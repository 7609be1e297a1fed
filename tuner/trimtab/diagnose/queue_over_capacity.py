"""QueueOverCapacity: more is asked than this target can give: requests queue past the TTFT limit, or the queue grows
and tokens/s do not. Scale out or cap the queue."""

from __future__ import annotations

from itertools import pairwise

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity


def rule(case: Case) -> Finding | None:
    limit, queue, ttft = case.limits.ttft_seconds, case.now("queue_p50_seconds"), case.now("ttft_p50_seconds")
    waiting, beyond = case.now("waiting"), overload(case)
    late = limit is not None and ((queue or 0.0) > limit or ((ttft or 0.0) > limit and (waiting or 0.0) >= 1))
    grown = grows(case)
    exceeded = beyond is not None and beyond >= 1.2 and (waiting or 0.0) >= 1
    both = (waiting or 0.0) >= 1 and case.slots_full() is True and (case.now("kv_usage") or 0.0) >= 0.8
    if not (late or grown or exceeded or both) or case.preempting():
        return None
    share, kv = case.slot_share(), case.now("kv_usage")
    room = share is not None and share < 0.85 and kv is not None and kv < 0.8
    confidence = min(0.95, 0.45 + 0.25 * late + 0.2 * grown + 0.2 * exceeded + 0.2 * both) - 0.2 * room
    shown = (
        f"Half of the requests queue for more than {queue or ttft:.3g} s; the TTFT limit is {limit:g} s." if late
        else f"The queue grows to {case.last('waiting') or 0:.0f} while tokens/s do not." if grown
        else f"{beyond:.1f} times as many requests come as finish." if exceeded
        else f"{waiting:.0f} requests wait with slots and KV cache both full."
    )  # fmt: skip
    return Finding(
        "QueueOverCapacity", Severity.WARNING, confidence, f"{shown} The offered load is above capacity.",
        "Scale out, or cap the queue (--max-num-queued-reqs, or at the gateway) and refuse early.",
        evidence(queue_p50_seconds=queue, ttft_p50_seconds=ttft, ttft_limit_seconds=limit, waiting=case.last("waiting"),
                 running=case.now("running"), kv_usage=case.now("kv_usage"), overload=beyond,
                 requests_per_second=case.now("requests_per_second")),
        avoid="Do not look for the flag that serves more than the GPU can.",
    )  # fmt: skip


def grows(case: Case) -> bool:
    """The queue at least doubles to a size that matters, over three points or more, and throughput stays."""
    values = case.series("waiting")
    if len(values) < 3 or values[-1] < 8 or (case.change("waiting") or 0.0) < 2:
        return False
    rises = sum(b >= a for a, b in pairwise(values))
    tokens = case.change("generation_tokens_per_second")
    prompts = case.change("prompt_tokens_per_second")
    return rises >= 0.7 * (len(values) - 1) and tokens is not None and tokens <= 1.15 and (prompts or 0.0) <= 1.3


def overload(case: Case) -> float | None:
    """Arrivals / served requests: from both rates, or from how fast the queue grows; None where neither is known."""
    offered, finished = case.now("requests_per_second"), case.now("finished_per_second")
    if offered is not None and finished:
        return offered / finished
    waiting = [(p.t_seconds, w) for p in case.points if p.t_seconds is not None and (w := p.get("waiting")) is not None]
    if not offered or len(waiting) < 3 or waiting[-1][0] <= waiting[0][0]:
        return None
    growth = (waiting[-1][1] - waiting[0][1]) / (waiting[-1][0] - waiting[0][0])
    served = offered - growth
    return offered / served if served > 0.01 * offered else None
