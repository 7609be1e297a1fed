from __future__ import annotations

from case_shapes import busy, found, lead


def test_a_flat_prompt_rate_with_free_kv_and_slots() -> None:
    rows = [
        busy(running=20, waiting=w, kv_usage=0.35, prompt_tokens_per_second=p, generation_tokens_per_second=400)
        for w, p in ((5, 9000), (15, 9100), (30, 8950), (60, 9050))
    ]
    finding = lead(*rows, args="--max-num-seqs 256 --max-num-batched-tokens 2048")
    assert (finding.name, finding.tunable) == ("PrefillBound", True)
    assert "max_num_batched_tokens" in finding.settings and "slots" in finding.avoid


def test_caching_that_is_off_is_the_first_lever() -> None:
    rows = [
        busy(running=20, waiting=9, kv_usage=0.35, prompt_tokens_per_second=9000, generation_tokens_per_second=300)
    ] * 2
    finding = found("PrefillBound", *rows, args="--max-num-seqs 256 --no-enable-prefix-caching")
    assert finding is not None and "enable_prefix_caching" in finding.settings


def test_a_large_step_leaves_no_lever() -> None:
    rows = [
        busy(running=20, waiting=9, kv_usage=0.35, prompt_tokens_per_second=9000, generation_tokens_per_second=300)
    ] * 2
    finding = found("PrefillBound", *rows, args="--max-num-seqs 256 --max-num-batched-tokens 32768")
    assert finding is not None and not finding.tunable


def test_nothing_waiting_or_a_full_cache_is_not() -> None:
    row = busy(running=20, kv_usage=0.35, prompt_tokens_per_second=9000, generation_tokens_per_second=300)
    assert found("PrefillBound", row, row) is None
    assert found("PrefillBound", *[{**row, "waiting": 9, "kv_usage": 0.97}] * 2) is None
