"""Cases for the tests of rules: a written report, or an operator's window."""

from __future__ import annotations

from typing import Any

from trimtab.diagnose.case import Case
from trimtab.diagnose.finding import Finding, Limits
from trimtab.diagnose.report_file import case_of
from trimtab.diagnose.rules import RULES, diagnose, examine
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation

NO_LIMITS = Limits()
SEQS = Configuration.of(max_num_seqs=64)
INF = float("inf")


def case(*rows: dict[str, Any], every: float = 60.0, facts: list[str] | None = None, **report: Any) -> Case:
    """A report whose observations are `every` seconds apart; engine, args and the like as keywords."""
    timed = [{"t_seconds": i * every, **row} for i, row in enumerate(rows)]
    return case_of({"engine": "vllm", "observations": timed, "facts": facts or [], **report})


def found(name: str, *rows: dict[str, Any], **report: Any) -> Finding | None:
    """What one rule says."""
    return RULES[name](case(*rows, **report))


def lead(*rows: dict[str, Any], **report: Any) -> Finding:
    """The first finding of all rules."""
    return examine(case(*rows, **report))[0]


def busy(**values: Any) -> dict[str, Any]:
    """A moment of an engine that works well, with changes."""
    return {
        "running": 40, "waiting": 0, "kv_usage": 0.5, "preemptions_per_second": 0, "prompt_tokens_per_second": 2000,
        "generation_tokens_per_second": 1500, "requests_per_second": 5, "finished_per_second": 5, **values,
    }  # fmt: skip


def observed(**values: object) -> Observation:
    """A target that works well, with changes."""
    base: dict[str, object] = {
        "pods": 2, "window_seconds": 300.0, "requests": 1000.0, "finished": 995.0, "preemptions": 0.0,
        "generated_tokens": 2e5, "useful_tokens": 2e5, "reserved_tokens": 3e5, "running": 20.0, "waiting": 0.0,
        "kv_usage": 0.5, "kv_usage_max": 0.6, "prefix_queries": 1e6, "prefix_hits": 1e5,
    }  # fmt: skip
    return Observation(**{**base, **values})  # type: ignore[arg-type]


def names(observation: Observation, configuration: Configuration = SEQS, limits: Limits = NO_LIMITS) -> list[str]:
    return [f.name for f in diagnose(observation, configuration, limits)]


def queue(seconds_below: float) -> Histogram:
    return Histogram((1.0, 10.0, INF), (seconds_below, 100.0, 100.0), 300.0)
