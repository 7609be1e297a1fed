import math

import numpy as np
import pytest

from trimtab.judge.stats import lag1, mean_interval, quantile_bounds, quantile_exceeds
from trimtab.observe.observation import Histogram

INF = float("inf")


def test_the_interval_of_independent_values_is_students() -> None:
    values = [1.0, 2.0, 1.5, 0.5, 1.0, 2.0, 0.7, 1.3]
    interval = mean_interval(values, 0.95)
    assert interval is not None
    if interval.effective == 8:
        half = 2.3646 * np.std(values, ddof=1) / math.sqrt(8)
        assert interval.high - interval.mean == pytest.approx(half, rel=1e-3)
    assert interval.low < np.mean(values) < interval.high


def test_autocorrelation_widens_the_interval() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    shuffled = [0.1, 0.5, 0.2, 0.4, 0.0, 0.4, 0.1, 0.3, 0.2, 0.3]
    slow, fast = mean_interval(values, 0.95), mean_interval(shuffled, 0.95)
    assert slow is not None and fast is not None
    assert lag1(values) > 0.5 and lag1(shuffled) == 0
    assert slow.high - slow.low > 1.5 * (fast.high - fast.low)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_the_interval_covers_the_truth_in_autocorrelated_series(rho: float) -> None:
    rng, missed, runs = np.random.default_rng(1), 0, 1000
    for _ in range(runs):
        state, values = rng.normal(), []
        for _ in range(20):
            values.append(float(state))
            state = rho * state + rng.normal(0, math.sqrt(1 - rho * rho))
        interval = mean_interval(values, 0.95)
        assert interval is not None
        missed += not interval.low <= 0 <= interval.high
    assert missed / runs < (0.06 if rho < 0.5 else 0.12)


def test_few_or_constant_values() -> None:
    assert mean_interval([1.0, 2.0], 0.95) is None
    constant = mean_interval([0.1] * 5, 0.95)
    assert constant is not None and constant.low == pytest.approx(constant.high)


def test_quantile_bounds_narrow_with_samples() -> None:
    few = Histogram((1.0, 2.0, 4.0, INF), (90.0, 98.0, 100.0, 100.0), 130.0)
    many = Histogram(few.bounds, tuple(100 * c for c in few.counts), 13_000.0)
    a, b = quantile_bounds(few, 0.99, 1.96), quantile_bounds(many, 0.99, 1.96)
    assert a is not None and b is not None
    assert a[0] < b[0] <= b[1] < a[1]
    assert quantile_bounds(Histogram((), (), 0.0), 0.99, 1.0) is None


def test_a_tail_exceeds_only_beyond_doubt_and_with_samples() -> None:
    low = Histogram((1.0, 2.0, 8.0, INF), (400.0, 400.0, 400.0, 400.0), 200.0)
    high = Histogram(low.bounds, (0.0, 0.0, 400.0, 400.0), 2000.0)
    assert quantile_exceeds(high, low, 3.0, z=1.96, least=50)
    assert not quantile_exceeds(low, high, 1.0, z=1.96, least=50)
    assert not quantile_exceeds(low, low, 1.0, z=1.0, least=50)
    assert not quantile_exceeds(high, low, 3.0, z=1.96, least=500)
    assert not quantile_exceeds(None, low, 3.0, z=1.96, least=1)
