from __future__ import annotations

from case_shapes import busy, found, lead


def test_waiting_with_free_slots_and_free_kv() -> None:
    """vllm#53130, vllm#39734: more sequences would not help."""
    finding = lead(*[busy(waiting=12, running=10, kv_usage=0.3)] * 3, args="--max-num-seqs 64")
    assert (finding.name, finding.tunable) == ("QueueHeadBlocked", False)


def test_adapters_beyond_their_places() -> None:
    finding = found("QueueHeadBlocked", *[busy(waiting=12, running=10, kv_usage=0.3)] * 3,
                    args="--max-num-seqs 64 --enable-lora --max-loras 2",
                    facts=["20 LoRA adapters in use"])  # fmt: skip
    assert finding is not None and "--max-loras" in finding.advice and finding.confidence >= 0.7


def test_full_slots_are_not() -> None:
    assert (
        found("QueueHeadBlocked", *[busy(waiting=12, running=62, kv_usage=0.3)] * 3, args="--max-num-seqs 64") is None
    )
