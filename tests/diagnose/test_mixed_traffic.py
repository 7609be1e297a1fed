from __future__ import annotations

from case_shapes import busy, found, lead


def test_lengths_far_apart() -> None:
    rows = [busy(prompt_tokens_p50=200, prompt_tokens_p99=30_000, ttft_p50_seconds=0.2, ttft_p99_seconds=9.0)] * 2
    finding = lead(*rows, args="--max-num-seqs 256")
    assert (finding.name, finding.tunable) == ("MixedTraffic", False) and "Split" in finding.advice


def test_one_broad_distribution_is_not() -> None:
    assert found("MixedTraffic", busy(prompt_tokens_p50=600, prompt_tokens_p99=6000)) is None


def test_a_tail_of_ttft_among_prompts_of_one_length_is_not() -> None:
    """Seen on a target whose queue had just been tuned away: the tail was the queue's."""
    row = busy(prompt_tokens_p50=103, prompt_tokens_p99=275, ttft_p50_seconds=0.015, ttft_p99_seconds=1.2, waiting=0)
    assert found("MixedTraffic", row) is None


def test_load_that_swings_between_two_shapes() -> None:
    shapes = [(200, 2000), (9000, 300), (300, 2100), (9500, 250), (250, 1900)]
    rows = [busy(prompt_tokens_per_second=p, generation_tokens_per_second=g) for p, g in shapes]
    assert found("MixedTraffic", *rows) is not None
