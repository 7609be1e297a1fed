"""Whether the KV cache would still hold one request of `max_model_len`: else vLLM refuses to start. Pure.

vLLM measures the memory of a step of `max_num_batched_tokens` at start and gives the rest to the KV cache. Larger steps
leave fewer blocks, and an engine that holds hardly more than one request of full length does not start with them
(`vllm/v1/core/kv_cache_utils.py`, check_enough_kv_cache_memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.engine.settings import Configuration

#: tokens of KV cache that one more token in a step costs. Two projections of the widest layer against the keys and
#: values of all layers, both in 16 bits: Llama-3.1-8B 115 kB / 131 kB, Llama-3.3-70B 229 kB / 328 kB
KV_PER_STEP_TOKEN: Final = 1.0
_STEP: Final = "max_num_batched_tokens"


@dataclass(frozen=True)
class Capacity:
    """Of what runs now: tokens that one pod's KV cache holds, and the longest request (`max_model_len`, tokens)."""

    kv_tokens: float
    longest_tokens: float
    step_tokens: int

    def starts(self, configuration: Configuration) -> bool:
        """False where a longest request would not fit any more. What fits no longest request now says nothing."""
        wanted = configuration.integer(_STEP)
        if wanted is None or wanted <= self.step_tokens or self.kv_tokens < self.longest_tokens:
            return True
        return self.kv_tokens - KV_PER_STEP_TOKEN * (wanted - self.step_tokens) >= self.longest_tokens


def capacity(kv_tokens: float | None, longest_tokens: float | None, configuration: Configuration) -> Capacity | None:
    """None where one of them is unknown."""
    step = configuration.integer(_STEP)
    if kv_tokens is None or longest_tokens is None or step is None:
        return None
    return Capacity(kv_tokens, longest_tokens, step)
