from __future__ import annotations

from case_shapes import busy, found


def test_room_in_every_respect() -> None:
    finding = found("ArrivalBound", *[busy(running=10, kv_usage=0.1)] * 3, args="--max-num-seqs 256")
    assert finding is not None and not finding.tunable


def test_not_with_a_queue_full_slots_or_late_tokens() -> None:
    assert found("ArrivalBound", busy(waiting=3), args="--max-num-seqs 256") is None
    assert found("ArrivalBound", busy(running=250), args="--max-num-seqs 256") is None
    assert found("ArrivalBound", busy(tpot_mean_seconds=0.2), args="--max-num-seqs 256", slo={"tpot": 0.05}) is None
