"""Lengths under limits: what is known, what is not, and intervals that hold."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import InputError
from trimtab.observe.observation import Histogram
from trimtab.policy.lengths import FINE_BOUNDS, Lengths, estimate, from_tokens, split_at_cap

RNG = np.random.default_rng(0)
TRUE = RNG.lognormal(5.3, 0.9, 20_000)


def cut_at(true: np.ndarray, caps: np.ndarray | float) -> Lengths:
    capped = true >= caps
    return from_tokens(true[~capped], np.broadcast_to(np.asarray(caps, float), true.shape)[capped])


def test_without_limits_it_is_the_histogram() -> None:
    got = estimate(from_tokens(TRUE))
    assert got.mean_tokens == pytest.approx(TRUE.mean())
    assert got.quantile(0.9) == pytest.approx(np.quantile(TRUE, 0.9), rel=0.02)
    assert got.cv == pytest.approx(TRUE.std() / TRUE.mean(), rel=0.02)
    assert (got.hidden_share, got.capped_share, got.samples) == (0, 0, 20_000)


def test_mixed_limits_do_not_shorten_the_lengths() -> None:
    caps = RNG.choice([150.0, 400.0, 1e5], len(TRUE))
    got = estimate(cut_at(TRUE, caps))
    assert 0.2 < got.capped_share < 0.6
    for q in (0.5, 0.9, 0.99):
        assert got.quantile(q) == pytest.approx(np.quantile(TRUE, q), rel=0.05)
    assert got.mean_tokens == pytest.approx(TRUE.mean(), rel=0.05)


def test_one_limit_for_all_hides_the_tail_and_says_so() -> None:
    cap = float(np.quantile(TRUE, 0.8))
    got = estimate(cut_at(TRUE, cap))
    assert got.hidden_share == pytest.approx(0.2, abs=0.01)
    assert got.quantile(0.7) == pytest.approx(np.quantile(TRUE, 0.7), rel=0.03)
    assert got.quantile(0.9) is None
    beyond = got.longer_than(10 * cap)
    assert not beyond.known and beyond.high == pytest.approx(0.2, abs=0.02)
    assert "at most" in str(beyond)


def test_stock_vllm_gives_the_same_from_its_merged_histogram() -> None:
    cap = 512.0
    bounds = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, math.inf)
    merged = from_tokens(np.minimum(TRUE, cap), bounds=bounds).natural
    capped = float((cap <= TRUE).sum())
    got = estimate(split_at_cap(merged, cap, capped))
    assert got.capped_share == pytest.approx(np.mean(cap <= TRUE))
    assert got.quantile(0.99) is None and got.quantile(0.5) == pytest.approx(np.median(TRUE), rel=0.1)


def test_more_cut_requests_than_the_bucket_holds_are_not_invented() -> None:
    merged = Histogram((10.0, 100.0, math.inf), (5.0, 8.0, 8.0), 200.0)
    got = split_at_cap(merged, 50, 99)
    assert got.capped is not None
    assert (got.capped.count, got.natural.count) == (3, 5)


@pytest.mark.parametrize("limit", [100.0, 400.0, 2000.0])
def test_the_interval_covers_the_truth_in_nineteen_of_twenty_windows(limit: float) -> None:
    rng, hits = np.random.default_rng(1), 0
    truth = 0.5 * math.erfc((math.log(limit) - 5.3) / 0.9 / math.sqrt(2))
    for _ in range(200):
        true = rng.lognormal(5.3, 0.9, 400)
        share = estimate(cut_at(true, rng.choice([600.0, 1e5], 400))).longer_than(limit)
        hits += share.low <= truth <= share.high
    assert hits >= 186


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=80),
    st.lists(st.integers(1, 10**6), max_size=80),
    st.floats(1, 2e6),
)
def test_shares_and_quantiles_are_sane_for_any_lengths(natural: list[int], capped: list[int], limit: float) -> None:
    got = estimate(from_tokens(natural, capped))
    share = got.longer_than(limit)
    assert 0 <= share.low <= share.estimate + 1e-9 and share.estimate <= share.high + 1e-9 <= 1 + 2e-9
    quantiles = [q for q in map(got.quantile, (0.1, 0.5, 0.9, 0.99)) if q is not None]
    assert quantiles == sorted(quantiles)
    assert 0 <= got.hidden_share <= 1
    assert got.mean_tokens is None or got.mean_tokens >= 0


def test_nothing_seen_says_nothing() -> None:
    got = estimate(from_tokens([]))
    assert got.quantile(0.5) is None and got.mean_tokens is None and not got.longer_than(5).known


def test_edges_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="edges"):
        Lengths(from_tokens([1]).natural, from_tokens([1], bounds=(1, math.inf)).natural)
    assert max(b / a for a, b in pairwise(FINE_BOUNDS[40:-1])) < 1.1
