"""The kill switch and the freeze label as they are read: fresh, kept for a while, unknown, without the right."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.errors import ClusterUnavailable, TargetRefused
from trimtab_operator.brakes import FRESH_SECONDS, TRUSTED_SECONDS, BrakeReader

Json = dict[str, Any]


class Api:
    """Answers, or raises, by kind; counts what was asked."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {"ConfigMap": None, "Namespace": {"metadata": {"name": "ml"}}}
        self.asked: list[tuple[str, str, str]] = []
        self.now = 1000.0

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        self.asked.append((kind, namespace, name))
        found = self.objects[kind]
        if isinstance(found, Exception):
            raise found
        answer: Json | None = found
        return answer


def reader(api: Any, namespace: str = "ops") -> BrakeReader:
    return BrakeReader(api, namespace, lambda: api.now)


def switch(stop: str, **more: str) -> Json:
    return {"metadata": {"name": "trimtab-kill-switch"}, "data": {"stop": stop, **more}}


def test_nothing_is_pulled_where_nothing_is_set() -> None:
    api = Api()
    brakes, notes = reader(api).look("ml")
    assert not brakes.pulled and not brakes.unknown and notes == []
    assert api.asked == [("ConfigMap", "ops", "trimtab-kill-switch"), ("Namespace", "", "ml")]


def test_a_pulled_switch_is_seen_within_seconds_and_says_why() -> None:
    api = Api()
    brakes = reader(api)
    assert not brakes.look("ml")[0].pulled
    api.objects["ConfigMap"] = switch("true", reason="incident 42")
    assert not brakes.look("ml")[0].pulled and len(api.asked) == 2  # the answer of now is kept
    api.now += FRESH_SECONDS
    assert brakes.look("ml")[0].stop.endswith("(ConfigMap ops/trimtab-kill-switch): incident 42")
    api.objects["ConfigMap"] = switch("false")
    api.now += FRESH_SECONDS
    assert not brakes.look("ml")[0].pulled


def test_a_reason_cannot_draw_on_a_terminal() -> None:
    api = Api()
    api.objects["ConfigMap"] = switch("true", reason="a\x1b[31mred\x1b[0m\nline " + "x" * 9999)
    stop = reader(api).look("ml")[0].stop
    assert stop.isprintable() and len(stop) < 400 and "red line" in stop


def test_a_frozen_namespace_freezes_its_own_tuners_only() -> None:
    api = Api()
    api.objects["Namespace"] = {"metadata": {"labels": {"trimtab.dev/freeze": "black-friday"}}}
    assert "trimtab.dev/freeze=black-friday" in reader(api).look("ml")[0].freeze
    api.objects["Namespace"] = {"metadata": {"labels": {"trimtab.dev/freeze": "false"}}}
    assert not reader(api).look("other")[0].pulled


@pytest.mark.parametrize("kind", ["ConfigMap", "Namespace"])
def test_what_cannot_be_read_is_not_taken_for_not_pulled(kind: str) -> None:
    api = Api()
    brakes = reader(api)
    brakes.look("ml")
    api.objects[kind] = ClusterUnavailable("no answer")
    api.now += FRESH_SECONDS
    assert not brakes.look("ml")[0].unknown  # the last answer still counts
    api.now += TRUSTED_SECONDS
    found, _ = brakes.look("ml")
    assert "cannot be read" in found.unknown and not found.pulled


def test_a_switch_that_is_pulled_stays_pulled_while_the_namespace_cannot_be_read() -> None:
    api = Api()
    api.objects |= {"ConfigMap": switch("true"), "Namespace": ClusterUnavailable("no answer")}
    found, _ = reader(api).look("ml")
    assert found.stop and found.unknown


@pytest.mark.parametrize("kind", ["ConfigMap", "Namespace"])
def test_without_the_right_the_rule_is_off_and_a_note_says_so(kind: str) -> None:
    api = Api()
    api.objects[kind] = TargetRefused("403")
    found, notes = reader(api).look("ml")
    assert not found.unknown and not found.pulled and [n.reason for n in notes] == ["NoRight"]


def test_without_a_namespace_of_its_own_there_is_no_switch() -> None:
    api = Api()
    reader(api, "").look("ml")
    assert [kind for kind, _, _ in api.asked] == ["Namespace"]
