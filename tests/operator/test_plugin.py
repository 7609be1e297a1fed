"""`kubectl trimtab` against a recorded cluster: what is shown, what is asked for, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from recorded_kubectl import Recorded

from trimtab.errors import ClusterUnavailable, InputError, TargetConflict, TargetNotFound, TargetRefused, TrimtabError
from trimtab.plan.record import ENDED as PLAN_ENDED
from trimtab.plan.record import Phase
from trimtab_operator.plugin import actions, app, complete, doctor, live, objects, terminal
from trimtab_operator.plugin.kubectl import Access, Kubectl, checked
from trimtab_operator.wishes import APPROVE_ANNOTATION, REJECT_ANNOTATION

Json = dict[str, Any]
OLD = {
    "metadata": {"labels": {"app": "vllm"}},
    "spec": {"containers": [{"name": "vllm", "args": ["--max-num-seqs=256"]}]},
}
NEW = {
    "metadata": {"labels": {"app": "vllm"}},
    "spec": {"containers": [{"name": "vllm", "args": ["--max-num-seqs=32"]}]},
}


def tuner(name: str = "llama", **over: Any) -> Json:
    status = {
        "phase": "Tuning", "restartsToday": 6, "bestGain": "+23.4%", "currentTrial": f"{name}-2",
        "trials": {"total": 1, "promoted": 1}, "configuration": {"maxNumSeqs": 64},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Watching", "message": "fine"},
                       {"type": "Progressing", "status": "False", "reason": "Cooldown",
                        "message": "30 s after a trial"}],
        "findings": [{"name": "Preemption", "severity": "Critical", "confidence": 0.9, "message": "it preempts",
                      "advice": "fewer", "avoid": "more memory", "tunable": False, "evidence": {"kv": 0.97}}],
        "recommendation": {"configuration": {"maxNumSeqs": 32}, "message": "Set 32.", "patch": "kubectl patch x"},
    }  # fmt: skip
    spec = {"targetRef": {"name": "llama-70b"}, "mode": "Approve", "rollout": {"maxRestartsPerDay": 50},
            "search": {"maxTrials": 12}, "metrics": {"direct": {}}}  # fmt: skip
    return {"kind": "VLLMTuner", "metadata": {"name": name}, "spec": {**spec, **over.pop("spec", {})},
            "status": {**status, **over}}  # fmt: skip


def trial(number: int, phase: str, **over: Any) -> Json:
    spec = {
        "tunerName": "llama",
        "number": number,
        "configuration": {"maxNumSeqs": 32},
        "origin": "fits",
        "baselineConfiguration": {"maxNumSeqs": 256},
        "baseline": {"deploymentUid": "d1", "templateJson": json.dumps(OLD), "candidateTemplateJson": json.dumps(NEW)},
    }
    status = {"phase": phase, "settings": "max_num_seqs=32", "message": "measuring", "canaryPod": "llama-70b-new-1",
              "phaseSince": "2026-09-21T13:00:00Z", "startedAt": "2026-09-21T12:50:00Z", "restarts": 1,
              "gain": "+12.0%",
              "verdict": {"kind": "Better", "reason": "GoodputBetter", "gainLowPercent": 5, "gainHighPercent": 20},
              "history": [{"phase": "Starting", "at": "2026-09-21T12:50:00Z", "message": "one pod"}]}  # fmt: skip
    return {"kind": "TuningTrial", "metadata": {"name": f"llama-{number}"}, "spec": spec, "status": {**status, **over}}


def deployment(template: Json = NEW, **spec: Any) -> Json:
    return {"kind": "Deployment", "metadata": {"name": "llama-70b", "uid": "d1"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "vllm"}}, "template": template, **spec},
            "status": {"readyReplicas": 2, "updatedReplicas": 1}}  # fmt: skip


def pod(name: str, app_label: str = "vllm") -> Json:
    return {"kind": "Pod", "metadata": {"name": name, "labels": {"app": app_label}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                       "containerStatuses": [{"restartCount": 3}]}}  # fmt: skip


PODS = (pod("llama-70b-old-1"), pod("llama-70b-new-1"), pod("other", "web"))


@pytest.fixture(name="use")
def a_recorded_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def use(*found: Json) -> Recorded:
        recorded = Recorded(*found)
        monkeypatch.setattr(app, "connect", lambda access: Kubectl(access, recorded))
        return recorded

    yield use


def run(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app.app, list(words), input=given)


# --- what is shown ----------------------------------------------------------------------------------------------------
def test_the_tree_shows_target_canary_trial_budget_and_what_to_do(use: Any) -> None:
    use(tuner(), trial(1, "Promoted"), trial(2, "Measuring"), deployment(paused=True), *PODS)
    shown = run("status", "llama", "-n", "prod").stdout
    assert "prod/llama  Tuning  mode Approve" in shown
    assert "Deployment llama-70b  2/2 ready  rollout paused by the trial" in shown
    assert "canary pod llama-70b-new-1  ready  3 container restarts" in shown
    assert "control pod llama-70b-old-1  ready" in shown
    assert "pod other" not in shown and "Preemption (Critical)  it preempts" in shown
    assert "llama-2  Measuring" in shown and "so far Better  GoodputBetter  +12.0% (+5.0% to +20.0%)" in shown
    assert "6 of 50 restarts in 24 h; 1 of 12 trials" in shown
    assert "+23.4%  1 finished: 1 kept" in shown
    assert "kubectl trimtab rollback llama -n prod" in shown


def test_a_tuner_that_waits_says_why(use: Any) -> None:
    use(tuner(), trial(1, "Promoted"), deployment())
    assert "Cooldown  30 s after a trial" in run("status", "llama").stdout
    use(tuner(), trial(2, "AwaitingApproval"), deployment())
    shown = run("status", "llama").stdout
    assert "waits for your yes or no" in shown and "kubectl trimtab approve llama-2 -n prod" in shown


def test_a_tuner_nobody_looked_at_points_to_the_operator(use: Any) -> None:
    bare = tuner()
    bare["status"] = {}
    use(bare, deployment())
    shown = run("status", "llama").stdout
    assert "no operator has looked at it" in shown and "[UNKNOWN]" in shown and "kubectl trimtab doctor llama" in shown


def test_the_list_has_a_line_each_and_is_not_cut_off_a_terminal(use: Any) -> None:
    use(tuner("a"), tuner("b"), trial(2, "Measuring"))
    lines = run("status").stdout.splitlines()
    assert lines[0].split()[:3] == ["NAME", "SAFE", "PODS"] and len(lines) == 3
    assert lines[1].endswith("Cooldown: 30 s after a trial")
    assert run("status", "-A").stdout.startswith("NAMESPACE")


def test_nothing_there_is_told(use: Any) -> None:
    use()
    assert "No VLLMTuner here" in run("status").stdout


def test_json_and_yaml_say_the_same(use: Any) -> None:
    use(tuner(), trial(2, "Measuring"), deployment(), *PODS)
    as_json = json.loads(run("status", "llama", "-o", "json").stdout)
    assert as_json == yaml.safe_load(run("status", "llama", "-o", "yaml").stdout)
    assert as_json["trial"]["name"] == "llama-2" and as_json["target"]["pods"][0]["role"] == "canary"
    assert as_json["waiting"] == {"reason": "", "message": ""}
    assert isinstance(json.loads(run("status", "-o", "json").stdout), list)


def test_without_the_right_to_see_pods_the_rest_is_shown(use: Any) -> None:
    recorded = use(tuner(), trial(2, "Measuring"))
    recorded.refuse["deployments,pods"] = "Error from server (Forbidden): pods is forbidden"
    shown = run("status", "llama").stdout
    assert "pods is forbidden" in shown and "llama-2  Measuring" in shown


def test_text_of_the_cluster_cannot_move_the_cursor(use: Any) -> None:
    bad = trial(2, "Measuring", message="\x1b[2J\x1b[Hall is well\r\n\u202egone", settings="\x1b]0;title\x07x=1")
    use(tuner(), bad, deployment(), *PODS)
    for words in (("status", "llama"), ("status",), ("history", "llama"), ("history", "llama-2"), ("explain", "llama")):
        out = run(*words).stdout
        assert "\x1b" not in out and "\u202e" not in out and "\r" not in out


def test_colour_only_on_a_terminal_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.colourful()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.colourful()


def test_a_table_cuts_only_its_last_column() -> None:
    found = terminal.columns(("A", "B"), [["x", "long text here"]], width=14)
    assert terminal.shown(found, colour=False).splitlines()[1] == "x   long text…"


def test_diff_tells_found_now_recommended_and_on_trial(use: Any) -> None:
    use(tuner(), trial(1, "Promoted"), trial(2, "Measuring"))
    out = run("diff", "llama").stdout
    assert out.splitlines()[1].split() == ["maxNumSeqs", "256", "64", "32", "32"] and "kubectl patch x" in out
    assert json.loads(run("diff", "llama", "-o", "json").stdout)["settings"][0]["found"] == "256"


def test_explain_tells_what_to_leave_alone(use: Any) -> None:
    use(tuner())
    out = run("explain", "llama").stdout
    for part in ("Preemption  Critical, confidence 90%  no setting mends it", "do: fewer", "leave alone: more memory",
                 "kv 0.97", "Progressing=False  Cooldown  30 s after a trial"):  # fmt: skip
        assert part in out


def test_history_of_a_tuner_and_of_one_trial(use: Any) -> None:
    use(tuner(), trial(1, "Promoted"), trial(2, "Measuring"))
    lines = run("history", "llama").stdout.splitlines()
    assert len(lines) == 3 and "llama-1" in lines[1] and lines[1].endswith("max_num_seqs=32")
    assert run("history", "llama-2").stdout.split() == ["2026-09-21T12:50:00Z", "Starting", "one", "pod"]


# --- what is asked for ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("verb", "annotation"), [("approve", APPROVE_ANNOTATION), ("reject", REJECT_ANNOTATION)])
def test_a_decision_is_an_annotation_on_the_trial_that_waits(use: Any, verb: str, annotation: str) -> None:
    for name in ("llama", "llama-2"):
        recorded = use(tuner(), trial(1, "Promoted"), trial(2, "AwaitingApproval"))
        done = run(verb, name)
        assert done.exit_code == 0 and "llama-2 (max_num_seqs=32)" in done.stdout
        assert recorded.one("TuningTrial", "llama-2")["metadata"]["annotations"] == {annotation: "true"}
        assert "annotations" not in recorded.one("TuningTrial", "llama-1")["metadata"]


@pytest.mark.parametrize("trials", [[trial(2, "Measuring")], [trial(1, "Promoted")], []])
def test_what_does_not_wait_cannot_be_approved(use: Any, trials: list[Json]) -> None:
    recorded = use(tuner(), *trials)
    done = run("approve", "llama")
    assert isinstance(done.exception, actions.NotPossible) and "waits for approval" in str(done.exception)
    assert not [c for c in recorded.calls if c[0] == "patch"]


def test_another_trials_name_approves_nothing(use: Any) -> None:
    use(tuner(), trial(1, "Promoted"), trial(2, "AwaitingApproval"))
    assert isinstance(run("approve", "llama-1").exception, actions.NotPossible)


def test_pause_and_resume(use: Any) -> None:
    recorded = use(tuner(), trial(2, "Measuring"))
    assert "llama-2 is rolled back" in run("pause", "llama").stdout
    assert recorded.one("VLLMTuner", "llama")["spec"]["suspend"] is True
    assert "was paused already" in run("pause", "llama").stdout
    assert "goes on" in run("resume", "llama").stdout
    assert recorded.one("VLLMTuner", "llama")["spec"]["suspend"] is False
    assert "was not paused" in run("resume", "llama").stdout


def test_a_change_in_between_is_not_overwritten(use: Any) -> None:
    recorded = use(tuner())
    seen = recorded.one("VLLMTuner", "llama")
    recorded.objects[0] = {**seen, "metadata": {**seen["metadata"], "resourceVersion": "7"}}
    with pytest.raises(TargetConflict, match="modified"):
        Kubectl(Access(), recorded).patch(actions.TUNERS, seen, {"spec": {"suspend": True}})


def test_a_rollback_in_flight_pauses_and_waits_for_the_end(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = use(tuner(), trial(2, "Measuring"))

    def asleep(_: float) -> None:
        o = recorded.one("TuningTrial", "llama-2")
        o["status"] = {**o["status"], "phase": "RolledBack", "message": "restored"}

    monkeypatch.setattr(actions.wait_until_ended, "__defaults__", (lambda: 0.0, asleep))
    done = run("rollback", "llama", "--yes")
    assert "llama-2 ended: RolledBack. restored" in done.stdout and "kubectl trimtab resume llama" in done.stdout
    assert recorded.one("VLLMTuner", "llama")["spec"]["suspend"] is True


def test_waiting_has_an_end(use: Any) -> None:
    recorded = use(tuner(), trial(2, "RollingBack"))
    times = iter([0.0, 5.0, 11.0])
    with pytest.raises(actions.NotPossible, match="still RollingBack after 10 s"):
        actions.wait_until_ended(Kubectl(Access(), recorded), "llama-2", 10, print, lambda: next(times), lambda _: None)


def test_a_rollback_of_a_kept_trial_restores_the_template_from_before(use: Any) -> None:
    recorded = use(tuner(), trial(1, "Promoted"), deployment(NEW))
    done = run("rollback", "llama", "--yes")
    assert done.exit_code == 0 and "maxNumSeqs 32 -> 256" in done.stdout
    assert recorded.one("Deployment", "llama-70b")["spec"]["template"] == OLD
    assert recorded.one("VLLMTuner", "llama")["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("found", "said"),
    [(deployment(OLD), "was changed after llama-1"), (deployment(NEW, paused=True), "is paused")],
    ids=["changed since", "paused"],
)
def test_a_target_that_was_changed_since_is_left_alone(use: Any, found: Json, said: str) -> None:
    recorded = use(tuner(), trial(1, "Promoted"), found)
    done = run("rollback", "llama", "--yes")
    assert isinstance(done.exception, TrimtabError) and said in str(done.exception)
    assert recorded.one("Deployment", "llama-70b")["spec"]["template"] == found["spec"]["template"]


def test_nobody_is_restarted_without_a_yes(use: Any) -> None:
    recorded = use(tuner(), trial(1, "Promoted"), deployment(NEW))
    assert isinstance(run("rollback", "llama").exception, InputError)
    assert not [c for c in recorded.calls if c[0] == "patch"]


def test_the_report_is_written(use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.report.charts.available", lambda: False)
    made = trial(1, "Promoted")
    made["metadata"]["creationTimestamp"] = "2026-09-21T12:50:00Z"
    use(tuner(), made)
    page = tmp_path / "r.html"
    assert run("report", "llama", "-o", str(page)).exit_code == 0 and "prod/llama-70b" in page.read_text()


# --- doctor -----------------------------------------------------------------------------------------------------------
def healthy() -> tuple[list[Json], dict[str, str]]:
    labels = {"app.kubernetes.io/name": "trimtab"}
    pod_spec = {"serviceAccountName": "sa", "containers": [{"image": "trimtab:1"}]}
    operator = {"kind": "Deployment", "metadata": {"name": "trimtab", "namespace": "sys", "labels": labels},
                "status": {"readyReplicas": 1}, "spec": {"template": {"spec": pod_spec}}}  # fmt: skip
    from trimtab_operator.cluster import CRD_VERSION, CRD_VERSION_ANNOTATION

    crd = json.dumps({"metadata": {"annotations": {CRD_VERSION_ANNOTATION: CRD_VERSION}}})
    place = "/api/v1/namespaces/prod/pods"
    target = {"apiVersion": "apps/v1", **deployment()}
    target["metadata"]["namespace"] = "prod"
    raw = {
        "/apis/apiextensions": crd,
        "/apis/apps/v1/namespaces/prod/deployments/llama-70b": json.dumps(target),
        f"{place}?": json.dumps({"items": [pod("llama-70b-old-1")]}),
        f"{place}/http:llama-70b-old-1:8000/proxy/metrics": "vllm:num_requests_running 1",
    }
    return [tuner(), operator], raw


def checks_of(recorded: Recorded) -> dict[tuple[str, str], doctor.Check]:
    api = Kubectl(Access("prod"), recorded)
    found = doctor.examine(api, api.get("vllmtuners"))
    return {(c.about, c.name): c for c in found}


def test_a_healthy_tuner_has_no_failed_check() -> None:
    found, raw = healthy()
    recorded = Recorded(*found)
    recorded.raw = raw
    checks = checks_of(recorded)
    assert not [c for c in checks.values() if c.state is doctor.State.FAIL and not c.name.startswith("TT")]
    assert checks["prod/llama", "metrics"].state is doctor.State.OK
    assert checks["prod/llama", "operator's right"].message == "patch deployments/llama-70b: yes (mode Approve)"


@pytest.mark.parametrize(
    ("break_it", "about", "check", "state"),
    [
        (lambda r: r.raw.pop("/apis/apiextensions"), "cluster", "CRD", "fail"),
        (lambda r: r.objects.pop(1), "operator", "running", "fail"),
        (lambda r: r.rights.update({("patch", "deployments.apps/llama-70b"): False}),
         "prod/llama", "operator's right", "fail"),
        (lambda r: r.rights.update({("patch", "tuningtrials.trimtab.dev"): False}), "you", "right", "warn"),
        (lambda r: r.refuse.update({"--as=": "cannot impersonate"}), "prod/llama", "operator's right", "unknown"),
        (lambda r: r.raw.update({"/api/v1/namespaces/prod/pods/http": "python_info"}), "prod/llama", "metrics", "fail"),
        (lambda r: r.raw.update({"/api/v1/namespaces/prod/pods?": '{"items": []}'}), "prod/llama", "metrics", "fail"),
        (lambda r: r.raw.pop("/apis/apps/v1/namespaces/prod/deployments/llama-70b"), "prod/llama", "target", "fail"),
        (lambda r: r.objects[0].update(status={}), "prod/llama", "seen", "fail"),
    ],
)  # fmt: skip
def test_each_fault_fails_its_own_check(break_it: Any, about: str, check: str, state: str) -> None:
    found, raw = healthy()
    recorded = Recorded(*found)
    recorded.raw = dict(sorted(raw.items(), key=lambda item: "http:" not in item[0]))
    break_it(recorded)
    if "/api/v1/namespaces/prod/pods/http" in recorded.raw:
        recorded.raw.pop("/api/v1/namespaces/prod/pods/http:llama-70b-old-1:8000/proxy/metrics")
    told = checks_of(recorded)[about, check]
    assert told.state == state and told.fix


def test_a_prometheus_without_the_engines_is_a_failed_check() -> None:
    found, raw = healthy()
    found[0]["spec"]["metrics"] = {"prometheus": {"url": "http://prometheus.monitoring:9090"}}
    for count, state in (("3", "ok"), ("0", "fail")):
        recorded = Recorded(*found)
        result = [{"value": [0, count]}] if count != "0" else []
        where = "/api/v1/namespaces/monitoring/services/http:prometheus:9090/proxy/api/v1/query"
        recorded.raw = {**raw, where: json.dumps({"data": {"result": result}})}
        assert checks_of(recorded)["prod/llama", "Prometheus"].state == state


def test_doctor_ends_with_1_where_something_is_wrong(use: Any) -> None:
    found, raw = healthy()
    recorded = use(found[0])
    recorded.raw = raw
    done = run("doctor", "-n", "prod")
    assert done.exit_code == 1 and "✗ fail" in done.stdout and "do: helm install" in done.stdout


# --- the way to the cluster -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Error from server (NotFound): x not found", TargetNotFound),
        ('error: the server doesn\'t have a resource type "vllmtuners"', TargetNotFound),
        ("Error from server (Forbidden): no", TargetRefused),
        ("Error from server (Conflict): the object has been modified", TargetConflict),
        ("Unable to connect to the server: dial tcp: i/o timeout", ClusterUnavailable),
    ],
)
def test_kubectls_words_become_our_errors(said: str, kind: type[Exception]) -> None:
    recorded = Recorded()
    recorded.refuse["get"] = said
    with pytest.raises(kind):
        Kubectl(Access(), recorded).get("vllmtuners")


def test_kubectls_own_log_is_left_out() -> None:
    recorded = Recorded()
    recorded.refuse["get"] = (
        'E1130 16:03:49.101227   23125 memcache.go:265] "Unhandled Error" err="refused"\n'
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    )
    with pytest.raises(ClusterUnavailable, match="get vllmtuners: The connection to the server") as caught:
        Kubectl(Access(), recorded).get("vllmtuners")
    assert "memcache" not in str(caught.value)


@pytest.mark.parametrize("name", ["-A", "--all", "a b", "../x", "", "Upper", "a" * 300])
def test_a_name_never_becomes_an_option(name: str) -> None:
    with pytest.raises(InputError):
        checked(name)


def test_context_and_namespace_reach_kubectl() -> None:
    recorded = Recorded()
    Kubectl(Access("prod", "east", "/k"), recorded).get("vllmtuners")
    words = recorded.calls[0]
    assert words[words.index("--context") + 1] == "east" and words[words.index("-n") + 1] == "prod"
    assert words[words.index("--kubeconfig") + 1] == "/k" and any(w.startswith("--request-timeout=") for w in words)


def test_an_unknown_name_lists_those_that_are_there(use: Any) -> None:
    use(tuner("a"), tuner("b"))
    for words in (("status", "c"), ("pause", "c")):
        error = run(*words).exception
        assert isinstance(error, InputError) and "VLLMTuners: a, b." in str(error)


def test_watch_off_a_terminal_tells_changes_only(capsys: pytest.CaptureFixture[str]) -> None:
    looks = iter([[*objects.tuners([tuner(), trial(2, p)])] for p in ("WarmingUp", "WarmingUp", "Measuring")])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    live.follow(lambda: next(looks), lambda found: [], 2.0, sleep)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].endswith("llama-2 WarmingUp: measuring") and "Measuring" in lines[1]


def test_watch_lives_through_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    def look() -> list[objects.Tuner]:
        raise ClusterUnavailable("gone")

    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    live.follow(look, lambda found: [], 2.0, sleep)
    assert "gone" in capsys.readouterr().out


def test_completion_offers_verbs_options_and_names() -> None:
    recorded = Recorded(tuner(), tuner("mistral"), trial(2, "AwaitingApproval"))
    api = Kubectl(Access(), recorded)
    assert complete.words(["st"], api) == ["status"] and complete.words(["status", "-o", ""], api) == [
        "text",
        "json",
        "yaml",
    ]
    assert complete.words(["status", "m"], api) == ["mistral"]
    assert complete.words(["approve", "llama"], api) == ["llama", "llama-2"]
    assert complete.words(["status", "--na"], api) == ["--namespace"]
    recorded.refuse["get"] = "Unable to connect"
    assert complete.words(["status", ""], api) == []


def test_every_verb_can_be_completed() -> None:
    assert set(app.app.commands) == set(complete._NAMED)


def test_the_plugins_ends_are_the_plans() -> None:
    assert {p.value for p in PLAN_ENDED} == objects.ENDED and Phase.AWAITING_APPROVAL.value == objects.AWAITING


def test_status_loads_nothing_heavy() -> None:
    """What `--help` and `status` load decides how fast they are; seconds themselves depend on the machine."""
    script = "import sys, trimtab_operator.plugin.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    heavy = {
        "kubernetes",
        "kopf",
        "pydantic",
        "numpy",
        "scipy",
        "optuna",
        "rich",
        "yaml",
        "typer",
        "requests",
        "trimtab.plan",
    }
    assert heavy.isdisjoint(done.stdout.split())
