"""Not for trifles and not too often."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import InputError
from trimtab.policy.hysteresis import Hysteresis, InForce, settle


def test_the_first_limit_is_taken() -> None:
    assert settle(500, None, 0.0).changed


@pytest.mark.parametrize(
    ("proposed", "now", "changed"),
    [
        (1099, 1e6, False),
        (901, 1e6, False),
        (1100, 1e6, True),
        (900, 1e6, True),
        (2000, 599.0, False),
        (2000, 600.0, True),
    ],
)
def test_size_and_age_both_count(proposed: int, now: float, changed: bool) -> None:
    got = settle(proposed, InForce(1000, 0.0), now)
    assert (got.changed, got.max_new_tokens) == (changed, proposed if changed else 1000)
    assert str(got.max_new_tokens) in got.reason


@given(st.lists(st.tuples(st.floats(0, 120), st.integers(1, 5000)), max_size=60))
def test_changes_are_never_closer_than_the_interval(steps: list[tuple[float, int]]) -> None:
    now, force, changes = 0.0, None, []
    for wait, proposed in steps:
        now += wait
        got = settle(proposed, force, now, Hysteresis(0.1, 300))
        if got.changed:
            changes.append(now)
            force = InForce(got.max_new_tokens, now)
    assert all(b - a >= 300 for a, b in pairwise(changes))


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError):
        Hysteresis(least_change=1.5)
