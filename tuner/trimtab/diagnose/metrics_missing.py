"""MetricsMissing: what the rules need is not there. --disable-log-stats removes every vllm: series."""

from __future__ import annotations

from typing import Final

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

NEEDED: Final = ("running", "waiting", "kv_usage", "preemptions_per_second", "generation_tokens_per_second")


def rule(case: Case) -> Finding | None:
    missing = [name for name in NEEDED if not case.series(name)]
    off = case.engine.has("disable-log-stats") or bool(case.fact("stats_off"))
    if len(missing) < len(NEEDED) and not (off and len(missing) >= 3):
        return None
    why = " --disable-log-stats removes them." if off else ""
    return Finding(
        "MetricsMissing", Severity.WARNING, 0.95 if off else 0.75,
        f"None of {', '.join(missing)} is known.{why}",
        "Leave out --disable-log-stats." if off else
        "Check that /metrics is scraped (port, path, NetworkPolicy), that names match the engine's version, and that "
        "--disable-log-stats is not set.",
        evidence(points=float(len(case.points)), missing=float(len(missing))),
        avoid="Do not tune blind, and do not read missing as idle.", said=case.fact("stats_off"),
    )  # fmt: skip
