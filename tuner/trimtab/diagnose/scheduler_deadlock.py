"""SchedulerDeadlock: requests wait and nothing runs for a minute. An alarm, nothing to tune."""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_SECONDS = 60.0


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    waiting, running = observation.waiting, observation.running
    if waiting is None or running is None or observation.window_seconds < _SECONDS:
        return None
    if waiting < 0.5 or running > 0.01 or observation.generated_tokens:
        return None
    return Finding(
        "SchedulerDeadlock", Severity.CRITICAL, 0.9,
        f"{waiting:.1f} requests wait per pod and nothing has run for {observation.window_seconds:.0f} s.",
        "Restart the engine. A prompt longer than the KV cache is never admitted: lower max_model_len then.",
        {"waiting": waiting, "running": running},
    )  # fmt: skip
