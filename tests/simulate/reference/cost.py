"""How long an engine step takes: a line in what the step computed. Coefficients are milliseconds.

Over-commitment hurts by itself: a preempted request is computed again, and those tokens cost `per_prefill_token_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulate.reference.contract import StepOutcome


@dataclass(frozen=True, slots=True)
class StepCost:
    """ms = fixed + prefill tokens * a + decode sequences * b + KV tokens read * c. The defaults are made up."""

    fixed_ms: float = 12.0
    per_prefill_token_ms: float = 0.3
    per_decode_seq_ms: float = 0.35
    per_kv_token_ms: float = 0.0006

    def seconds(self, outcome: StepOutcome) -> float:
        """Modelled duration of a step that was not idle, in seconds."""
        milliseconds = (
            self.fixed_ms
            + self.per_prefill_token_ms * outcome.prefill_tokens
            + self.per_decode_seq_ms * outcome.decode_sequences
            + self.per_kv_token_ms * outcome.kv_tokens_read
        )
        return milliseconds / 1000
