"""The real API server against the CRDs: what it refuses and with which words, what it fills in, what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from crd_cases import PROMETHEUS, RIGHT, WRONG, WRONG_FOR_THE_SERVER, Manifest, trial, tuner

from trimtab.errors import InputError
from trimtab.plan.spec import TunerSpec

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("crds")]


@pytest.mark.parametrize("case", [*WRONG, *WRONG_FOR_THE_SERVER])
def test_a_wrong_tuner_is_refused_with_the_fix(kubectl: Any, case: str) -> None:
    changes, message = {**WRONG, **WRONG_FOR_THE_SERVER}[case]
    done = kubectl.run("create", "--dry-run=server", "-f", "-", stdin=tuner(**changes), check=False)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("case", WRONG)
def test_tuner_spec_refuses_the_same(case: str) -> None:
    with pytest.raises(InputError):
        TunerSpec.parse(tuner(**WRONG[case][0])["spec"])


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_tuner_is_accepted_and_parses(kubectl: Any, case: str) -> None:
    made = kubectl.json("create", "--dry-run=server", "-f", "-", stdin=tuner(**RIGHT[case]))
    TunerSpec.parse(made["spec"])


def test_the_server_fills_in_what_tuner_spec_assumes(kubectl: Any) -> None:
    made = kubectl.json("create", "--dry-run=server", "-f", "-", stdin=tuner(rollout={"windows": [{}]}))
    assumed = TunerSpec.parse(tuner(rollout={"windows": [{}]})["spec"])
    assert made["spec"] == json.loads(assumed.model_dump_json(by_alias=True, exclude_none=True))


def test_null_leaves_a_setting_alone(kubectl: Any) -> None:
    made = kubectl.json("create", "--dry-run=server", "-f", "-", stdin=tuner(search={"maxNumSeqs": None}))
    assert made["spec"]["search"]["maxNumSeqs"] is None
    assert TunerSpec.parse(made["spec"]).search.max_num_seqs is None


@pytest.mark.parametrize(("length", "accepted"), [(40, True), (41, False)])
def test_names_leave_room_for_names_of_trials(kubectl: Any, length: int, accepted: bool) -> None:
    done = kubectl.run("create", "--dry-run=server", "-f", "-", stdin=tuner("n" * length), check=False)
    assert (done.returncode == 0) is accepted
    assert accepted or "use at most 40 characters" in done.stderr


@pytest.fixture(scope="module")
def existing(kubectl: Any) -> Callable[[str, Manifest], Any]:
    """Creates a tuner and a trial once; the function tries a merge patch on one of them and gives kubectl's answer."""
    kubectl("create", "-f", "-", stdin=tuner("old"))
    kubectl("create", "-f", "-", stdin=trial("old-1"))

    def patch(what: str, change: Manifest) -> Any:
        return kubectl.run("patch", what, "--type=merge", "--patch", json.dumps(change), check=False)

    return patch


@pytest.mark.parametrize("change", [{"name": "other"}, {"container": "vllm"}])
def test_the_target_of_a_tuner_stays(existing: Callable[[str, Manifest], Any], change: Manifest) -> None:
    done = existing("vt/old", {"spec": {"targetRef": change}})
    assert "targetRef is immutable; create another VLLMTuner" in done.stderr


def test_the_rest_of_a_tuner_may_change(existing: Callable[[str, Manifest], Any]) -> None:
    assert existing("vt/old", {"spec": {"mode": "Auto", "metrics": {"direct": None, **PROMETHEUS}}}).returncode == 0


@pytest.mark.parametrize(
    "change",
    [
        {"configuration": {"maxNumSeqs": 33}},
        {"approvalRequired": True},
        {"baseline": {"templateJson": "{}"}},
        {"baseline": {"minReadySeconds": 5}},
        {"origin": None},
    ],
    ids=str,
)
def test_the_spec_of_a_trial_stays(existing: Callable[[str, Manifest], Any], change: Manifest) -> None:
    done = existing("tt/old-1", {"spec": change})
    assert "the spec of a TuningTrial is immutable" in done.stderr


def test_a_trial_can_be_annotated(existing: Callable[[str, Manifest], Any]) -> None:
    assert existing("tt/old-1", {"metadata": {"annotations": {"trimtab.dev/approved": "true"}}}).returncode == 0


