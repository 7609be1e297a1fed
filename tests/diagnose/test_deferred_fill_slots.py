from __future__ import annotations

from case_shapes import busy, found, lead


def test_running_and_deferred_together_are_the_limit() -> None:
    """vllm#53130."""
    rows = [busy(running=40, waiting=90, waiting_deferred=88, kv_usage=0.2)] * 3
    finding = lead(*rows, args="--max-num-seqs 128")
    assert (finding.name, finding.tunable) == ("DeferredFillSlots", False)


def test_slots_full_of_running_requests_are_slot_bound() -> None:
    rows = [busy(running=128, waiting=30, waiting_deferred=2, kv_usage=0.2)] * 3
    assert lead(*rows, args="--max-num-seqs 128").name == "SlotBound"


def test_free_slots_are_not() -> None:
    rows = [busy(running=20, waiting=10, waiting_deferred=10, kv_usage=0.2)] * 3
    assert found("DeferredFillSlots", *rows, args="--max-num-seqs 128") is None


def test_a_full_cache_is_another_cause() -> None:
    rows = [busy(running=40, waiting=90, waiting_deferred=88, kv_usage=0.97)] * 3
    assert found("DeferredFillSlots", *rows, args="--max-num-seqs 128") is None
