"""Which ended trials go, and what is taken off a trial at its end."""

from __future__ import annotations

from typing import Any

from builders import NOW, spec

from trimtab_operator.records import ACTIVE_LABEL, rfc3339
from trimtab_operator.upkeep import FINALIZER, Upkeep

Json = dict[str, Any]


class Api:
    def __init__(self, *objects: Json) -> None:
        self.objects = {o["metadata"]["name"]: o for o in objects}
        self.deleted: list[str] = []
        self.patches: list[Json] = []

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        return self.objects.get(name)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self.deleted.append(name)

    def json_patch(self, kind: str, seen: Json, operations: list[Json]) -> Json:
        self.patches.append({"kind": kind, "operations": operations})
        return seen


def trial(number: int, age: float, restarts: int) -> Json:
    started = rfc3339(NOW - age)
    return {
        "metadata": {"name": f"llm-{number}", "namespace": "ns", "creationTimestamp": started,
                     "labels": {ACTIVE_LABEL: "true"}, "finalizers": ["other/keeps", FINALIZER]},
        "spec": {"number": number, "configuration": {}, "baseline": {"replicas": 2}},
        "status": {"phase": "RolledBack", "restarts": restarts, "startedAt": started},
    }  # fmt: skip


def test_old_trials_go_but_not_those_that_todays_budget_counts() -> None:
    trials = [trial(1, 90_000, 3), trial(2, 80_000, 3), trial(3, 70_000, 0), trial(4, 100, 3)]
    api: Any = Api()
    Upkeep(api).prune(spec(trialHistoryLimit=1), trials, NOW)
    assert api.deleted == ["llm-1", "llm-3"]


def test_an_ended_trial_loses_its_finalizer_and_is_no_longer_counted_as_active() -> None:
    ended = trial(1, 100, 3)
    tuner = {"metadata": {"name": "llm", "namespace": "ns", "finalizers": []}}
    api: Any = Api(ended, tuner)
    Upkeep(api).release(tuner, ended)
    (patch,) = api.patches
    assert patch["operations"] == [
        {"op": "replace", "path": "/metadata/finalizers", "value": ["other/keeps"]},
        {"op": "remove", "path": "/metadata/labels/trimtab.dev~1active"},
    ]
