"""QueueHeadBlocked: requests wait although slots and KV cache are free.

A prompt that needs more KV than is free blocks all behind it (strict FCFS; vllm#39734: pool smaller than
max_model_len), or the engine is prefill-bound, or parked requests hold the slots (vllm#53130). Raising maxNumSeqs
helps none of these.
"""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_KV_FREE = 0.7
_SLOTS_FREE = 0.7


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    waiting, running, kv = observation.waiting, observation.running, observation.kv_usage
    seqs = configuration.integer("max_num_seqs")
    if waiting is None or running is None or kv is None or seqs is None:
        return None
    if waiting < 1 or kv > _KV_FREE or not 0.01 < running < _SLOTS_FREE * seqs:
        return None
    return Finding(
        "QueueHeadBlocked", Severity.WARNING, 0.6,
        f"{waiting:.1f} requests wait per pod with {running:.0f} of {seqs} slots and {kv:.0%} of the KV cache in use.",
        "Raising maxNumSeqs will not help. Look for very long prompts, too small a step budget "
        "(maxNumBatchedTokens), or requests parked as deferred.",
        {"waiting": waiting, "running": running, "kv_usage": kv},
    )  # fmt: skip
