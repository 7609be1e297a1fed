"""spec.tokenPolicy: fields and limits of the policy file, whole files out, bad input named in the spec's spelling."""

from __future__ import annotations

from typing import Any, get_args

import builders
import pytest
from pydantic.alias_generators import to_camel

from trimtab.errors import SpecError
from trimtab.middleware import policy_file
from trimtab.middleware.table import Kind, kinds
from trimtab.plan.token_policy import (
    Policy,
    PolicyAdmission,
    PolicyMatch,
    PolicyRule,
    PolicyTokens,
    TokenPolicy,
    body_of,
    digest_of,
    generation_of,
    policy_text,
)

Json = dict[str, Any]
#: what a person does not write into a VLLMTuner: needs files in the pod, or is the operator's own
NOT_A_PERSONS: dict[type, set[str]] = {
    policy_file.Tokens: {"predicted_level", "predicted_margin"},
    policy_file.Policy: {
        "version", "generation", "counting", "max_body_bytes", "max_model_len", "experiment", "predictor",
        "feature_log",
    },
}  # fmt: skip
TWINS = (
    (PolicyTokens, policy_file.Tokens),
    (PolicyMatch, policy_file.Match),
    (PolicyRule, policy_file.Rule),
    (PolicyAdmission, policy_file.Admission),
    (Policy, policy_file.Policy),
)


def limits_of(kind: Kind) -> Json:
    """A field of the file as pydantic's JSON Schema says it."""
    if kind.name in ("whole", "number"):
        return {"type": "integer" if kind.name == "whole" else "number", "minimum": kind.low, "maximum": kind.high}
    if kind.name == "text":
        return {"type": "string", "minLength": kind.low, "maxLength": kind.high}
    if kind.name == "choice":
        return {"type": "string", "enum": [c for c in kind.choices if c != "predicted"]}
    return {"type": "boolean"} if kind.name == "flag" else {"type": "array", "maxItems": kind.high}


@pytest.mark.parametrize(("ours", "theirs"), TWINS, ids=lambda t: t.__name__)
def test_fields_and_limits_are_those_of_the_file(ours: Any, theirs: type) -> None:
    table = {n: k for n, k in kinds(theirs).items() if n not in NOT_A_PERSONS.get(theirs, ())}
    assert set(ours.model_fields) == set(table)
    schema = ours.model_json_schema(by_alias=True)["properties"]
    for name, kind in table.items():
        field = schema[to_camel(name)]
        (plain,) = [s for s in field.get("anyOf", [field]) if s.get("type") != "null"]
        if kind.name == "object":
            assert "$ref" in plain
            continue
        said = limits_of(kind)
        assert {k: plain.get(k) for k in said} == said, name


def parsed(policy: Json, **more: Any) -> TokenPolicy:
    return builders.spec(tokenPolicy={"middleware": "Install", "policy": policy, **more}).token_policy


def test_the_file_says_what_the_person_wrote() -> None:
    policy = parsed(
        {
            "tokens": {"defaultMaxTokens": 1024, "lowerClient": False},
            "rules": [
                {"match": {"route": "chat", "header": "x-tier", "headerValue": "free"}, "tokens": {"capMaxTokens": 9}}
            ],
            "admission": {"maxSequences": 48, "risk": 1, "estimate": "max_tokens"},
        }
    )
    text = policy_text(policy.body(), 7)
    read = policy_file.parse(text.encode())
    assert (read.version, read.generation, read.digest) == (1, 7, digest_of(text))
    assert read.tokens == policy_file.Tokens(default_max_tokens=1024, lower_client=False)
    assert read.rules[0].match == policy_file.Match(route="chat", header="x-tier", header_value="free")
    assert read.rules[0].tokens == policy_file.Tokens(cap_max_tokens=9)
    assert read.admission == policy_file.Admission(max_sequences=48, risk=1.0, estimate="max_tokens")
    assert (body_of(text), generation_of(text)) == (policy.body(), 7)


@pytest.mark.parametrize("policy", [None, {}, {"tokens": {}, "rules": [], "admission": {}}])
def test_an_empty_policy_only_counts(policy: Json | None) -> None:
    section = {"middleware": "Install", **({"policy": policy} if policy is not None else {})}
    assert builders.spec(tokenPolicy=section).token_policy.body() == {}


def test_the_same_policy_is_the_same_file() -> None:
    one = parsed({"tokens": {"capMaxTokens": 5, "defaultMaxTokens": 4}})
    other = parsed({"tokens": {"defaultMaxTokens": 4, "capMaxTokens": 5}})
    assert policy_text(one.body(), 1) == policy_text(other.body(), 1) != policy_text(one.body(), 2)


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_file_of_someone_else_is_no_policy(text: str) -> None:
    assert (body_of(text), generation_of(text)) == (None, 0)


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"policy": {}}, "policy needs middleware: Install"),
        ({"middleware": "Install", "method": "Percentile"}, "maxNewTokens"),
        ({"method": "Percentile", "maxNewTokens": {"min": 1, "max": 2}}, "middleware: Install"),
        ({"middleware": "On"}, "spec.tokenPolicy.middleware"),
        ({"middleware": "Install", "policy": {"tokens": {"capMaxTokens": 0}}}, "policy.tokens.capMaxTokens"),
        ({"middleware": "Install", "policy": {"rules": [{"match": {"headerValue": "x"}}]}}, "header_value"),
        ({"middleware": "Install", "policy": {"experiment": {}}}, "spec.tokenPolicy.policy.experiment"),
    ],
)
def test_a_bad_policy_names_field_and_fix(section: Json, named: str) -> None:
    with pytest.raises(SpecError, match=named.replace(".", r"\.")):
        builders.spec(tokenPolicy=section)


def test_choices_are_the_files() -> None:
    assert set(get_args(get_args(PolicyMatch.model_fields["route"].annotation)[0])) == set(policy_file.ROUTES)
