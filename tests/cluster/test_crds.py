"""The real API server against the CRDs: what it refuses and with which words, what it fills in, what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.errors import InputError
from trimtab.plan.spec import TunerSpec

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("crds")]

Manifest = dict[str, Any]


def tuner(name: str = "llama", **changes: Any) -> Manifest:
    """A minimal VLLMTuner; `changes` replace or add fields of its spec, None removes one."""
    spec = {"targetRef": {"name": "llama"}, "metrics": {"direct": {}}, **changes}
    spec = {k: v for k, v in spec.items() if v is not None}
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": name}, "spec": spec}


def trial(name: str = "llama-1", **changes: Any) -> Manifest:
    spec = {
        "tunerName": "llama",
        "number": 1,
        "configuration": {"maxNumSeqs": 32, "enablePrefixCaching": True},
        "baselineConfiguration": {},
        "origin": "first guess",
        "baseline": {
            "deploymentUid": "1d0e9e0c",
            "templateJson": '{"spec":{}}',
            "strategyJson": "{}",
            "minReadySeconds": None,
            "paused": False,
            "replicas": 3,
            "progressDeadlineSeconds": 600,
            "templateHash": "abc",
            "candidateTemplateJson": '{"spec":{}}',
        },
        **changes,
    }
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "TuningTrial", "metadata": {"name": name}, "spec": spec}


PROMETHEUS = {"prometheus": {"url": "http://prometheus:9090"}}

#: what is wrong -> the spec's changes, and what the message must say. Both twins refuse these.
WRONG: dict[str, tuple[Manifest, str]] = {
    "no target": ({"targetRef": None}, "spec.targetRef: Required value"),
    "target without a name": ({"targetRef": {}}, "spec.targetRef.name: Required value"),
    "target with an empty name": ({"targetRef": {"name": ""}}, "at least 1 chars long"),
    "target is a StatefulSet": ({"targetRef": {"name": "a", "kind": "StatefulSet"}}, 'supported values: "Deployment"'),
    "target of another API": ({"targetRef": {"name": "a", "apiVersion": "apps/v2"}}, 'supported values: "apps/v1"'),
    "unknown mode": ({"mode": "Manual"}, 'supported values: "Recommend", "Approve", "Auto"'),
    "no metrics": ({"metrics": None}, "spec.metrics: Required value"),
    "no source": ({"metrics": {}}, "set exactly one of metrics.prometheus and metrics.direct"),
    "two sources": (
        {"metrics": {**PROMETHEUS, "direct": {}}},
        "set exactly one of metrics.prometheus and metrics.direct",
    ),
    "url without a scheme": ({"metrics": {"prometheus": {"url": "prometheus:9090"}}}, "spec.metrics.prometheus.url"),
    "query limit 0": (
        {"metrics": {"prometheus": {"url": "http://p", "timeoutSeconds": 0}}},
        "should be greater than 0",
    ),
    "query limit too long": (
        {"metrics": {"prometheus": {"url": "http://p", "timeoutSeconds": 61}}},
        "less than or equal to 60",
    ),
    "half a secret": (
        {"metrics": {"prometheus": {"url": "http://p", "bearerTokenSecretRef": {"name": "s"}}}},
        "key: Required value",
    ),
    "scrape too often": ({"metrics": {"direct": {"intervalSeconds": 0.5}}}, "greater than or equal to 1"),
    "SLO of 0": ({"objective": {"slo": {"ttftSeconds": 0}}}, "spec.objective.slo.ttftSeconds"),
    "negative gain": ({"objective": {"minGainPercent": -1}}, "greater than or equal to 0"),
    "min above max": ({"search": {"maxNumSeqs": {"min": 64, "max": 32}}}, "min must not exceed max; swap them"),
    "min above max, tokens": (
        {"search": {"maxNumBatchedTokens": {"min": 9000, "max": 8000}}},
        "min must not exceed max; swap them",
    ),
    "min above max, policy": (
        {"tokenPolicy": {"maxNewTokens": {"min": 2, "max": 1}}},
        "min must not exceed max; swap them",
    ),
    "policy without the middleware": (
        {"tokenPolicy": {"policy": {"tokens": {"capMaxTokens": 9}}}},
        "policy needs middleware: Install",
    ),
    "percentile without a range": (
        {"tokenPolicy": {"middleware": "Install", "method": "Percentile"}},
        "method Percentile needs middleware: Install and maxNewTokens",
    ),
    "a cap of 0": (
        {"tokenPolicy": {"middleware": "Install", "policy": {"tokens": {"capMaxTokens": 0}}}},
        "greater than or equal to 1",
    ),
    "a value without its header": (
        {"tokenPolicy": {"middleware": "Install", "policy": {"rules": [{"match": {"headerValue": "x"}}]}}},
        "headerValue needs header",
    ),
    "an experiment of one's own": (
        {"tokenPolicy": {"middleware": "Install", "policy": {"experiment": {}}}},
        'unknown field "spec.tokenPolicy.policy.experiment"',
    ),
    "range without max": ({"search": {"maxNumSeqs": {"min": 64}}}, "spec.search.maxNumSeqs.max: Required value"),
    "range from 0": ({"search": {"maxNumSeqs": {"min": 0, "max": 9}}}, "greater than or equal to 1"),
    "unknown setting": (
        {"search": {"candidates": [{"maxSeqs": 4}]}},
        'unknown field "spec.search.candidates[0].maxSeqs"',
    ),
    "text for a number": ({"search": {"candidates": [{"maxNumSeqs": "32"}]}}, "candidates[0].maxNumSeqs"),
    "number for a switch": (
        {"search": {"candidates": [{"enablePrefixCaching": 1}]}},
        "candidates[0].enablePrefixCaching",
    ),
    "candidate of 0": ({"search": {"candidates": [{"maxNumSeqs": 0}]}}, "greater than or equal to 1"),
    "21 candidates": (
        {"search": {"candidates": [{"maxNumSeqs": n} for n in range(1, 22)]}},
        "must have at most 20 items",
    ),
    "0 trials": ({"search": {"maxTrials": 0}}, "greater than or equal to 1"),
    "half a trial": ({"search": {"maxTrials": 1.5}}, "spec.search.maxTrials"),
    "prefix caching On": ({"search": {"prefixCaching": "On"}}, 'supported values: "Tune", "Keep"'),
    "strategy BlueGreen": ({"rollout": {"strategy": "BlueGreen"}}, 'supported values: "Canary"'),
    "surge of 2": ({"rollout": {"maxSurge": 2}}, "less than or equal to 1"),
    "limit below measurement": (
        {"rollout": {"measurementSeconds": 901}},
        "must not be below measurementSeconds; raise it",
    ),
    "one restart a day": ({"rollout": {"maxRestartsPerDay": 1}}, "greater than or equal to 2"),
    "window at 24:00": ({"rollout": {"windows": [{"start": "24:00"}]}}, "windows[0].start"),
    "window on Someday": ({"rollout": {"windows": [{"days": ["Someday"]}]}}, '"Sat", "Sun"'),
    "no time zone": ({"rollout": {"windows": [{"timeZone": ""}]}}, "must be an IANA name such as Europe/Berlin"),
    "offset for a time zone": (
        {"rollout": {"windows": [{"timeZone": "+02:00"}]}},
        "must be an IANA name such as Europe/Berlin",
    ),
    "errors above all": ({"guardrails": {"maxErrorPercent": 101}}, "less than or equal to 100"),
    "latency below control's": ({"guardrails": {"maxLatencyRatio": 0.9}}, "greater than or equal to 1"),
    "misspelt field": ({"guardrails": {"maxErrorsPercent": 1}}, 'unknown field "spec.guardrails.maxErrorsPercent"'),
    "no history": ({"trialHistoryLimit": 0}, "greater than or equal to 1"),
}

#: the same, but only the API server refuses them: TunerSpec can live with them, or never sees them
WRONG_FOR_THE_SERVER: dict[str, tuple[Manifest, str]] = {
    "target with a slash": ({"targetRef": {"name": "deployment/llama"}}, "plain name of a Deployment, such as llama"),
    "empty candidate": ({"search": {"candidates": [{}]}}, "a candidate needs at least one of maxNumSeqs"),
    "candidate that cannot start": (
        {"search": {"candidates": [{"maxNumSeqs": 64, "maxNumBatchedTokens": 32}]}},
        "maxNumBatchedTokens must be at least maxNumSeqs",
    ),
    "ranges that cannot start": (
        {"search": {"maxNumSeqs": {"min": 64, "max": 99}, "maxNumBatchedTokens": {"min": 1, "max": 32}}},
        "maxNumBatchedTokens.max must be at least maxNumSeqs.min",
    ),
    "range beyond vLLM's": ({"search": {"maxNumSeqs": {"min": 1, "max": 2_000_000}}}, "spec.search.maxNumSeqs.max"),
    "measurement of one scrape": (
        {"rollout": {"measurementSeconds": 10}},
        "rollout.measurementSeconds must be at least 3 times metrics.direct.intervalSeconds",
    ),
    "gap below a scrape": (
        {"guardrails": {"maxMetricsGapSeconds": 4}},
        "guardrails.maxMetricsGapSeconds must be at least 2 times metrics.direct.intervalSeconds",
    ),
    "window without days": ({"rollout": {"windows": [{"days": []}]}}, "at least 1 items"),
    "one day twice": ({"rollout": {"windows": [{"days": ["Mon", "Mon"]}]}}, "Duplicate value"),
    "empty storage": ({"storage": {"url": ""}}, "at least 1 chars long"),
}


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


RIGHT: dict[str, Manifest] = {
    "minimal": {},
    "prometheus": {"metrics": PROMETHEUS},
    "prometheus, measured shortly": {"metrics": PROMETHEUS, "rollout": {"measurementSeconds": 1}},
    "one value": {"search": {"maxNumSeqs": {"min": 8, "max": 8}}},
    "whole numbers where fractions may be": {"rollout": {"measurementSeconds": 60, "maxMeasurementSeconds": 60}},
    "fractions": {"metrics": {"direct": {"intervalSeconds": 1.5}}, "rollout": {"measurementSeconds": 4.5}},
    "token budget without a range for sequences": {
        "search": {"maxNumSeqs": None, "maxNumBatchedTokens": {"min": 1, "max": 2}}
    },
    "fast demo": {
        "mode": "Auto",
        "metrics": {"direct": {"intervalSeconds": 1, "timeoutSeconds": 1}},
        "rollout": {"warmupSeconds": 0, "measurementSeconds": 5, "confirmationSeconds": 0, "cooldownSeconds": 0},
        "guardrails": {"windowSeconds": 3, "maxMetricsGapSeconds": 5},
        "preconditions": {"stableSeconds": 0, "minRequestsPerSecond": 0},
    },
    "everything": {
        "mode": "Approve",
        "suspend": True,
        "targetRef": {"name": "a.b-c", "container": "vllm"},
        "metrics": {
            "prometheus": {
                "url": "https://prometheus.monitoring:9090/prefix",
                "bearerTokenSecretRef": {"name": "s", "key": "token"},
                "caConfigMapRef": {"name": "c", "key": "ca.crt"},
                "timeoutSeconds": 0.5,
            }
        },
        "objective": {
            "slo": {"ttftSeconds": 2, "tpotSeconds": 0.05},
            "minGainPercent": 0,
            "maxLatencyRegressionPercent": 1000,
        },
        "search": {
            "maxNumSeqs": {"min": 1, "max": 1000000},
            "maxNumBatchedTokens": {"min": 1, "max": 1000000},
            "prefixCaching": "Keep",
            "candidates": [
                {"maxNumSeqs": 64, "maxNumBatchedTokens": 64, "enablePrefixCaching": False, "maxNewTokens": 1}
            ],
            "maxTrials": 200,
            "patience": 200,
            "seed": -1,
            "profileConfigMapRef": {"name": "llm-profile", "key": "profile.json"},
        },
        "tokenPolicy": {
            "maxNewTokens": {"min": 1, "max": 4096},
            "middleware": "Install",
            "method": "Percentile",
            "policy": {
                "tokens": {"defaultMaxTokens": 1024, "lowerClient": True},
                "rules": [
                    {
                        "match": {"route": "chat", "header": "x-tier", "headerValue": "free"},
                        "tokens": {"capMaxTokens": 9},
                    }
                ],
                "admission": {"maxSequences": 48, "kvBudgetTokens": 120000, "risk": 1.5, "estimate": "observed"},
            },
        },
        "rollout": {
            "maxSurge": 1,
            "windows": [{"days": ["Sat"], "start": "22:00", "end": "05:00", "timeZone": "America/Port-au-Prince"}],
        },
        "storage": {"url": "postgresql://optuna@db/trimtab"},
        "trialHistoryLimit": 500,
    },
}


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
