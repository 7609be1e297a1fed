"""The profile that a tuner names reaches the search; one that cannot be read is told and stops nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulated_worlds import profile

from trimtab.errors import InputError
from trimtab.plan.spec import TunerSpec
from trimtab_operator.profiles import Profiles
from trimtab_operator.wishes import search_hash

TUNER = {"metadata": {"name": "llm", "namespace": "ns", "uid": "u"}}
REFERENCE = {"name": "llm-profile", "key": "profile.json"}


def spec(reference: dict[str, str] | None = REFERENCE) -> TunerSpec:
    search = {} if reference is None else {"profileConfigMapRef": reference}
    return TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}, "search": search})


class ConfigMaps:
    """`text`: what the key holds; None: there is none."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def config_map_value(self, namespace: str, name: str, key: str, field: str) -> str:
        assert (namespace, name, key) == ("ns", "llm-profile", "profile.json")
        if self.text is None:
            raise InputError(field, f"ConfigMap {name} has no key {key}", "Create it, or correct the reference.")
        return self.text


def profiles(text: str | None) -> Profiles:
    found: Any = ConfigMaps(text)
    return Profiles(found)


def test_a_tuner_that_names_none_gets_none_and_its_question_stays_what_it_was() -> None:
    assert profiles(None).of(TUNER, spec(None)) == (None, "")
    assert "profile" not in str(spec(None).search.model_dump(exclude_none=True))
    assert search_hash(spec(None)) != search_hash(spec())


def test_a_profile_is_parsed_once_for_each_text() -> None:
    world = profile("kv")
    source = profiles(world.model_dump_json())
    first, problem = source.of(TUNER, spec())
    assert first is not None and problem == "" and first.engine == world.engine
    assert source.of(TUNER, spec())[0] is first


@pytest.mark.parametrize(
    ("text", "named"),
    [(None, "spec.search.profileConfigMapRef"), ("{", "llm-profile/profile.json"), ('{"version": 1}', "engine")],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str | None, named: str) -> None:
    found, problem = profiles(text).of(TUNER, spec())
    assert found is None
    assert problem.startswith("the search goes on without simulation: ") and named in problem


def test_it_is_read_anew_when_it_changes() -> None:
    store = SimpleNamespace(config_map_value=lambda *_: profile("kv").model_dump_json())
    source: Any = Profiles(store)  # type: ignore[arg-type]
    first = source.of(TUNER, spec())[0]
    store.config_map_value = lambda *_: profile("slots").model_dump_json()
    assert source.of(TUNER, spec())[0] != first