def test_a_trial_keeps_nulls_and_a_template_of_256_kib(kubectl: Any) -> None:
    baseline = trial()["spec"]["baseline"]
    text = json.dumps({"x": "y" * (262_144 - 9)})
    big = {**baseline, "templateJson": text, "candidateTemplateJson": text, "minReadySeconds": None}
    kubectl("create", "-f", "-", stdin=trial("big-1", baseline=big))
    made = kubectl.json("get", "tt", "big-1")
    assert made["spec"]["baseline"] == big
    kubectl(
        "patch", "tt", "big-1", "--subresource=status", "--type=merge", "--patch", '{"status":{"phase":"Starting"}}'
    )


def test_a_template_above_256_kib_is_refused(kubectl: Any) -> None:
    baseline = {**trial()["spec"]["baseline"], "templateJson": "x" * 262_145}
    done = kubectl.run("create", "--dry-run=server", "-f", "-", stdin=trial(baseline=baseline), check=False)
    assert "262144" in done.stderr


def condition(**fields: Any) -> Manifest:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "Watching",
        "message": "all is well",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "observedGeneration": 1,
        **fields,
    }


TUNER_STATUS: Manifest = {
    "observedGeneration": 1,
    "phase": "Tuning",
    "finding": "Preemption",
    "findings": [
        {
            "name": "Preemption",
            "severity": "Warning",
            "confidence": 0.95,
            "message": "5 of 100 requests are preempted",
            "advice": "lower max_num_seqs",
            "evidence": {"preemptionsPerRequest": 0.05, "pods": 3},
        }
    ],
    "currentTrial": "shown-3",
    "trials": {"total": 2, "promoted": 1, "rolledBack": 1, "failed": 0, "inconclusive": 0},
    "bestGainPercent": 23.4,
    "bestGain": "+23.4%",
    "configuration": {"maxNumSeqs": 64},
    "recommendation": {
        "configuration": {"maxNumSeqs": 48},
        "message": "m",
        "patch": "kubectl ...",
        "snippet": "- --max-num-seqs=48",
    },
    "restartsToday": 4,
    "conditions": [
        condition(),
        condition(type="Stalled", status="False"),
        condition(type="Progressing", message="measuring the canary"),
    ],
}

VERDICT: Manifest = {
    "kind": "Better",
    "reason": "GoodputBetter",
    "message": "m",
    "gainPercent": 12.5,
    "gainLowPercent": 3,
    "gainHighPercent": 20.25,
    "score": 0.117,
    "numbers": {"pairs": 10, "canaryGoodput": 812.5},
}

TRIAL_STATUS: Manifest = {
    "observedGeneration": 1,
    "phase": "Confirming",
    "phaseSince": "2026-01-02T03:04:05Z",
    "startedAt": "2026-01-02T03:04:05Z",
    "finishedAt": "2026-01-02T03:04:05Z",
    "measureFrom": "2026-01-02T03:04:05.5Z",
    "confirmFrom": "2026-01-02T03:04:05Z",
    "metricsSeenAt": "2026-01-02T03:04:05Z",
    "held": True,
    "evaluations": 1,
    "remeasured": 0,
    "replicas": 3,
    "canaryPod": "llama-abc-def",
    "verdict": VERDICT,
    "gain": "+12.5%",
    "settings": "max_num_seqs=32 prefix=on",
    "infeasible": False,
    "restarts": 1,
    "message": "measuring again",
    "history": [{"phase": "Starting", "at": "2026-01-02T03:04:05Z", "message": "approved"}],
    "conditions": [condition(type="Complete", status="Unknown")],
}


def set_status(kubectl: Any, what: str, status: Manifest, check: bool = True) -> Any:
    return kubectl.run(
        "patch", what, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": status}), check=check
    )


def test_a_full_status_is_kept_to_the_last_field(kubectl: Any) -> None:
    kubectl("create", "-f", "-", stdin=tuner("full"))
    kubectl("create", "-f", "-", stdin=trial("full-1"))
    set_status(kubectl, "vt/full", TUNER_STATUS)
    set_status(kubectl, "tt/full-1", TRIAL_STATUS)
    assert kubectl.json("get", "vt", "full")["status"] == TUNER_STATUS
    assert kubectl.json("get", "tt", "full-1")["status"] == TRIAL_STATUS


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Thinking"}, '"Converged", "Suspended", "Failed"'),
        ({"conditions": [condition(), condition()]}, "Duplicate value"),
        ({"conditions": [condition(status="Maybe")]}, '"True", "False", "Unknown"'),
        ({"conditions": [condition(reason="not camel case")]}, "reason"),
    ],
)
def test_a_wrong_status_is_refused(existing: Any, kubectl: Any, status: Manifest, message: str) -> None:
    assert message in set_status(kubectl, "vt/old", status, check=False).stderr


