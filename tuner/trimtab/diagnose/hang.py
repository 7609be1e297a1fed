"""Hang: requests run and no token comes. /health answers 200 all the while (vllm#42897), so only this shows it.

Samples that stop coming are the metrics source's business: a missing window is unknown here, not idleness.
"""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_SECONDS = 60.0


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    running = observation.running
    if running is None or observation.generated_tokens is None or observation.window_seconds < _SECONDS:
        return None
    if running < 0.5 or observation.generated_tokens > 0:
        return None
    return Finding(
        "Hang", Severity.CRITICAL, 0.85,
        f"{running:.1f} requests run per pod and no token was generated in {observation.window_seconds:.0f} s.",
        "Restart the engine; do not tune it.", {"running": running, "window_seconds": observation.window_seconds},
    )  # fmt: skip
