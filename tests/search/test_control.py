"""The random control is exact: it agrees with trying every draw, and its bounds behave."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import InputError
from trimtab.search.control import random_control, trials_until

VALUES = st.lists(st.one_of(st.none(), st.integers(-5, 9).map(float)), min_size=1, max_size=9).filter(
    lambda values: any(v is not None for v in values)
)


@given(VALUES, st.integers(0, 10), st.one_of(st.none(), st.integers(-5, 9).map(float)))
def test_it_is_what_all_draws_give_together(values: list[float | None], trials: int, start: float | None) -> None:
    before = min(v for v in values if v is not None) if start is None else start
    every = [
        max([before, *(v for v in drawn if v is not None)])
        for drawn in combinations(values, min(trials, len(values)))
    ]  # fmt: skip
    control = random_control(values, trials, start)
    assert control.mean == pytest.approx(math.fsum(every) / len(every))
    for value in range(-6, 10):
        assert control.chance(value) == pytest.approx(sum(v >= value for v in every) / len(every))
    assert control.low == sorted(every)[math.ceil(0.05 * len(every) - 1e-9) - 1]
    assert control.high == sorted(every)[math.ceil(0.95 * len(every) - 1e-9) - 1]


def test_more_trials_find_no_less_and_all_find_the_best() -> None:
    values = [1.0, None, 5.0, 3.0, 2.0]
    means = [random_control(values, k, start=1.5).mean for k in range(6)]
    assert means == sorted(means)
    assert means[0] == 1.5
    assert means[-1] == random_control(values, 99).mean == 5.0


def test_it_says_what_it_found_in_words() -> None:
    text = str(random_control([1.0, 2.0, 3.0, 4.0], 1))
    assert text == (
        "random search with 1 of 4 configurations would have found 2.5 on average (1 to 4 in 90% of cases)"
    )  # fmt: skip


@pytest.mark.parametrize(("good", "of"), [(1, 5), (2, 7), (7, 7)])
def test_mean_trials_until_a_good_one_are_those_of_all_orders(good: int, of: int) -> None:
    firsts = [min(places) + 1 for places in combinations(range(of), good)]
    assert trials_until(good, of) == pytest.approx(sum(firsts) / len(firsts))
    assert trials_until(0, of) == math.inf


@pytest.mark.parametrize("values", [[], [None, None], [1.0, math.inf], [math.nan]])
def test_nothing_to_draw_from_is_refused(values: list[float | None]) -> None:
    with pytest.raises(InputError, match="values"):
        random_control(values, 3)


def test_trials_below_zero_are_refused() -> None:
    with pytest.raises(InputError, match="trials"):
        random_control([1.0], -1)
