"""KvBound: requests wait and the KV cache is full. High KV use with nothing waiting is a well used cache
(vllm#18115)."""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_FULL = 0.9


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    waiting, kv = observation.waiting, observation.kv_usage
    if waiting is None or kv is None or waiting < 1 or kv < _FULL:
        return None
    return Finding(
        "KvBound", Severity.WARNING, 0.8,
        f"{waiting:.1f} requests wait per pod and the KV cache is {kv:.0%} full.",
        "More slots will not help. Fewer may end preemption; else shorter outputs, more KV memory, more replicas.",
        {"waiting": waiting, "kv_usage": kv},
    )  # fmt: skip
