"""A given number and its price."""

from __future__ import annotations

import pytest

from trimtab.errors import InputError
from trimtab.policy.lengths import estimate, from_tokens
from trimtab.policy.static import static


def test_the_price_is_what_the_lengths_say() -> None:
    got = static(100, estimate(from_tokens(range(1, 1001))))
    assert got.truncated is not None
    assert got.truncated.low < 0.9 < got.truncated.high
    assert got.truncated.estimate == pytest.approx(0.9, abs=0.01)
    assert got.max_new_tokens == 100 and "Cuts 90" in got.cost


def test_without_lengths_the_price_is_not_known() -> None:
    assert static(100).truncated is None and "Not known" in static(100).cost


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="max_new_tokens"):
        static(0)
