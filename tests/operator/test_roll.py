"""Which tuners there are, without listing them: what watch and list told last counts, whichever came first."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.plan.neighbours import rival
from trimtab_operator.neighbours import Neighbours
from trimtab_operator.roll import Roll

Json = dict[str, Any]


def tuner(name: str, created: str = "2026-01-01T00:00:00Z", namespace: str = "ns", **spec: Any) -> Json:
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"u-{name}",
        "creationTimestamp": created,
        "managedFields": [1],
    }
    return {"metadata": meta, "spec": {"targetRef": {"name": "llm"}, "mode": "Auto", **spec}, "status": {"phase": "x"}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def roll() -> Roll:
    return Roll(Clock())


def names(roll: Roll, namespace: str = "ns") -> set[str] | None:
    known = roll.of(namespace)
    return None if known is None else {t["metadata"]["name"] for t in known}


def test_before_the_first_list_nothing_is_known(roll: Roll) -> None:
    roll.event(tuner("a"), gone=False)
    assert names(roll) is None


def test_events_change_what_was_listed(roll: Roll) -> None:
    roll.listed([tuner("a"), tuner("b"), tuner("c", namespace="other")], began=roll.monotonic())
    roll.event(tuner("b"), gone=True)
    roll.event(tuner("d"), gone=False)
    assert names(roll) == {"a", "d"} and names(roll, "other") == {"c"}
    roll.event(tuner("d", mode="Recommend"), gone=False)
    assert [t["spec"]["mode"] for t in roll.of("ns") or () if t["metadata"]["name"] == "d"] == ["Recommend"]


def test_a_list_that_was_overtaken_by_events_loses_none_of_them(roll: Roll) -> None:
    """It was read before a tuner was made and another one deleted, and arrives after both."""
    roll.listed([tuner("old")], began=roll.monotonic())
    began = roll.monotonic()
    roll.event(tuner("new"), gone=False)
    roll.event(tuner("old"), gone=True)
    roll.listed([tuner("old"), tuner("third")], began)
    assert names(roll) == {"new", "third"}


def test_a_list_mends_what_a_silent_watch_did_not_tell(roll: Roll) -> None:
    roll.event(tuner("gone"), gone=False)
    roll.listed([tuner("a")], began=roll.monotonic())
    assert names(roll) == {"a"}


def test_it_keeps_what_a_rival_is_told_by_and_no_more(roll: Roll) -> None:
    older = tuner("older", "2025-01-01T00:00:00Z")
    roll.listed([older, tuner("own")], began=roll.monotonic())
    known = roll.of("ns") or ()
    assert rival(known, "u-own", "llm") == rival([older, tuner("own")], "u-own", "llm") == "older"
    assert all("status" not in t and "managedFields" not in t["metadata"] for t in known)


def test_neighbours_list_the_tuners_only_until_they_are_known() -> None:
    asked: list[str] = []

    class Api:
        def list(self, kind: str, namespace: str) -> list[Json]:
            asked.append(kind)
            return [tuner("older", "2025-01-01T00:00:00Z")] if kind == "VLLMTuner" else []

    class Brakes:
        def look(self, namespace: str) -> Any:
            return None, []

    known: list[Json] | None = None
    api: Any = Api()
    brakes: Any = Brakes()
    neighbours = Neighbours(api, brakes, lambda: 0.0, lambda _namespace: known)
    deployment = {"metadata": {"name": "llm"}, "spec": {"template": {}}}
    assert neighbours.look(tuner("own"), deployment, None).rival == "older" and "VLLMTuner" in asked
    asked.clear()
    known = []
    assert neighbours.look(tuner("own"), deployment, None).rival == "" and "VLLMTuner" not in asked
