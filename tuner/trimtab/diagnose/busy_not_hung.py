"""BusyNotHung: the health check fails while steps are made. A probe of 2 s on a busy server restarts a good engine
(gonka#1421: 8 false restarts a day and more)."""

from __future__ import annotations

from trimtab.diagnose.case import Case, Point, evidence
from trimtab.diagnose.finding import Finding, Severity


def rule(case: Case) -> Finding | None:
    moving = [p for p in case.points if _moves(p)]
    missed = [p for p in moving if p.healthy is False]
    said = case.fact("health_bad")
    if not moving or not (missed or said) or not _moves(case.points[-1]):
        return None
    rate = case.tokens_per_second()
    shown = "" if rate is None else f" at {rate:.0f} tokens/s"
    return Finding(
        "BusyNotHung", Severity.WARNING, 0.8 if missed else 0.6,
        f"The health check fails, yet the engine works{shown}: it is busy, not hung.",
        "Give the liveness probe a longer time-out and more failures (or a startup probe), and judge life by "
        "iteration_tokens_total_count.",
        evidence(generation_tokens_per_second=rate, steps_per_second=case.now("steps_per_second"),
                 failed_checks=float(len(missed)) if missed else None),
        avoid="Do not restart it for this: each restart empties the cache and makes it busier.", said=said,
    )  # fmt: skip


def _moves(point: Point) -> bool:
    return (point.get("generation_tokens_per_second") or 0.0) > 0 or (point.get("steps_per_second") or 0.0) > 0
