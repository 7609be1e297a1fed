"""Hang: work is in the engine, and no step is made. /health answers 200 all the while (vllm#42897), so only this shows.

Told from a slow engine by the heartbeat: steps (iteration_tokens_total_count) or tokens of any kind. Samples that stop
while requests run are a hang too, not idleness. Prompt tokens that flow are a long prefill, not a hang.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, Point, evidence
from trimtab.diagnose.finding import Finding, Severity

_RUNS = 0.5
_PROGRESS = ("generation_tokens_per_second", "prompt_tokens_per_second", "finished_per_second")


def rule(case: Case) -> Finding | None:
    frozen, silent = case.tail(_frozen), case.tail(_silent)
    if silent and len(silent) < len(case.points):
        before = case.points[-len(silent) - 1]
        if (before.get("running") or 0.0) >= _RUNS:
            # a scrape that fails looks the same, unless somebody saw the server answer
            answers = any(p.healthy for p in silent) or bool(case.fact("health_ok"))
            confidence = (0.9 if answers else 0.75) * case.certainty((before, *silent))
            return _finding(case, confidence, before, "and then no sample came any more")
    if not frozen:
        return None
    steps = case.last("steps_per_second")
    text = "and no step was made" if steps == 0 else "and no token came"
    if case.seconds(frozen):
        text += f" for {case.seconds(frozen):.0f} s"
    # without heartbeat and prompt rate, a long prefill looks the same
    known = steps is not None or case.last("prompt_tokens_per_second") is not None or case.window_seconds > 0
    return _finding(case, case.certainty(frozen) * (1.0 if known else 0.9), frozen[-1], text)


def _frozen(point: Point) -> bool | None:
    running, steps = point.get("running"), point.get("steps_per_second")
    if (running or 0.0) < _RUNS:
        return steps == 0 and running is None and (point.get("waiting") or 0.0) >= _RUNS
    progress = [v for name in _PROGRESS if (v := point.get(name)) is not None]
    if steps == 0:
        return not any(progress)
    return point.get("generation_tokens_per_second") == 0 and not any(progress)


def _silent(point: Point) -> bool:
    return not point.values


def _finding(case: Case, confidence: float, point: Point, text: str) -> Finding | None:
    if confidence <= 0:
        return None
    running = point.get("running") or 0.0
    healthy = " /health still answers." if any(p.healthy for p in case.points[-3:]) or case.fact("health_ok") else ""
    return Finding(
        "Hang", Severity.CRITICAL, confidence, f"{running:.0f} requests run {text}.{healthy}",
        "Keep the logs and a stack dump, then restart the engine. Watch iteration_tokens_total_count: frozen for 120 "
        "s with work present is a hang.",
        evidence(running=running, waiting=point.get("waiting"), kv_usage=point.get("kv_usage"),
                 generation_tokens_per_second=point.get("generation_tokens_per_second"),
                 steps_per_second=point.get("steps_per_second"), seconds=case.seconds(case.tail(_frozen))),
        avoid="Do not tune it, do not trust /health, do not scale on its gauges.",
        said=case.fact("health_ok"),
    )  # fmt: skip
