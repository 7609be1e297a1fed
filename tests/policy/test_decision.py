"""Decisions as policy files that the middleware takes."""

from __future__ import annotations

import pytest

from trimtab.errors import InputError
from trimtab.middleware.policy_file import parse
from trimtab.policy.decision import Role, TokenPolicy, policy_file


@pytest.mark.parametrize(
    ("role", "default", "cap", "lower"),
    [("default", 900, None, None), ("cap", 900, 900, None), ("enforce", 900, 900, True)],
)
def test_roles(role: Role, default: int, cap: int | None, lower: bool | None) -> None:
    policy = TokenPolicy("percentile", "r", 900, thinking_tokens=600)
    got = parse(policy_file(policy, role, 3))
    assert got.generation == 3
    tokens = got.tokens
    assert (tokens.default_max_tokens, tokens.cap_max_tokens, tokens.lower_client) == (default, cap, lower)
    assert (tokens.default_thinking_tokens, tokens.cap_thinking_tokens) == (600, 600 if cap else None)


def test_a_decision_that_decides_nothing_changes_nothing() -> None:
    policy = TokenPolicy("percentile", "too few")
    assert not policy.decides
    assert parse(policy_file(policy, "enforce", 1)).tokens.default_max_tokens is None


def test_a_predicted_policy_names_its_file() -> None:
    policy = TokenPolicy("predicted", "r", predicted_level=0.99, predicted_margin=1.25)
    got = parse(policy_file(policy, "default", 1, predictor_path="/policy/predictor.json"))
    assert got.predictor is not None and got.tokens.predicted_level == 0.99
    with pytest.raises(InputError, match="predictor"):
        policy_file(policy, "default", 1)


def test_what_the_middleware_would_refuse_is_refused_here() -> None:
    with pytest.raises(InputError, match="default_max_tokens"):
        policy_file(TokenPolicy("static", "r", 1 << 40), "default", 1)
