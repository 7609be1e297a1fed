"""`spec.rollout.drain`: what blocks, what is added by a trial of its own, and what is said."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from trimtab.plan.drain import added
from trimtab.plan.preconditions import FleetView, Ground, first_block
from trimtab.plan.record import TrialKind
from trimtab.plan.spec import TunerSpec
from trimtab_operator import drain
from trimtab_operator.records import SEARCH_LABEL, rfc3339

Json = dict[str, Any]
NOW = 1_800_000_000.0
BARE: Json = {
    "metadata": {"labels": {"app": "llm"}},
    "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=m"]}]},
}
TUNER: Json = {"metadata": {"name": "llm", "namespace": "ns", "uid": "t"}}
FLEET = FleetView(exists=True, replicas=2, engine_version="0.32.0")


def spec(mode: str = "Auto", **rollout: Any) -> TunerSpec:
    return TunerSpec.parse({"targetRef": {"name": "llm"}, "mode": mode, "metrics": {"direct": {}}, "rollout": rollout})


def look(asked: TunerSpec, template: Json = BARE, trials: Any = ()) -> drain.Drained:
    return drain.look(TUNER, asked, template, FLEET, trials)


def test_by_default_nothing_is_restarted_that_would_lose_requests() -> None:
    found = look(spec())
    assert not found.due and "kubectl patch deployment llm -n ns --type=json" in found.problem
    assert len(found.problem) <= 1024  # whole in a condition
    fleet = FleetView(exists=True, replicas=2, drain_problem=found.problem)
    block = first_block(Ground(spec(), fleet, [], [], NOW))
    assert block is not None and (block.reason, block.hard) == ("DrainUnsafe", True)
    hot = first_block(Ground(spec(), fleet, [], [], NOW, kind=TrialKind.POLICY))
    assert hot is None or hot.reason != "DrainUnsafe"  # a policy ends no pod


@pytest.mark.parametrize("asked", [spec(drain="Ignore"), spec(mode="Recommend")])
def test_who_ignores_it_and_who_restarts_nothing_is_not_held_up(asked: TunerSpec) -> None:
    assert look(asked) == drain.Drained()


def test_what_has_all_of_it_passes() -> None:
    assert look(spec(), added(BARE, None, "0.32.0")) == drain.Drained()


def test_add_asks_for_a_trial_of_its_own() -> None:
    found = look(spec(drain="Add"))
    assert found.due and found.problem == "" and found.candidate == added(BARE, None, "0.32.0")
    draft = found.draft(FLEET)
    assert draft.kind is TrialKind.DRAIN and draft.label == found.label and draft.template == found.candidate


def ended(label: str, phase: str, reason: str) -> Json:
    verdict = {"kind": "Error", "reason": reason, "message": "it died"}
    status = {"phase": phase, "verdict": verdict, "finishedAt": rfc3339(NOW), "message": "it died"}
    return {
        "metadata": {"name": "llm-1", "creationTimestamp": rfc3339(NOW), "labels": {SEARCH_LABEL: label}},
        "spec": {"number": 1, "configuration": {}, "baseline": {}},
        "status": status,
    }


def test_settings_that_did_not_start_are_not_added_again() -> None:
    label = look(spec(drain="Add")).label
    assert look(spec(drain="Add"), trials=[ended(label, "RolledBack", "Stopped")]).due
    failed = look(spec(drain="Add"), trials=[ended(label, "RolledBack", "CrashedAtStart")])
    assert not failed.due and "llm-1" in failed.problem


def test_a_loop_in_pre_stop_is_for_a_person() -> None:
    template = json.loads(json.dumps(BARE))
    hook = {"exec": {"command": ["sh", "-c", "while pgrep vllm; do sleep 1; done"]}}
    template["spec"]["containers"][0]["lifecycle"] = {"preStop": hook}
    found = look(spec(drain="Add"), template)
    assert not found.due and "loops" in found.problem and "Ignore" in found.problem


def test_the_label_names_the_template_that_would_be() -> None:
    text = json.dumps(added(BARE, None, "0.32.0"), sort_keys=True)
    assert look(spec(drain="Add")).label == "drain-" + hashlib.sha256(text.encode()).hexdigest()[:12]
