from __future__ import annotations

from case_shapes import busy, found, lead


def test_more_running_and_no_more_tokens() -> None:
    rows = [
        busy(running=r, waiting=r / 4, generation_tokens_per_second=g, tpot_mean_seconds=r / g)
        for r, g in ((64, 3000), (96, 3050), (128, 3080), (160, 3060))
    ]
    finding = lead(*rows, args="--max-num-seqs 160")
    assert (finding.name, finding.tunable) == ("ComputeBound", False) and "max_num_seqs" in finding.avoid


def test_tokens_that_grow_with_running_are_not() -> None:
    rows = [busy(running=r, generation_tokens_per_second=30 * r) for r in (30, 60, 90)]
    assert found("ComputeBound", *rows) is None


def test_preemption_is_another_cause() -> None:
    rows = [
        busy(running=r, generation_tokens_per_second=3000, preemptions_per_second=3, kv_usage=0.99)
        for r in (30, 60, 90)
    ]
    assert found("ComputeBound", *rows) is None
