"""The CRD and TunerSpec say the same: fields, types, defaults, limits, enums. A drift between them names the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from trimtab.engine.settings import SEARCHED
from trimtab.plan.record import Phase
from trimtab.plan.spec import TunerSpec

Schema = dict[str, Any]

LIMITS = ("minimum", "exclusiveMinimum", "maximum", "pattern", "minLength", "maxLength", "minItems", "maxItems")

#: Where the CRD is stricter than TunerSpec on purpose. CEL needs bounds on what it reads, and etcd on the rest.
STRICTER: dict[str, set[str]] = {
    "targetRef.container": {"minLength", "maxLength"},
    "metrics.prometheus.url": {"maxLength"},
    "metrics.prometheus.bearerTokenSecretRef.name": {"minLength", "maxLength"},
    "metrics.prometheus.bearerTokenSecretRef.key": {"minLength", "maxLength"},
    "metrics.prometheus.caConfigMapRef.name": {"minLength", "maxLength"},
    "metrics.prometheus.caConfigMapRef.key": {"minLength", "maxLength"},
    "search.profileConfigMapRef.name": {"minLength", "maxLength"},
    "search.profileConfigMapRef.key": {"minLength", "maxLength"},
    # the largest value that a Setting takes
    **{f"search.{name}.{end}": {"maximum"} for name in ("maxNumSeqs", "maxNumBatchedTokens") for end in ("min", "max")},
    **{f"tokenPolicy.maxNewTokens.{end}": {"maximum"} for end in ("min", "max")},
    "rollout.windows.[].days": {"minItems", "maxItems"},
    "rollout.windows.[].timeZone": {"maxLength"},
    "storage.url": {"minLength", "maxLength"},
}


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field under `schema` with its path; items of a list are `[]`."""
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, child
        yield from fields(child, here)
    if "items" in schema:
        here = f"{path}.[]"
        yield here, schema["items"]
        yield from fields(schema["items"], here)


def resolved(schema: Any, definitions: Mapping[str, Schema]) -> Any:
    """Pydantic's schema in the CRD's shape: references followed, `X | None` is X, a constant is an enum of one."""
    if isinstance(schema, list):
        return [resolved(s, definitions) for s in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = {**definitions[name], **{k: v for k, v in schema.items() if k != "$ref"}}
    if "anyOf" in schema:
        (kept,) = [s for s in schema["anyOf"] if s.get("type") != "null"]
        schema = {**{k: v for k, v in schema.items() if k != "anyOf"}, **resolved(kept, definitions)}
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    return {k: resolved(v, definitions) for k, v in schema.items() if k != "$defs"}


@pytest.fixture(scope="session")
def ours(crd_schema: Callable[[str], Schema]) -> Schema:
    spec: Schema = crd_schema("vllmtuners")["properties"]["spec"]
    return spec


@pytest.fixture(scope="session")
def twin() -> Schema:
    schema = TunerSpec.model_json_schema(by_alias=True)
    resolved_schema: Schema = resolved(schema, schema["$defs"])
    return resolved_schema


def limits(schema: Schema) -> dict[str, Any]:
    """The limits of a field, an exclusive minimum in the JSON Schema way (a number), as pydantic writes it."""
    found = {k: schema[k] for k in LIMITS if k in schema}
    if found.get("exclusiveMinimum") is True:
        found["exclusiveMinimum"] = found.pop("minimum")
    return found


def test_both_have_the_same_fields(ours: Schema, twin: Schema) -> None:
    def names(schema: Schema) -> set[str]:
        return {path for path, _ in fields(schema) if not path.startswith("search.candidates.[].")}

    assert names(ours) == names(twin)


def test_types_enums_and_required_fields_are_equal(ours: Schema, twin: Schema) -> None:
    theirs = dict(fields(twin))
    for path, field in [("", ours), *fields(ours)]:
        other = theirs.get(path, twin if not path else None)
        if other is None:
            continue
        assert field["type"] == other["type"], path
        assert field.get("enum") == other.get("enum"), path
        assert set(field.get("required", ())) == set(other.get("required", ())), path


def test_limits_are_equal_but_for_the_listed_ones(ours: Schema, twin: Schema) -> None:
    theirs = dict(fields(twin))
    stricter: dict[str, set[str]] = {}
    for path, field in fields(ours):
        if path not in theirs:
            continue
        here, there = limits(field), limits(theirs[path])
        assert there.items() <= here.items(), f"{path}: CRD {here}, TunerSpec {there}"
        if here.keys() != there.keys():
            stricter[path] = set(here) - set(there)
    assert stricter == STRICTER


def defaulted(schema: Schema, value: Any) -> Any:
    """What the API server makes of `value`: absent fields with a default are filled in, level by level."""
    if isinstance(value, dict) and "properties" in schema:
        filled = dict(value)
        for name, child in schema["properties"].items():
            if name not in filled and "default" in child:
                filled[name] = child["default"]
            if name in filled:
                filled[name] = defaulted(child, filled[name])
        return filled
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    return value


@pytest.mark.parametrize(
    "spec",
    [
        {"targetRef": {"name": "llama"}, "metrics": {"direct": {}}},
        {"targetRef": {"name": "llama"}, "metrics": {"prometheus": {"url": "http://p"}}, "rollout": {"windows": [{}]}},
    ],
    ids=["direct", "prometheus with a window"],
)
def test_defaults_are_equal(ours: Schema, spec: Schema) -> None:
    by_model = TunerSpec.parse(spec).model_dump(by_alias=True, exclude_none=True, mode="json")
    assert defaulted(ours, spec) == by_model


def settings_objects(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every object of a schema that holds a configuration."""
    for path, field in fields(schema):
        if "enablePrefixCaching" in field.get("properties", {}):
            yield path, field


@pytest.mark.parametrize(("plural", "count"), [("vllmtuners", 3), ("tuningtrials", 2)])
def test_configurations_hold_exactly_the_settings(crd_schema: Callable[[str], Schema], plural: str, count: int) -> None:
    found = list(settings_objects(crd_schema(plural)))
    assert len(found) == count
    for path, field in found:
        assert set(field["properties"]) == {s.camel for s in SEARCHED.values()}, path
        for setting in SEARCHED.values():
            schema = field["properties"][setting.camel]
            assert schema["type"] == setting.kind, path
            if setting.kind == "integer":
                assert (schema["minimum"], schema["maximum"]) == (setting.minimum, setting.maximum), path


def test_the_candidate_message_names_every_setting(crd_schema: Callable[[str], Schema]) -> None:
    candidate = crd_schema("vllmtuners")["properties"]["spec"]["properties"]["search"]["properties"]["candidates"][
        "items"
    ]
    for setting in SEARCHED.values():
        assert setting.camel in candidate["x-kubernetes-validations"][0]["message"]


def test_the_crd_knows_every_phase_of_a_trial(crd_schema: Callable[[str], Schema]) -> None:
    phase = crd_schema("tuningtrials")["properties"]["status"]["properties"]["phase"]
    assert {p.value for p in Phase} <= set(phase["enum"])


@pytest.mark.parametrize("plural", ["vllmtuners", "tuningtrials"])
def test_every_field_is_documented(crd_schema: Callable[[str], Schema], plural: str) -> None:
    bare = [
        p
        for p, f in fields(crd_schema(plural))
        if p != "metadata" and not p.endswith("[]") and not f.get("description")
    ]
    assert bare == []
