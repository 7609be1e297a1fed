"""Files in: what the operator and `trimtab tune` write is read back; what is not theirs is refused by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_files import BASE, NOW, result, trial, verdict

from trimtab.errors import InputError
from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase
from trimtab.report.read import parse, read
from trimtab.report.read_cluster import trial_record
from trimtab.tune.state import State, to_json
from trimtab_operator.records import new_trial, record_of, status_of
from trimtab_operator.rollout import Baseline

Json = dict[str, Any]
TEMPLATE = {"spec": {"containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "4"}}}, {"name": "x"}]}}


def tuner(name: str = "llama", **status: Any) -> Json:
    spec = {"targetRef": {"name": "llama-70b"}, "mode": "Auto", "guardrails": {"maxLatencyRatio": 3},
            "objective": {"slo": {"ttftSeconds": 2.5}}}  # fmt: skip
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "spec": spec, "status": status,
            "metadata": {"name": name, "namespace": "prod", "uid": "u1"}}  # fmt: skip


def tuning_trial(number: int = 1, phase: Phase = Phase.PROMOTED) -> Json:
    """As the operator makes and writes it."""
    record = trial(number, phase, verdict(Kind.BETTER, 0.25), confirm_from=NOW, evaluations=3)
    baseline = Baseline.of({"metadata": {"uid": "d"}, "spec": {"template": TEMPLATE, "replicas": 2}}, TEMPLATE, 0)
    made = new_trial(tuner(), number, baseline, 2, BASE, record.configuration, "why", approval=False, search="s")
    made["metadata"]["creationTimestamp"] = "2026-09-01T00:00:00Z"
    return {**made, "status": status_of(record, {}, "pod", 1)}


def test_a_tuning_trial_is_read_as_the_operator_reads_it() -> None:
    stored = tuning_trial()
    ours, theirs = trial_record(stored), record_of(stored)
    used = ("name", "number", "configuration", "baseline", "phase", "phase_since", "started_at", "replicas", "origin",
            "measure_from", "confirm_from", "evaluations", "verdict", "infeasible", "restarts", "finished_at",
            "message", "kind", "change")  # fmt: skip
    assert {n: getattr(ours, n) for n in used} == {n: getattr(theirs, n) for n in used}


def test_a_list_of_kubectl() -> None:
    status = {"phase": "Converged", "findings": [{"name": "Preemption", "severity": "Critical", "message": "m"}],
              "recommendation": {"patch": "kubectl patch ...", "message": "Set it."},
              "conditions": [{"type": "Progressing", "message": "5 trials without a promotion"}]}  # fmt: skip
    other = {**tuning_trial(9), "spec": {**tuning_trial(9)["spec"], "tunerName": "other"}}
    found = read({"kind": "List", "items": [tuning_trial(2), tuner(**status), other, tuning_trial(1)]})
    assert [t.number for t in found.trials] == [1, 2] and found.title == "prod/llama-70b"
    assert found.state == "Converged: 5 trials without a promotion" and found.patch.startswith("kubectl patch")
    assert found.gpus == 4 and found.replicas == 2 and found.limits.ttft_seconds == 2.5
    assert found.findings[0].name == "Preemption" and found.findings[0].tunable is None
    assert found.before is not None and found.before["goodput_tokens_per_second"] == 100
    assert found.after is not None and found.after["goodput_tokens_per_second"] == 125


def test_a_state_file_of_a_run_that_goes_on() -> None:
    state = State(["vllm", "serve", "m odel"], 2, {}, [trial(1, Phase.MEASURING, finished_at=None)])
    found = parse(json.dumps(to_json(state)), "tune.json")
    assert (
        found.state == "in the middle of trial 1" and found.given == "vllm serve 'm odel'" and found.title == "m odel"
    )


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ([], "f: holds no JSON object"),
        ({"kind": "List", "items": []}, "f: holds no VLLMTuner"),
        ({"kind": "List", "items": [tuner("a"), tuner("b")]}, "--tuner: is needed, as f holds several. Use one of"),
        ({"some": 1}, "f: is neither"),
        (result() | {"trials": [{"number": 1}]}, r"f.trials\[0\]: is no trial"),
        ({"kind": "List", "items": [tuner(), tuning_trial() | {"spec": {"tunerName": "llama"}}]},
         "TuningTrial llama-1: spec.number: is missing"),
    ],
)  # fmt: skip
def test_what_is_not_ours_is_refused_by_name(data: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read(data, "f")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("finishedAt", "yesterday", "status.finishedAt: 'yesterday' is no time"),
        ("phase", "Baking", "status.phase: 'Baking' is not known. Known are AwaitingApproval"),
        ("verdict", {"kind": "Nice"}, "status.verdict.kind: 'Nice' is not known"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(key: str, value: Any, named: str) -> None:
    stored = tuning_trial()
    stored["status"][key] = value
    with pytest.raises(InputError, match=named):
        trial_record(stored)


def test_text_that_is_no_json() -> None:
    with pytest.raises(InputError, match=r"x\.json: is no JSON"):
        parse("{", "x.json")


def test_an_unknown_tuner_is_named_with_those_that_are_there() -> None:
    with pytest.raises(InputError, match=r"--tuner: 'c' is not in f\. Use one of a, b"):
        read({"kind": "List", "items": [tuner("a"), tuner("b")]}, "f", "c")


def test_numbers_that_are_none_stay_unknown() -> None:
    found = read(result(before={"goodput_tokens_per_second": "many", "waiting": float("nan")}, after=None))
    assert found.before is None and found.after is None
