import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import nct, norm
from scipy.stats import t as student_t

from trimtab.judge.stats import MIXTURE, _radius, always_valid, lag1, quantile_bounds, quantile_exceeds
from trimtab.observe.observation import Histogram

INF = float("inf")


def drawn(rng: np.random.Generator, n: int, rho: float) -> list[float]:
    state, values = rng.normal(), []
    for _ in range(n):
        values.append(float(state))
        state = rho * state + rng.normal(0, math.sqrt(1 - rho * rho))
    return values


@pytest.mark.parametrize(("size", "degrees"), [(8.0, 10.0), (12.5, 11.5), (30.0, 60.0)])
def test_the_bound_is_where_the_mixtures_likelihood_ratio_is_one_over_the_error(size: float, degrees: float) -> None:
    """By numerical integration of noncentral t densities over the mixture, not by the closed form."""
    bound, ratio = _radius(size, degrees, 0.05), 0.0
    for weight, variance in MIXTURE:
        effects = np.linspace(-6, 6, 4001) * math.sqrt(variance)
        spread = norm.pdf(effects, 0, math.sqrt(variance))
        ratio += weight * trapezoid(nct.pdf(bound, degrees, effects * math.sqrt(size)) * spread, effects)
    assert ratio / student_t.pdf(bound, degrees) == pytest.approx(20, rel=1e-3)


def test_a_large_effect_shows_in_few_windows_and_three_are_too_few_for_any() -> None:
    assert _radius(5.4, 4.4, 0.05) < 7
    assert _radius(3.0, 2.0, 0.05) > 25 or math.isinf(_radius(3.0, 2.0, 0.05))


@pytest.mark.parametrize(("rho", "most"), [(0.0, 0.02), (0.3, 0.035), (0.6, 0.07)])
def test_an_interval_that_is_looked_at_all_the_time_seldom_loses_the_truth(rho: float, most: float) -> None:
    """From 5 to 40 values, one side."""
    rng, wrong, runs = np.random.default_rng(1), 0, 200
    for _ in range(runs):
        values = drawn(rng, 40, rho)
        lows = (found.low for n in range(5, 41, 5) if (found := always_valid(values[:n], 0.95)) is not None)
        wrong += any(low > 0 for low in lows)
    assert wrong / runs <= most


def test_equal_arms_narrow_the_interval_and_never_hide_the_trials_own_noise() -> None:
    rng = np.random.default_rng(2)
    values, quiet = drawn(rng, 8, 0.0), [0.01 * v for v in drawn(rng, 30, 0.0)]
    alike = [drawn(rng, 30, 0.0) for _ in range(3)]
    alone, helped, fooled = (always_valid(values, 0.95, equal) for equal in ([], alike, [quiet]))
    assert alone is not None and helped is not None and fooled is not None
    assert helped.high - helped.low < 0.75 * (alone.high - alone.low)
    assert fooled.high - fooled.low > 0.7 * (alone.high - alone.low)


def test_autocorrelation_widens_the_interval() -> None:
    slow = [0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0] * 2
    fast = [0.1, 0.5, 0.2, 0.4, 0.0, 0.4, 0.1, 0.3, 0.2, 0.3] * 2
    wide, narrow = always_valid(slow, 0.95), always_valid(fast, 0.95)
    assert wide is not None and narrow is not None
    assert lag1([slow]) > 0.5 and lag1([fast]) == 0
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_what_few_windows_say_of_autocorrelation_is_drawn_to_what_is_usual() -> None:
    assert lag1([]) == pytest.approx(0.3)
    assert 0 < lag1([[1.0, 0.0, 1.0, 0.0, 1.0]]) < 0.3


def test_few_or_constant_values() -> None:
    assert always_valid([1.0, 2.0], 0.95) is None
    constant = always_valid([0.1] * 10, 0.95)
    assert constant is not None and constant.low == pytest.approx(constant.high)
    early = always_valid([0.1, 0.2, 0.3], 0.95)
    assert early is not None and (early.low, early.high) == (-math.inf, math.inf)


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


@pytest.mark.parametrize("pods", [1, 10, 100])
def test_many_pods_and_windows_are_no_more_than_beyond_doubt(pods: int) -> None:
    """Twenty pods over the windows of a default measurement are likelier than a float holds."""
    rng = np.random.default_rng(pods)
    noisy = [[0.05 * v for v in drawn(rng, 60, 0.0)] for _ in range(pods)]
    found = always_valid([0.9 + v for v in noisy[0]], 0.95, noisy)
    assert found is not None and 0.85 < found.low < found.mean < found.high < 0.95
