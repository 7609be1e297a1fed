from __future__ import annotations

from case_shapes import busy, found, lead

IDLE = {"running": 0, "waiting": 0, "kv_usage": 0.62, "generation_tokens_per_second": 0}


def test_blocks_held_by_nobody_are_an_alarm() -> None:
    finding = lead(busy(), IDLE, IDLE, IDLE)
    assert (finding.name, finding.tunable) == ("LeakedBlocks", False) and finding.confidence >= 0.9


def test_waiting_behind_held_blocks_is_a_leak_not_a_deadlock() -> None:
    rows = [{**IDLE, "waiting": 8, "kv_usage": 0.99}] * 3
    assert lead(*rows).name == "LeakedBlocks"


def test_a_few_long_requests_fill_the_cache_rightfully() -> None:
    """vllm#18115: the share of each grows with its context, and nothing is slower."""
    rows = [busy(running=8, kv_usage=kv) for kv in (0.4, 0.6, 0.8, 0.95)]
    assert found("LeakedBlocks", *rows) is None


def test_use_that_stays_while_running_falls_and_ttft_climbs_is_a_leak() -> None:
    rows = [
        busy(running=r, kv_usage=k, ttft_p50_seconds=t, waiting=w)
        for r, k, t, w in ((40, 0.4, 0.3, 0), (38, 0.6, 0.4, 0), (20, 0.85, 2.0, 9), (10, 0.97, 9.0, 30))
    ]
    finding = lead(*rows)
    assert finding.name == "LeakedBlocks" and finding.evidence["running_early"] > finding.evidence["running"]


def test_use_that_falls_with_the_load_is_none() -> None:
    rows = [busy(running=r, kv_usage=r / 50) for r in (40, 30, 10, 5)]
    assert found("LeakedBlocks", *rows) is None


def test_more_tokens_than_the_running_requests_can_have_is_proof() -> None:
    rows = [busy(running=2, kv_usage=0.9, kv_capacity_tokens=100_000)] * 2
    assert found("LeakedBlocks", *rows, args="--max-model-len 4096") is not None
    assert found("LeakedBlocks", *rows, args="--max-model-len 65536") is None


def test_a_connector_pins_blocks_of_aborted_prefills() -> None:
    """vllm#29906."""
    rows = [{"running": 2, "waiting": 40, "kv_usage": 0.98, "abort_rate": 0.5}] * 2
    finding = lead(*rows, args='--max-num-seqs 256 --kv-transfer-config {"kv_connector":"Nixl"}')
    assert finding.name == "LeakedBlocks" and "connector" in finding.advice
    assert found("LeakedBlocks", *rows, args="--max-num-seqs 256") is None


def test_sglang_may_count_evictable_blocks() -> None:
    """sglang#6778."""
    finding = found("LeakedBlocks", IDLE, IDLE, IDLE, engine="sglang")
    assert finding is not None and finding.confidence < 0.7 and "flush" in finding.advice
