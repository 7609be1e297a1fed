"""The policy file: what is taken, and that every refusal names the field and a fix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.middleware.policy_file import EXAMPLE, MAX_FILE_BYTES, Policy, json_schema, parse
from trimtab.middleware.table import FieldError, kinds


def test_the_example_is_taken_whole() -> None:
    policy = parse(EXAMPLE.encode())
    assert policy.generation == 12 and policy.tokens.cap_max_tokens == 4096
    assert [rule.match.header for rule in policy.rules] == [None, "x-tier"]
    assert policy.experiment is not None and [arm.percent for arm in policy.experiment.arms] == [50, 50]
    assert len(policy.digest) == 12


def test_an_empty_object_only_counts() -> None:
    assert parse(b"{}") == Policy()


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("{", "policy", "anew"),
        ("[]", "policy", "object"),
        ('{"generation": NaN}', "policy", "anew"),
        ('{"tokns": {}}', "tokns", "tokens"),
        ('{"version": 2}', "version", "from 1 to 1"),
        ('{"tokens": {"cap_max_tokens": "512"}}', "tokens.cap_max_tokens", "whole number"),
        ('{"tokens": {"cap_max_tokens": 1.5}}', "tokens.cap_max_tokens", "whole number"),
        ('{"tokens": {"cap_max_tokens": 0}}', "tokens.cap_max_tokens", "from 1 to"),
        ('{"tokens": {"lower_client": 1}}', "tokens.lower_client", "true or false"),
        ('{"rules": [{"match": {"route": "chats"}}]}', "rules[0].match.route", "chat"),
        ('{"rules": [{"match": {"header_value": "a"}}]}', "rules[0].match.header", "header_value"),
        ('{"rules": {}}', "rules", "list"),
        ('{"admission": {"risk": 1e999}}', "admission.risk", "from 0.1 to 10"),
        ('{"tokens": {"predicted_level": 0.9}}', "predictor", "predictor.path"),
        ('{"predictor": {}}', "predictor.path", "Add it"),
        ('{"experiment": {"name": "e", "arms": [{"name": "a", "percent": 100}]}}', "experiment.arms", "two"),
        ('{"experiment": {"name": "e", "arms": [{"name": "a", "percent": 50}, {"name": "a", "percent": 50}]}}',
         "experiment.arms", "own name"),
        ('{"experiment": {"name": "e", "arms": [{"name": "a", "percent": 50}, {"name": "b", "percent": 40}]}}',
         "experiment.arms", "100"),
        ('{"experiment": {"name": "e", "arms": [{"name": "a", "pods": ["p"]}, {"name": "b", "percent": 50}]}}',
         "experiment.arms[1].percent", "not both"),
        ('{"experiment": {"name": "e", "arms": [{"name": "a", "pods": ["p"]}, {"name": "b", "pods": ["p"]}]}}',
         "experiment.arms", "one arm"),
        ('{"experiment": {"name": "e", "arms": [{"name": "a", "percent": 50, "admission": {}}, '
         '{"name": "b", "percent": 50}]}}', "experiment.arms[0].admission", "pods"),
    ],
)  # fmt: skip
def test_a_bad_file_names_the_field_and_the_fix(text: str, field: str, fix: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse(text.encode())
    assert caught.value.field == field
    assert fix in str(caught.value) or fix in caught.value.fix


def test_a_huge_file_is_refused_unread() -> None:
    with pytest.raises(FieldError, match="bytes"):
        parse(b" " * (MAX_FILE_BYTES + 1))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(FieldError, match="not JSON"):
        parse(b"[" * 200_000)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("abé", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*kinds(Policy), "x"]), ANY, max_size=5))
def test_any_json_is_taken_or_refused_never_a_crash(body: dict[str, Any]) -> None:
    try:
        policy = parse(json.dumps(body).encode())
    except FieldError as error:
        assert error.field and error.fix
    else:
        assert isinstance(policy, Policy)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    try:
        parse(data)
    except FieldError as error:
        assert error.field


def test_the_schema_has_every_field_with_its_help_and_bounds() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(kinds(Policy))
    tokens = schema["properties"]["tokens"]["anyOf"][0]["properties"]
    assert tokens["cap_max_tokens"]["minimum"] == 1 and tokens["cap_max_tokens"]["description"]
    assert schema["additionalProperties"] is False
