"""Changed lengths are found, chance and trifles are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.observe.observation import Histogram
from trimtab.policy.drift import drift
from trimtab.policy.lengths import from_tokens

COARSE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, math.inf)


def window(seed: int, median: float = 200, sigma: float = 0.9, n: int = 1000) -> Histogram:
    values = np.random.default_rng(seed).lognormal(np.log(median), sigma, n)
    return from_tokens(values, bounds=COARSE).natural


def test_equal_windows_hardly_ever_count_as_changed() -> None:
    assert sum(bool(drift(window(2 * n), window(2 * n + 1)).drifted) for n in range(300)) == 0


@pytest.mark.parametrize(("median", "sigma"), [(400, 0.9), (100, 0.9), (200, 0.3), (200, 1.8)])
def test_other_lengths_are_found(median: float, sigma: float) -> None:
    found = drift(window(0), window(1, median, sigma))
    assert found.drifted and found.p_value < 1e-6 and "changed" in str(found)


def test_a_trifle_is_no_drift_however_many_requests_prove_it() -> None:
    found = drift(window(0, n=200_000), window(1, median=208, n=200_000))
    assert found.p_value < 1e-6 and found.drifted is False


def test_few_requests_say_nothing() -> None:
    assert drift(window(0), window(1, 400, n=199)).drifted is None
    assert drift(window(0), window(1, n=0)).drifted is None


def test_the_p_value_is_that_of_scipy_on_unbinned_values() -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(3)
    a, b = rng.lognormal(5, 1, 800), rng.lognormal(5.2, 1, 900)
    bounds = (*sorted([*a, *b]), math.inf)
    found = drift(from_tokens(a, bounds=bounds).natural, from_tokens(b, bounds=bounds).natural)
    expected = ks_2samp(a, b, method="asymp")
    assert found.ks == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, rel=0.15)


def test_other_edges_are_refused() -> None:
    with pytest.raises(InputError, match="max_model_len"):
        drift(window(0), from_tokens([1.0]).natural)
