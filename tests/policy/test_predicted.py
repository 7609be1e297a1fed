"""Per-request limits from quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import InputError
from trimtab.policy.predicted import Risk, limit_of, predicted

LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)
TOKENS = (100.0, 150.0, 250.0, 400.0, 800.0)


def test_the_limit_is_the_quantile_at_the_risk_and_kv_a_lower_one() -> None:
    got = limit_of(LEVELS, TOKENS, Risk(truncation=0.01, kv=0.25, margin=1.25), prompt_tokens=1000)
    assert (got.max_new_tokens, got.kv_tokens) == (1000, 1150)
    assert limit_of(LEVELS, TOKENS, Risk(truncation=0.1, margin=1.0), 0).max_new_tokens == 250


def test_what_the_client_asked_is_never_raised() -> None:
    got = limit_of(LEVELS, TOKENS, Risk(), 10, asked_tokens=50)
    assert (got.max_new_tokens, got.kv_tokens) == (50, 60)
    assert limit_of(LEVELS, TOKENS, Risk(ceiling_tokens=300), 0).max_new_tokens == 300
    assert limit_of(LEVELS, (1.0,) * 5, Risk(), 0).max_new_tokens == 16


@given(st.lists(st.floats(1, 1e5), min_size=5, max_size=5), st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_less_risk_never_lowers_the_limit(tokens: list[float], a: float, b: float) -> None:
    less, more = sorted((a, b))
    ordered = sorted(tokens)
    limits = [limit_of(LEVELS, ordered, Risk(truncation=r), 0).max_new_tokens for r in (less, more)]
    assert limits[0] >= limits[1]


def test_the_price_is_the_measured_coverage_not_the_promised() -> None:
    got = predicted(Risk(truncation=0.1), LEVELS, (0.5, 0.75, 0.85, 0.9, 0.95), 3500)
    assert got.predicted_level == 0.9 and got.truncated is not None
    assert got.truncated.estimate == pytest.approx(0.15) and got.truncated.low < 0.14 < 0.16 < got.truncated.high
    between = predicted(Risk(truncation=0.07), LEVELS, (0.5, 0.75, 0.85, 0.9, 0.95), 3500)
    assert between.truncated is not None and between.truncated.estimate == pytest.approx(0.15)


@pytest.mark.parametrize("risk", [{"truncation": 0}, {"kv": 1}, {"margin": 0.5}])
def test_no_risk_is_refused(risk: dict[str, float]) -> None:
    with pytest.raises(InputError, match="risk"):
        Risk(**risk)  # type: ignore[arg-type]


def test_a_level_that_was_not_learned_is_refused() -> None:
    with pytest.raises(InputError, match="truncation"):
        predicted(Risk(truncation=0.001), LEVELS, (0.5, 0.75, 0.9, 0.95, 0.99), 1000)
