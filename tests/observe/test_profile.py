"""The workload's shape from histograms; unknown stays unknown."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest

from trimtab.observe.observation import Histogram, Observation
from trimtab.observe.profile import coefficient_of_variation, workload_profile


def test_nothing_known_is_nothing_claimed() -> None:
    assert set(astuple(workload_profile(Observation(pods=1, window_seconds=60.0)))) == {None}


def test_the_profile_reads_what_is_there() -> None:
    lengths = Histogram((100.0, 200.0, math.inf), (50.0, 100.0, 100.0), 10_000.0)
    got = workload_profile(
        Observation(
            pods=2, window_seconds=50.0, requests=125.0, finished=100.0, prompt_length=lengths, output_length=lengths,
            prefix_queries=200.0, prefix_hits=50.0,
        )
    )  # fmt: skip
    assert (got.arrivals_per_second, got.prompt_tokens_mean, got.output_tokens_p50) == (2.5, 100.0, 100.0)
    assert (got.output_tokens_p90, got.prefix_hit_ratio, got.abort_rate) == (180.0, 0.25, pytest.approx(0.2))


@pytest.mark.parametrize(("width", "expected"), [(1.0, 1 / math.sqrt(3)), (1000.0, 1 / math.sqrt(3))])
def test_a_uniform_length_from_zero_has_its_textbook_cv(width: float, expected: float) -> None:
    flat = Histogram((width, math.inf), (10.0, 10.0), 10 * width / 2)
    assert coefficient_of_variation(flat) == pytest.approx(expected)


def test_an_empty_histogram_has_no_cv() -> None:
    assert coefficient_of_variation(Histogram((1.0, math.inf), (0.0, 0.0), 0.0)) is None
    assert coefficient_of_variation(Histogram((), (), 0.0)) is None
    assert coefficient_of_variation(Histogram((math.inf,), (5.0,), 10.0)) is None
