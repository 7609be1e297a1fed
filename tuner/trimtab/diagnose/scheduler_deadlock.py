"""SchedulerDeadlock: requests wait, nothing runs, the KV cache is empty. An alarm, nothing to tune.

With KV held while nothing runs it is a leak (leaked_blocks); with a prompt above the pool see head_never_admissible.
"""

from __future__ import annotations

import math

from trimtab.diagnose.case import Case, Point, evidence
from trimtab.diagnose.finding import Finding, Severity

_HELD = 0.3
#: nothing has run for so long: sure
_FULL_SECONDS = 60.0


def rule(case: Case) -> Finding | None:
    stuck = case.tail(standstill)
    if not stuck or (stuck[-1].get("kv_usage") or 0.0) > _HELD:
        return None
    if (stuck[-1].get("waiting_deferred") or 0.0) >= 0.9 * (case.engine.slots or math.inf):
        return None  # see deferred_fill_slots
    last, confidence = stuck[-1], case.certainty(stuck, _FULL_SECONDS)
    if confidence <= 0:
        return None
    waiting = last.get("waiting") or 0.0
    deferred = last.get("waiting_deferred") or 0.0
    parked = f" {deferred:.0f} of them are deferred (grammar, KV transfer)." if deferred >= 0.5 * waiting else ""
    return Finding(
        "SchedulerDeadlock", Severity.CRITICAL, confidence * (0.95 if last.get("kv_usage") is not None else 0.85),
        f"{waiting:.1f} requests wait, nothing runs and the KV cache is idle.{parked}",
        "Restart the engine and keep its log. If it comes back, look at the first request in the queue: a prompt "
        "that needs more KV than the whole pool is never admitted (lower max_model_len, refuse it at the gateway).",
        evidence(waiting=waiting, running=last.get("running"), kv_usage=last.get("kv_usage"),
                 waiting_deferred=last.get("waiting_deferred"), seconds=case.seconds(stuck)),
        avoid="Do not raise max_num_seqs: no slot is taken.",
    )  # fmt: skip


def standstill(point: Point) -> bool:
    """Requests wait, none runs, no token comes."""
    running, waiting = point.get("running"), point.get("waiting")
    if running is None or waiting is None or running > 0.01 or waiting < 0.5:
        return False
    return not point.get("generation_tokens_per_second") and not point.get("prompt_tokens_per_second")
