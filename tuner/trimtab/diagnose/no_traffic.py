"""NoTraffic: nothing arrives, nothing runs, nothing waits. Known zeros only; a metric that is missing proves
nothing."""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    arrived = observation.requests if observation.requests is not None else observation.finished
    if arrived != 0 or observation.running is None or observation.waiting is None:
        return None
    if observation.running > 0.01 or observation.waiting > 0.01:
        return None
    return Finding(
        "NoTraffic", Severity.INFO, 0.95, f"No request in {observation.window_seconds:.0f} s.",
        "Nothing can be measured without traffic; tuning waits.", {"window_seconds": observation.window_seconds},
    )  # fmt: skip
