"""The bands, their seams, limits that hide the tail, and what is not decided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.lengths import Estimate, estimate, from_tokens
from trimtab.policy.percentile import KvRoom, Rules, banded, percentile

PLAIN = Rules(max_truncated_share=None, floor_tokens=1)


def lognormal(cv: float, mean: float = 200.0, n: int = 20_000) -> np.ndarray:
    sigma2 = np.log(1 + cv * cv)
    rng = np.random.default_rng(0)
    return np.asarray(rng.lognormal(np.log(mean) - sigma2 / 2, np.sqrt(sigma2), n))


def seen(cv: float) -> Estimate:
    return estimate(from_tokens(lognormal(cv)))


@pytest.mark.parametrize(("cv", "low", "high"), [(0.05, 1.5, 1.65), (0.15, 1.7, 1.8), (0.28, 1.9, 2.0)])
def test_narrow_lengths_get_one_and_a_half_to_two_means(cv: float, low: float, high: float) -> None:
    got = percentile(seen(cv), rules=PLAIN)
    assert got.max_new_tokens is not None
    assert low * 200 <= got.max_new_tokens <= high * 200 + 3
    assert got.hints == () and "x mean" in got.reason
    assert got.truncated is not None and got.truncated.high < 0.01


@pytest.mark.parametrize("cv", [1.2, 1.7, 3.0])
def test_wide_lengths_get_one_and_a_half_to_two_p90_and_fewer_sequences(cv: float) -> None:
    lengths = seen(cv)
    p90 = lengths.quantile(0.9)
    got = percentile(lengths, rules=PLAIN, room=KvRoom(100_000, 500))
    assert got.max_new_tokens is not None and p90 is not None
    assert 1.5 * p90 <= got.max_new_tokens <= 2 * p90 + 1
    (hint,) = got.hints
    assert hint.setting == "max_num_seqs" and lengths.mean_tokens is not None
    assert hint.value == int(100_000 / (500 + lengths.mean_tokens))


def test_without_the_size_of_the_cache_the_hint_has_no_number() -> None:
    (hint,) = percentile(seen(2.0)).hints
    assert hint.value is None and "max_num_seqs" in hint.text


@given(st.floats(0.0, 3.0), st.floats(10, 1000), st.floats(1.0, 4.0))
def test_the_limit_is_continuous_in_the_cv(cv: float, mean: float, p90_over_mean: float) -> None:
    a, _ = banded(mean, p90_over_mean * mean, cv)
    b, _ = banded(mean, p90_over_mean * mean, cv + 1e-6)
    assert abs(a - b) < 1e-3 * mean


def test_factors_are_those_of_the_bands() -> None:
    got = [banded(100, 300, cv)[0] for cv in (0.0, 0.3, 0.65, 1.0, 1.5, 2.0, 5.0)]
    assert got == pytest.approx([150, 200, 325, 450, 525, 600, 600])


def test_between_the_bands_the_limit_grows_with_the_spread() -> None:
    limits = [percentile(seen(cv), rules=PLAIN).max_new_tokens or 0 for cv in (0.2, 0.35, 0.5, 0.7, 0.9, 1.1)]
    assert limits == sorted(limits)


def test_few_requests_decide_nothing() -> None:
    got = percentile(estimate(from_tokens(lognormal(0.5, n=199))))
    assert not got.decides and "199" in got.reason
    assert percentile(estimate(from_tokens(lognormal(0.5, n=200)))).decides


def test_the_price_is_near_the_truth() -> None:
    lengths = lognormal(1.0)
    got = percentile(estimate(from_tokens(lengths)), rules=PLAIN)
    true = float(np.mean(lengths > (got.max_new_tokens or 0)))
    assert got.truncated is not None and got.truncated.low <= true <= got.truncated.high


def test_no_more_are_cut_than_allowed() -> None:
    lengths = lognormal(1.0)
    loose = percentile(estimate(from_tokens(lengths)), rules=Rules(max_truncated_share=None))
    strict = percentile(estimate(from_tokens(lengths)), rules=Rules(max_truncated_share=0.01))
    assert (strict.max_new_tokens or 0) > (loose.max_new_tokens or 0)
    assert np.mean(lengths > (strict.max_new_tokens or 0)) <= 0.012 and "at most 1% are cut" in strict.reason


def test_a_limit_that_hides_the_tail_is_raised_not_confirmed() -> None:
    """A fifth ends at 256: read as lengths they would have a low CV and a p90 of 256."""
    true = lognormal(1.0)
    natural, capped = true[true < 256], np.full(int((true >= 256).sum()), 256.0)
    got = percentile(estimate(from_tokens(natural, capped)), current_tokens=256)
    assert (got.max_new_tokens or 0) >= 512 and "hides" in got.reason
    assert got.truncated is not None and not got.truncated.known
    assert got.truncated.high >= np.mean(true > 512)
    naive = percentile(estimate(from_tokens(np.minimum(true, 256))), rules=PLAIN)
    assert (naive.max_new_tokens or 0) < 512, "the mistake this is about"


def test_raising_to_look_ends_when_the_tail_is_seen() -> None:
    true, limit, steps = lognormal(2.0), 64, []
    for _ in range(10):
        capped = true >= limit
        got = percentile(estimate(from_tokens(true[~capped], np.full(int(capped.sum()), float(limit)))), limit)
        steps.append(got.max_new_tokens or 0)
        if "hides" not in got.reason:
            break
        limit = steps[-1]
    free = percentile(estimate(from_tokens(true))).max_new_tokens or 0
    assert len(steps) < 10 and steps[-1] == pytest.approx(free, rel=0.35)


def test_at_the_ceiling_it_stays_and_says_so() -> None:
    true = lognormal(2.0)
    capped = true >= 128
    rules = Rules(ceiling_tokens=128)
    got = percentile(estimate(from_tokens(true[~capped], np.full(int(capped.sum()), 128.0))), 128, rules)
    assert got.max_new_tokens == 128 and "ceiling" in got.reason


def test_the_floor_holds() -> None:
    got = percentile(estimate(from_tokens(np.ones(500))))
    assert got.max_new_tokens == 16
