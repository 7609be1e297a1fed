"""CancellationDominates: many requests end because the client left.

vLLM counts no disconnect, so this is HTTP requests minus finished ones. Behind a proxy that keeps the upstream open
an abort rate of 0 proves nothing (litellm#30244); and the engine is rarely the one that aborts (vllm#2484: client or
proxy time-outs).
"""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_DOMINATES = 0.10
_MIN_REQUESTS = 20


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    rate = observation.abort_rate
    if rate is None or rate <= _DOMINATES or (observation.requests or 0) < _MIN_REQUESTS:
        return None
    return Finding(
        "CancellationDominates", Severity.WARNING, 0.7,
        f"About {rate:.0%} of requests were not finished by the engine (an estimate: vLLM counts no disconnect).",
        "Tuning cannot fix the cause. Look for round ages (client and proxy time-outs); cut at the gateway first.",
        {"abort_rate": rate},
    )  # fmt: skip
