"""Preemption: running requests are thrown out and computed again because the KV cache is full.

Counted per finished request, never inferred from KV use alone: 95.8% KV with nothing waiting ran at full speed
(vllm#18115). num_preemptions_total lags a little: it travels with the victim's next output.
"""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation, ratio

#: preemptions per finished request
_WARNING, _CRITICAL = 0.05, 1.0
_FULL = 0.85


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    rate = ratio(observation.preemptions, observation.finished)
    if rate is None and observation.finished == 0 and observation.preemptions:
        rate = observation.preemptions  # preempting and finishing nothing: the worst of all
    if rate is None or rate < _WARNING:
        return None
    kv = observation.kv_usage_max if observation.kv_usage_max is not None else observation.kv_usage
    evidence = {"preemptions_per_request": rate}
    if kv is not None:
        evidence["kv_usage"] = kv
    confidence = 0.6 if kv is None else 0.95 if kv >= _FULL else 0.4
    return Finding(
        "Preemption", Severity.CRITICAL if rate >= _CRITICAL else Severity.WARNING, confidence,
        f"{rate:.2f} preemptions per finished request: work is thrown away and computed again.",
        "Try a lower maxNumSeqs or token cap and judge by goodput: a few preemptions can be cheaper than none.",
        evidence,
    )  # fmt: skip
