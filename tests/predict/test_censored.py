"""Quantiles under limits, against the truth that the limits hide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.predict.censored import pinball, quantile, share_up_to

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=60)


@given(lengths, st.floats(0.01, 0.99))
def test_without_limits_it_is_the_plain_quantile(values: list[int], level: float) -> None:
    array = np.array(values, dtype=float)
    seen = np.ones(len(values), dtype=bool)
    assert quantile(array, seen, level) == np.quantile(array, level, method="inverted_cdf")
    assert share_up_to(array, seen, 25) == pytest.approx(np.mean(array <= 25))


def test_the_textbook_case() -> None:
    """6, 6, 6, 6+, 7, 9+, 10, 10+, ...: the 6-MP arm of Freireich 1963 as Kaplan-Meier texts print it."""
    times = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    seen = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    values, ends = np.array(times, dtype=float), np.array(seen, dtype=bool)
    expected = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for time, longer in expected.items():
        assert 1 - share_up_to(values, ends, time) == pytest.approx(longer, abs=5e-4)
    assert quantile(values, ends, 0.5) == 23
    assert quantile(values, ends, 0.6) is None


def test_limits_do_not_pull_the_quantile_down() -> None:
    rng = np.random.default_rng(0)
    true = rng.lognormal(5, 1, 20_000)
    caps = rng.choice([100.0, 400.0, 5000.0], 20_000)
    cut, seen = np.minimum(true, caps), true <= caps
    naive, ours = np.quantile(cut, 0.9), quantile(cut, seen, 0.9)
    truth = np.quantile(true, 0.9)
    assert naive < 0.8 * truth
    assert ours == pytest.approx(truth, rel=0.05)


def test_the_conservative_quantile_covers_a_new_value_on_average() -> None:
    """P(new <= quantile of n) >= level, which the plain quantile misses for small n."""
    rng = np.random.default_rng(1)
    plain, careful = [], []
    for _ in range(3000):
        values = rng.exponential(size=20)
        seen = np.ones(20, dtype=bool)
        new = rng.exponential()
        plain.append(new <= (quantile(values, seen, 0.9) or 0))
        careful.append(new <= (quantile(values, seen, 0.9, conservative=True) or 0))
    assert np.mean(plain) < 0.88
    assert np.mean(careful) == pytest.approx(19 / 21, abs=0.02)


def test_pinball_is_least_at_the_true_quantile() -> None:
    rng = np.random.default_rng(2)
    tokens, none = rng.lognormal(5, 1, 5000), np.full(5000, np.inf)
    best = np.quantile(tokens, 0.9)
    at = {f: pinball(tokens, np.array([[best * f]]), none, [0.9]).mean() for f in (0.7, 1.0, 1.4)}
    assert at[1.0] < at[0.7] and at[1.0] < at[1.4]


def test_a_guess_beyond_the_limit_neither_costs_nor_pays() -> None:
    tokens, caps = np.array([64.0]), np.array([64.0])
    assert pinball(tokens, np.array([[64.0, 9999.0]]), caps, [0.9, 0.99]).tolist() == [[0.0, 0.0]]
    assert pinball(tokens, np.array([[14.0]]), caps, [0.9])[0, 0] == pytest.approx(45)
