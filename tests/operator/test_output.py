"""The recommended change for the Deployment's owner: in the status, in a ConfigMap, and after a promotion."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, record, spec

from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration
from trimtab.errors import TargetRefused
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase
from trimtab.tune.suggestion import Suggestion
from trimtab_operator.output import Output, advice
from trimtab_operator.records import rfc3339, status_of
from trimtab_operator.target import Target
from trimtab_operator.tuner_status import Situation, tuner_status

Json = dict[str, Any]
CONTAINER = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": ["--model=m", "--max-num-seqs=128"]}
TEMPLATE: Json = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [CONTAINER]}}
HELM = {"annotations": {"meta.helm.sh/release-name": "llm"}}
TUNER: Json = {
    "apiVersion": "trimtab.dev/v1alpha1",
    "kind": "VLLMTuner",
    "metadata": {"name": "llm", "namespace": "ns", "uid": "u", "generation": 1},
    "spec": {},
}


def template(slots: int) -> Json:
    return rewrite(TEMPLATE, {"max_num_seqs": slots}, "vllm", version="0.11.0")


def target(current: Json, **meta: Any) -> Target:
    named = {"name": "llm", "namespace": "ns", "uid": "d", **meta}
    return Target({"metadata": named, "spec": {"replicas": 2, "template": current}})


def fleet(slots: int) -> FleetView:
    return FleetView(exists=True, replicas=2, configuration=Configuration.of(max_num_seqs=slots))


def suggestion(slots: int) -> Suggestion:
    return Suggestion(Configuration.of(max_num_seqs=slots), "Set it.", "kubectl patch", "args:", template(slots))


def promoted(number: int, before: int, after: int) -> Json:
    ended = record(Phase.PROMOTED, NOW - 50, number=number, finished_at=NOW - 10)
    ended = replace(ended, name=f"llm-{number}", baseline=Configuration.of(max_num_seqs=before))
    baseline = {
        "deploymentUid": "d",
        "templateJson": json.dumps(template(before)),
        "candidateTemplateJson": json.dumps(template(after)),
    }
    return {
        "metadata": {"name": f"llm-{number}", "creationTimestamp": rfc3339(NOW - 100)},
        "spec": {
            "number": number,
            "configuration": {"maxNumSeqs": after},
            "baselineConfiguration": {"maxNumSeqs": before},
            "baseline": baseline,
        },
        "status": status_of(ended, {}, "", 1),
    }


def test_a_recommendation_names_the_owner_and_comes_in_the_owners_forms() -> None:
    made = advice(target(template(128), **HELM), fleet(128), [], suggestion(48))
    status = tuner_status(
        TUNER,
        spec(mode="Recommend"),
        [],
        None,
        Situation(None, fleet(128), made.suggestion, handover=made.handover),
        NOW,
    )
    shown = status["recommendation"]
    assert shown["owner"] == "Helm (llm)" and "values" in shown["advice"]
    assert set(shown["forms"]) == {"jsonPatch", "strategicPatch", "kustomize", "helmValues"}
    again = Situation(None, fleet(128), suggestion(50), handover=made.handover)
    assert tuner_status({**TUNER, "status": status}, spec(mode="Recommend"), [], None, again, NOW) == status


def test_what_was_promoted_is_handed_over_until_the_owner_writes() -> None:
    trials = [promoted(1, 128, 64), promoted(2, 64, 48)]
    made = advice(target(template(48), **HELM), fleet(48), trials, None)
    assert made.suggestion is not None and "llm-2 was promoted" in made.suggestion.message and made.handover is not None
    assert "--max-num-seqs=48" in made.handover.helm_values and "128" in made.handover.json_patch  # from the first on
    helms = {"manager": "helm", "time": rfc3339(NOW - 5), "operation": "Apply"}
    ours = {"manager": "trimtab", "time": rfc3339(NOW - 5)}
    status = {"manager": "kubelet", "subresource": "status", "time": rfc3339(NOW - 5)}
    older = {**helms, "time": rfc3339(NOW - 500)}
    for fields, left in (([ours, status, older], True), ([helms], False)):
        assert (
            advice(target(template(48), **HELM, managedFields=fields), fleet(48), trials, None).handover is not None
        ) is left


def test_without_an_owner_or_after_another_change_a_promotion_is_not_handed_over() -> None:
    trials = [promoted(1, 128, 64)]
    assert advice(target(template(64)), fleet(64), trials, None).suggestion is None
    assert advice(target(template(32), **HELM), fleet(32), trials, None).suggestion is None


class Api:
    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.calls: list[str] = []
        self.refuse = False

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        self.calls.append("get")
        return copy.deepcopy(self.objects.get(name))

    def create(self, kind: str, namespace: str, body: Json) -> Json:
        self.calls.append("create")
        if self.refuse:
            raise TargetRefused("403")
        self.objects[body["metadata"]["name"]] = body
        return body

    def json_patch(self, kind: str, seen: Json, operations: list[Json]) -> Json:
        self.calls.append("patch")
        (operation,) = operations
        assert operation["path"] == "/data"
        self.objects[seen["metadata"]["name"]]["data"] = operation["value"]
        return seen


STATUS = {"recommendation": {"forms": {"helmValues": "args: []\n", "jsonPatch": "[]\n"}}}


@pytest.fixture
def told() -> list[str]:
    return []


def output(api: Any, told: list[str]) -> Output:
    return Output(api, lambda tuner, text: told.append(text))


def test_the_config_map_follows_the_recommendation_and_is_written_only_when_it_changes(told: list[str]) -> None:
    api, wanted = Api(), spec(output={"configMap": "llm-change"})
    out = output(api, told)
    for _ in range(3):
        out.write(TUNER, wanted, STATUS)
    assert api.calls == ["get", "create"] and not told
    made = api.objects["llm-change"]
    assert made["data"] == {"values.yaml": "args: []\n", "patch.json": "[]\n"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    output(api, told).write(TUNER, wanted, STATUS)  # a new process finds it
    assert api.calls[2:] == ["get"]
    out.write(TUNER, wanted, {})  # nothing is recommended any more: stale advice would be applied again
    assert made["data"] == {}


def test_a_config_map_of_someone_else_is_left_alone(told: list[str]) -> None:
    api = Api()
    api.objects["mine"] = {"metadata": {"name": "mine", "labels": {}}, "data": {"values.yaml": "precious"}}
    output(api, told).write(TUNER, spec(output={"configMap": "mine"}), STATUS)
    assert api.objects["mine"]["data"] == {"values.yaml": "precious"} and "not this tuner's" in told[0]


def test_without_the_right_it_is_told_and_nothing_stops(told: list[str]) -> None:
    api = Api()
    api.refuse = True
    output(api, told).write(TUNER, spec(output={"configMap": "x"}), STATUS)
    assert "is not written" in told[0]
    output(api, told).write(TUNER, spec(), STATUS)
    assert len(told) == 1


ISVC: Json = {
    "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
    "metadata": {"name": "llm", "namespace": "ns"},
    "spec": {"predictor": {"model": {"modelFormat": {"name": "vllm"}, "args": ["--model=m", "--max-num-seqs=128"]}}},
}  # fmt: skip


class Owners:
    """The API server, asked for what owns a target."""

    def __init__(self, body: Json | None) -> None:
        self.body = body
        self.asked: list[tuple[str, ...]] = []

    def owner(self, *what: str) -> Json | None:
        self.asked.append(what)
        return self.body


def kserve(current: Json) -> Target:
    reference = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": "llm"}
    return target(current, ownerReferences=[{**reference, "controller": True}])


def shown_for(owner: Json | None, before: Json | None = None) -> Json:
    api: Any = Owners(owner)
    made = advice(kserve(template(128)), fleet(128), [], suggestion(48), api)
    assert api.asked == [("ns", "serving.kserve.io/v1beta1", "InferenceService", "llm")]
    situation = Situation(None, fleet(128), made.suggestion, handover=made.handover)
    tuner = {**TUNER, "status": {"recommendation": before}} if before else TUNER
    status: Json = tuner_status(tuner, spec(mode="Recommend"), [], None, situation, NOW)["recommendation"]
    return status


def test_for_a_target_of_kserve_the_recommendation_is_a_patch_of_its_object() -> None:
    shown = shown_for(ISVC)
    assert shown["owner"] == "InferenceService llm" and set(shown["forms"]) == {"ownerPatch"}
    assert shown["patch"].startswith("kubectl patch inferenceservices.serving.kserve.io llm --namespace ns --type=json")
    assert "deployment" not in shown["patch"] and shown["snippet"] == ""


def test_where_the_owner_cannot_be_read_no_patch_is_offered_that_it_would_undo() -> None:
    shown = shown_for(None)
    assert shown["forms"] == {} and shown["patch"].startswith("# Change spec.predictor.model.args")
    assert "kubectl" not in shown["patch"]


def test_a_right_that_comes_later_brings_the_patch() -> None:
    assert "ownerPatch" in shown_for(ISVC, before=shown_for(None))["forms"]
