from __future__ import annotations

import pytest
from case_shapes import busy, found, lead


def test_waiting_with_full_slots_and_free_kv() -> None:
    finding = lead(*[busy(waiting=12, running=63, kv_usage=0.3)] * 3, args="--max-num-seqs 64")
    assert (finding.name, finding.tunable, finding.settings) == ("SlotBound", True, ("max_num_seqs",))
    assert finding.evidence["room"] == 3.0


@pytest.mark.parametrize(("engine", "setting"), [("sglang", "max_running_requests"), ("tgi", "max_batch_size")])
def test_other_engines_have_other_names(engine: str, setting: str) -> None:
    finding = found("SlotBound", *[busy(waiting=12, running=63, kv_usage=0.3)] * 3, engine=engine,
                    args=f"--{setting.replace('_', '-')} 64")  # fmt: skip
    assert finding is not None and finding.settings == (setting,)


def test_a_limit_nobody_told_shows_in_running_that_stands_still() -> None:
    rows = [busy(waiting=w, running=48, kv_usage=0.3) for w in (3, 9, 14)]
    assert found("SlotBound", *rows) is not None
    moving = [busy(waiting=w, running=r, kv_usage=0.3) for w, r in ((3, 30), (9, 44), (14, 38))]
    assert found("SlotBound", *moving) is None


def test_a_default_that_version_and_gpu_give() -> None:
    rows = [busy(waiting=30, running=256, kv_usage=0.3)]
    finding = found("SlotBound", *rows, engine={"name": "vllm", "version": "0.10.0"}, hardware="1x L4 24GB")
    assert finding is not None and finding.evidence["max_num_seqs"] == 256


def test_without_a_queue_length_the_ttft_tells() -> None:
    row = {"running": 64, "kv_usage": 0.3, "ttft_p50_seconds": 8.0, "generation_tokens_per_second": 2000}
    assert found("SlotBound", row, row, args="--max-num-seqs 64") is not None


def test_sums_over_replicas_are_seen() -> None:
    rows = [busy(waiting=30, running=255, kv_usage=0.3, replicas=4)] * 2
    assert found("SlotBound", *rows, args="--max-num-seqs 64") is not None
    assert found("SlotBound", *[{**r, "running": 130} for r in rows], args="--max-num-seqs 64") is None


def test_a_nearly_full_cache_leaves_nothing_to_raise() -> None:
    rows = [busy(waiting=30, running=64, kv_usage=0.78)] * 2
    finding = found("SlotBound", *rows, args="--max-num-seqs 64")
    assert finding is not None and finding.confidence < 0.7
