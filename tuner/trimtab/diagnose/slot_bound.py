"""SlotBound: requests wait while KV cache is free, because maxNumSeqs are running.

Needs max_num_seqs: a queue with low KV use but free slots has another cause (see queue_head_blocked; vllm#53130), and
raising the limit would not help it.
"""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_KV_FREE = 0.7
_SLOTS_FULL = 0.9


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    waiting, running, kv = observation.waiting, observation.running, observation.kv_usage
    seqs = configuration.integer("max_num_seqs")
    if waiting is None or running is None or kv is None or seqs is None:
        return None
    if waiting < 1 or kv > _KV_FREE or running < _SLOTS_FULL * seqs:
        return None
    return Finding(
        "SlotBound", Severity.WARNING, 0.8,
        f"{waiting:.1f} requests wait per pod; {running:.0f} of {seqs} slots are taken, {1 - kv:.0%} of KV is free.",
        "Raise maxNumSeqs.", {"waiting": waiting, "running": running, "kv_usage": kv},
    )  # fmt: skip
