from __future__ import annotations

from case_shapes import busy, found, lead


def test_waiting_with_a_full_cache() -> None:
    finding = lead(*[busy(waiting=9, kv_usage=0.98)] * 3)
    assert finding.name == "KvBound" and "slots" in finding.avoid and "max_num_seqs" not in finding.settings


def test_nothing_waiting_is_a_well_used_cache() -> None:
    assert found("KvBound", *[busy(kv_usage=0.98)] * 3) is None


def test_a_large_step_is_the_lever() -> None:
    """vllm#2509."""
    finding = found("KvBound", busy(waiting=9, kv_usage=0.98), args="--max-num-batched-tokens 50000")
    assert finding is not None and finding.settings[0] == "max_num_batched_tokens"


def test_without_a_lever_it_is_not_tunable() -> None:
    finding = found("KvBound", busy(waiting=9, kv_usage=0.98), args="--gpu-memory-utilization 0.96")
    assert finding is not None and not finding.tunable