def test_spec_and_status_are_written_apart(kubectl: Any) -> None:
    kubectl("create", "-f", "-", stdin={**tuner("apart"), "status": {"phase": "Tuning"}})
    assert "status" not in kubectl.json("get", "vt", "apart")
    set_status(kubectl, "vt/apart", {"phase": "Observing"})
    kubectl("patch", "vt/apart", "--subresource=status", "--type=merge", "--patch", '{"spec":{"mode":"Auto"}}')
    made = kubectl.json("get", "vt", "apart")
    assert (made["status"], made["spec"]["mode"], made["metadata"]["generation"]) == (
        {"phase": "Observing"},
        "Recommend",
        1,
    )


def columns(kubectl: Any, *what: str) -> dict[str, str]:
    """Header to value of a table of one row; columns are two and more spaces apart."""
    header, row = kubectl("get", *what).splitlines()
    starts = [0] + [i + 1 for i in range(1, len(header) - 1) if header[i - 1 : i + 1] == "  " and header[i + 1] != " "]
    ends = [*starts[1:], None]
    return {header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends, strict=True)}


def test_columns_of_a_tuner_say_what_it_does(kubectl: Any) -> None:
    kubectl("create", "-f", "-", stdin=tuner("shown", targetRef={"name": "llama-8b"}))
    set_status(kubectl, "vt/shown", TUNER_STATUS)
    shown = columns(kubectl, "vt", "shown")
    assert shown.pop("AGE")
    assert shown == {
        "NAME": "shown", "TARGET": "llama-8b", "MODE": "Recommend", "PHASE": "Tuning", "FINDING": "Preemption",
        "TRIAL": "shown-3", "BEST GAIN": "+23.4%", "READY": "True",
    }  # fmt: skip
    wide = columns(kubectl, "vt", "shown", "-o", "wide")
    assert (wide["RESTARTS TODAY"], wide["MESSAGE"]) == ("4", "measuring the canary")


def test_columns_of_a_trial_say_how_it_went(kubectl: Any) -> None:
    kubectl("create", "-f", "-", stdin=trial("shown-1"))
    set_status(kubectl, "tt/shown-1", TRIAL_STATUS)
    shown = columns(kubectl, "tt", "shown-1")
    assert shown.pop("AGE")
    assert shown == {
        "NAME": "shown-1", "TUNER": "llama", "PHASE": "Confirming", "VERDICT": "Better", "GAIN": "+12.5%",
        "SETTINGS": "max_num_seqs=32 prefix=on", "RESTARTS": "1",
    }  # fmt: skip


def test_one_category_lists_both(existing: Any, kubectl: Any) -> None:
    names = kubectl("get", "trimtab", "-o", "name").split()
    assert {"vllmtuner.trimtab.dev/old", "tuningtrial.trimtab.dev/old-1"} <= set(names)


def test_waiting_for_ready_works(kubectl: Any) -> None:
    kubectl("create", "-f", "-", stdin=tuner("waited"))
    set_status(kubectl, "vt/waited", {"conditions": [condition()]})
    kubectl("wait", "--for=condition=Ready", "--timeout=10s", "vt/waited")


def test_explain_documents_units_and_limits(kubectl: Any) -> None:
    text = kubectl("explain", "vllmtuner.spec.rollout.maxMeasurementSeconds")
    assert "in seconds" in " ".join(text.split()) or "at most 86400" in " ".join(text.split())


@pytest.mark.parametrize("name", ["tuner-recommend", "tuner-approve", "tuner-auto", "target", "sweep"])
def test_examples_are_accepted(kubectl: Any, request: pytest.FixtureRequest, name: str) -> None:
    kubectl("apply", "--dry-run=server", "-f", str(request.config.rootpath / "examples" / f"{name}.yaml"))
