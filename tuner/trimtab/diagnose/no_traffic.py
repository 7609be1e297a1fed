"""NoTraffic: nothing arrives, nothing runs, nothing waits. Known zeros only; a missing metric proves nothing."""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity


def rule(case: Case) -> Finding | None:
    arrived = case.first_of("requests_per_second", "finished_per_second", "generation_tokens_per_second")
    running, waiting = case.now("running"), case.now("waiting")
    if arrived is None or arrived[1] > 0 or running is None or waiting is None or running > 0.01 or waiting > 0.01:
        return None
    if (case.now("kv_usage") or 0.0) > 0.1:
        return None  # idle, and blocks are held: see leaked_blocks
    seconds = case.seconds()
    return Finding(
        "NoTraffic", Severity.INFO, 0.95, f"No request{'' if seconds is None else f' in {seconds:.0f} s'}.",
        "Nothing can be measured without traffic; tuning waits.", evidence(window_seconds=seconds, running=running),
    )  # fmt: skip
