"""The middleware's ConfigMaps and the way of a policy into the pods, on an API server of dicts."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from trimtab.engine.install import installed
from trimtab.errors import TargetConflict, TargetRefused
from trimtab.middleware import policy_file
from trimtab.observe.middleware import MiddlewareView
from trimtab.observe.observation import Histogram
from trimtab.plan.middleware import Decision
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase, PolicyChange, TrialKind
from trimtab.plan.spec import TunerSpec
from trimtab.plan.token_policy import digest_of, generation_of
from trimtab_operator.care import Care, died_at
from trimtab_operator.middleware import GENERATION_ANNOTATION, Delivery, names, package
from trimtab_operator.records import new_trial, record_of, rfc3339
from trimtab_operator.rollout import Baseline
from trimtab_operator.target import Target
from trimtab_operator.tuner_status import Middleware, Situation, tuner_status
from trimtab_operator.wishes import policy_label, search_hash, wish

Json = dict[str, Any]
NOW = 1_800_000_000.0


class FakeCluster:
    """Objects by (kind, name). `refuse`: kinds that this account may not touch."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.refuse: set[str] = set()
        self.writes: list[str] = []
        self.conflict = False

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        if kind in self.refuse:
            raise TargetRefused(f"GET {kind}: 403")
        return copy.deepcopy(self.objects.get((kind, name)))

    def create(self, kind: str, namespace: str, body: Json) -> Json:
        self.get(kind, namespace, "")
        self.writes.append(f"create {kind} {body['metadata']['name']}")
        self.objects[kind, body["metadata"]["name"]] = copy.deepcopy(body)
        return body

    def json_patch(self, kind: str, seen: Json, operations: list[Json]) -> Json:
        if self.conflict:
            raise TargetConflict("409")
        name = seen["metadata"]["name"]
        self.writes.append(f"patch {kind} {name}")
        body = self.objects.setdefault((kind, name), copy.deepcopy(seen))
        for operation in operations:
            *path, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
            at = body
            for key in path:
                at = at[key]
            at[last] = operation["value"]
        return body

    def may(self, verb: str, kind: str, namespace: str, name: str) -> bool:
        return kind not in self.refuse


TEMPLATE: Json = {
    "metadata": {"labels": {"app": "llm"}},
    "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": ["--model=m"]}]},
}
INSTALLED = installed(TEMPLATE, None, names("llm", "token"))


def deployment(template: Json = INSTALLED, uid: str = "d1") -> Json:
    meta = {"name": "llm", "namespace": "ns", "uid": uid, "generation": 1}
    status = {
        "observedGeneration": 1,
        **dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 2),
    }
    return {"metadata": meta, "spec": {"replicas": 2, "template": template}, "status": status}


def pod(name: str, template: Json = INSTALLED, ready: bool = True, **status: Any) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    owner = {"controller": True, "uid": "rs1", "kind": "ReplicaSet", "name": "rs", "apiVersion": "apps/v1"}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "ownerReferences": [owner]},
        "spec": template["spec"],
        "status": {"podIP": name, "conditions": conditions, **status},
    }


class Engines:
    """Pods as their /metrics tell: the digest that each has."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.asked: list[str] = []

    def ask(self, ip: str, port: int) -> MiddlewareView | None:
        self.asked.append(ip)
        return MiddlewareView("0.1.0", self.digests[ip]) if ip in self.digests else None


class World:
    def __init__(self) -> None:
        self.cluster, self.engines, self.now = FakeCluster(), Engines(), NOW
        self.delivery = Delivery(self.cluster, lambda: self.now, self.engines.ask)  # type: ignore[arg-type]
        self.care = Care(self.cluster, self.delivery, lambda: "fresh")  # type: ignore[arg-type]
        self.deployment = deployment()
        self.pods = [pod("a"), pod("b")]

    @property
    def target(self) -> Target:
        return Target(self.deployment, [{"metadata": {"uid": "rs1"}}], self.pods)

    def config(self, name: str = "llm-token-policy") -> Json:
        return self.cluster.objects["ConfigMap", name]

    def text(self) -> str:
        return str(self.config()["data"]["policy.json"])

    def take(self, *pods: str) -> None:
        self.now += 5.0  # a pod that did not answer is asked again after some seconds
        for name in pods:
            self.engines.digests[name] = digest_of(self.text())


@pytest.fixture
def world() -> World:
    return World()


def spec(**more: Any) -> TunerSpec:
    policy = {"middleware": "Install", **more.pop("tokenPolicy", {})}
    return TunerSpec.parse(
        {"targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"direct": {}}, "tokenPolicy": policy, **more}
    )


TUNER: Json = {
    "apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "spec": {},
    "metadata": {"name": "llm", "namespace": "ns", "uid": "t1", "generation": 1},
}  # fmt: skip
FLEET = FleetView(exists=True, replicas=2)


# --- the package ------------------------------------------------------------------------------------------------------
def test_the_package_fits_a_config_map_and_names_its_content() -> None:
    assert {"__init__.py", "app.py", "policy_file.py"} <= set(package().files)
    assert sum(len(t.encode()) for t in package().files.values()) < 900_000
    assert all("/" not in name for name in package().files)
    assert names("llm").code == f"llm-mw-{package().digest}" and len(package().digest) == 8


# --- ConfigMaps -------------------------------------------------------------------------------------------------------
def test_the_code_is_immutable_and_lives_as_long_as_the_deployment(world: World) -> None:
    for _ in range(2):
        world.delivery.ensure_code("llm", world.deployment)
    found = world.config(names("llm").code)
    assert found["immutable"] and found["data"] == dict(package().files)
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], "controller" in owner) == ("Deployment", "d1", False)
    world.delivery.ensure_code("llm", deployment(uid="d2"))
    assert world.config(names("llm").code)["metadata"]["ownerReferences"][0]["uid"] == "d2"
    assert len(world.cluster.writes) == 2


def test_a_change_raises_the_generation_and_the_same_policy_writes_nothing(world: World) -> None:
    one, two = {"tokens": {"cap_max_tokens": 9}}, {"tokens": {"cap_max_tokens": 8}}
    first = world.delivery.write("llm", world.deployment, one)
    assert generation_of(first) == 1 and policy_file.parse(first.encode()).tokens.cap_max_tokens == 9
    assert world.delivery.write("llm", world.deployment, one) == first and len(world.cluster.writes) == 1
    assert generation_of(world.delivery.write("llm", world.deployment, two)) == 2
    del world.cluster.objects["ConfigMap", "llm-token-policy"]
    assert generation_of(world.delivery.write("llm", world.deployment, two, at_least=2)) == 3


# --- delivery ---------------------------------------------------------------------------------------------------------
def test_late_pods_are_touched_once_then_again_after_a_while(world: World) -> None:
    text = world.delivery.write("llm", world.deployment, {})
    world.take("a")
    report = world.delivery.look("llm", "ns", world.pods, 8000, text)
    assert [r.name for r in report.late] == ["b"] and report.hurry
    assert report.status() == {"pods": 1, "podsWithPolicy": 1, "version": "0.1.0", "generation": 1}
    for later in (0.0, 5.0):
        world.now = NOW + later
        world.delivery.touch(report)
    touched = world.cluster.objects["Pod", "b"]["metadata"]["annotations"][GENERATION_ANNOTATION]
    assert touched == "1" and world.cluster.writes.count("patch Pod b") == 1
    world.now = NOW + 11
    world.delivery.touch(report)
    again = world.cluster.objects["Pod", "b"]["metadata"]["annotations"][GENERATION_ANNOTATION]
    assert again == "1.1" and ("Pod", "a") not in world.cluster.objects


def test_a_pod_that_changed_meanwhile_is_touched_at_the_next_look(world: World) -> None:
    text = world.delivery.write("llm", world.deployment, {})
    report = world.delivery.look("llm", "ns", world.pods, 8000, text)
    world.cluster.conflict = True
    world.delivery.touch(report)
    world.cluster.conflict = False
    world.delivery.touch(report)
    assert {"patch Pod a", "patch Pod b"} <= set(world.cluster.writes)


def test_pods_that_have_it_are_seldom_asked_again(world: World) -> None:
    text = world.delivery.write("llm", world.deployment, {})
    world.take("a", "b")
    for later in (0.0, 30.0):
        world.now = NOW + later
        assert not world.delivery.look("llm", "ns", world.pods, 8000, text).late
    assert sorted(world.engines.asked) == ["a", "b"]
    world.now = NOW + 61
    world.delivery.look("llm", "ns", world.pods, 8000, text)
    assert len(world.engines.asked) == 4


def test_pods_that_do_not_answer_are_asked_less_and_less(world: World) -> None:
    text = world.delivery.write("llm", world.deployment, {})
    for second in range(31):
        world.now = NOW + second
        world.delivery.look("llm", "ns", world.pods[:1], 8000, text)
    assert len(world.engines.asked) == 5  # at 0, 1, 3, 7 and 15 s
    world.take("a")
    world.now += 60
    assert not world.delivery.look("llm", "ns", world.pods[:1], 8000, text).late


def test_pods_without_it_ending_or_not_ready_are_left_out(world: World) -> None:
    text = world.delivery.write("llm", world.deployment, {})
    ending = pod("c")
    ending["metadata"]["deletionTimestamp"] = "x"
    report = world.delivery.look("llm", "ns", [pod("plain", TEMPLATE), ending, pod("d", ready=False)], 8000, text)
    assert [r.name for r in report.rows] == ["d"] and not report.late and not world.engines.asked


# --- care -------------------------------------------------------------------------------------------------------------
def test_an_install_is_due_with_the_template_to_try(world: World) -> None:
    world.deployment = deployment(TEMPLATE)
    cared = world.care.look(TUNER, spec(), world.target, [], FLEET)
    assert cared.decision.due and cared.candidate == installed(TEMPLATE, None, names("llm", "fresh"))
    assert world.cluster.writes == []
    world.care.prepare(TUNER, world.target, cared, {})
    assert world.cluster.writes == [f"create ConfigMap {names('llm').code}", "create ConfigMap llm-token-policy"]


def test_the_same_question_is_not_asked_again_after_a_failure(world: World) -> None:
    world.deployment = deployment(TEMPLATE)
    first = world.care.look(TUNER, spec(), world.target, [], FLEET)
    trial = trial_of(first.label, TrialKind.INSTALL, phase="RolledBack", reason="CrashedAtStart")
    second = world.care.look(TUNER, spec(), world.target, [trial], FLEET)
    assert (second.decision.due, second.decision.reason) == (False, "InstallFailed")


@pytest.mark.parametrize(
    ("template", "refuse", "said"),
    [
        ({"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "envFrom": [{"secretRef": {"name": "s"}}]}]}},
         set(), "PYTHONPATH"),
        (TEMPLATE, {"ConfigMap"}, "rbac.mode=Apply"),
    ],
)  # fmt: skip
def test_what_forbids_it_is_said(world: World, template: Json, refuse: set[str], said: str) -> None:
    world.deployment, world.cluster.refuse = deployment(template), refuse
    verdict = world.care.look(TUNER, spec(), world.target, [], FLEET).decision
    assert (verdict.due, verdict.reason) == (False, "Unsupported") and said in verdict.message


def test_the_persons_policy_is_delivered_between_trials(world: World) -> None:
    policy = {"tokens": {"capMaxTokens": 77}}
    cared = world.care.look(TUNER, spec(tokenPolicy={"policy": policy}), world.target, [], FLEET)
    assert json.loads(world.text())["tokens"] == {"cap_max_tokens": 77}
    assert cared.hurry and cared.status() == {"pods": 0, "podsWithPolicy": 0, "generation": 1}
    assert {"patch Pod a", "patch Pod b"} <= set(world.cluster.writes)
    world.take("a", "b")
    again = world.care.look(TUNER, spec(tokenPolicy={"policy": policy}), world.target, [], FLEET)
    assert not again.hurry and again.status() == {"pods": 2, "podsWithPolicy": 2, "generation": 1, "version": "0.1.0"}


@pytest.mark.parametrize("more", [{"mode": "Recommend"}, {"suspend": True}])
def test_recommend_and_suspend_write_nothing(world: World, more: Json) -> None:
    cared = world.care.look(TUNER, spec(**more), world.target, [], FLEET)
    assert world.cluster.writes == [] and cared.decision.status == "True"
    world.cluster.refuse = {"ConfigMap"}
    assert world.care.look(TUNER, spec(mode="Recommend"), world.target, [], FLEET).report is not None


def test_a_right_that_is_missing_is_said_and_stops_nothing_else(world: World) -> None:
    world.cluster.refuse = {"ConfigMap"}
    cared = world.care.look(TUNER, spec(), world.target, [], FLEET)
    assert "not delivered" in cared.decision.message and cared.report is None


def test_switched_off_it_stays_and_only_counts(world: World) -> None:
    world.care.look(TUNER, spec(tokenPolicy={"policy": {"tokens": {"capMaxTokens": 7}}}), world.target, [], FLEET)
    off = TunerSpec.parse({"targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"direct": {}}})
    cared = world.care.look(TUNER, off, world.target, [], FLEET)
    assert cared.decision.reason == "Installed" and json.loads(world.text()) == {"version": 1, "generation": 2}


def test_seen_means_every_canary_shows_it(world: World) -> None:
    from trimtab.judge.guardrail import PodHealth
    from trimtab.plan.record import PodView, TargetView, Template

    health = PodHealth(True, 0, None, None, None, 1.0)
    view = TargetView(Template.CANDIDATE, True, True, 2, False, canary=(PodView("a", "a", health),))
    assert not world.care.seen(view, 8000)
    world.engines.digests["a"] = ""
    assert world.care.seen(view, 8000)


# --- trials of the policy ---------------------------------------------------------------------------------------------
def trial_of(
    label: str, kind: TrialKind, phase: str = "", reason: str = "", policy: PolicyChange | None = None
) -> Json:
    baseline = Baseline.of(deployment(), INSTALLED)
    from trimtab.engine.settings import Configuration

    empty = Configuration.of()
    body = new_trial(
        TUNER,
        1,
        baseline,
        2,
        empty,
        empty,
        "why",
        approval=False,
        search=label,
        kind=kind,
        change="what",
        policy=policy,
    )
    body["metadata"]["creationTimestamp"] = rfc3339(NOW)
    if phase:
        verdict = {"kind": "Error", "reason": reason, "message": "m"}
        body["status"] = {"phase": phase, "verdict": verdict, "finishedAt": rfc3339(NOW)}
    return body


CHANGE = PolicyChange("a", {}, {"tokens": {"cap_max_tokens": 50}})
HOT = {"tokenPolicy": {"method": "Percentile", "maxNewTokens": {"min": 1, "max": 99}}}


def test_a_policy_trial_comes_back_from_its_json() -> None:
    record = record_of(trial_of("x", TrialKind.POLICY, policy=CHANGE))
    assert (record.kind, record.policy, record.change) == (TrialKind.POLICY, CHANGE, "what")


def test_during_a_policy_trial_the_phase_decides_what_the_file_says(world: World) -> None:
    tuner = spec(**HOT)
    trial = trial_of(policy_label(tuner), TrialKind.POLICY, policy=CHANGE)
    world.care.look(TUNER, tuner, world.target, [], FLEET)
    world.take("a", "b")
    record = record_of(trial)
    assert world.care.hot(TUNER, world.target, record, "vllm", 8000).template.value == "Baseline"
    world.care.during(TUNER, tuner, world.target, [trial], record)
    assert json.loads(world.text())["experiment"]["arms"][1]["pods"] == ["a"]
    assert world.care.hot(TUNER, world.target, record, "vllm", 8000).canary == ()
    world.take("a")
    view = world.care.hot(TUNER, world.target, record, "vllm", 8000)
    assert [p.name for p in view.canary] == ["a"] and [p.name for p in view.control] == ["b"] and view.paused


@pytest.mark.parametrize("more", [{"suspend": True}, {"mode": "Recommend"}])
def test_the_way_back_is_written_whatever_the_mode_has_become(world: World, more: Json) -> None:
    tuner = spec(**HOT)
    trial = trial_of(policy_label(tuner), TrialKind.POLICY, policy=CHANGE)
    world.care.during(TUNER, tuner, world.target, [trial], record_of(trial))
    back = {**trial, "status": {"phase": Phase.ROLLING_BACK.value}}
    world.deployment = deployment(TEMPLATE)  # and whatever became of the template
    world.care.during(TUNER, spec(**HOT, **more), world.target, [back], record_of(back))
    assert json.loads(world.text()) == {"version": 1, "generation": 2}


def test_a_cap_is_proposed_only_when_every_pod_has_the_policy_in_force(world: World) -> None:
    bounds = (50.0, 100.0, 200.0, float("inf"))
    fleet = replace(FLEET, lengths=Histogram(bounds, (900.0, 1000.0, 1000.0, 1000.0), 40_000))
    world.care.look(TUNER, spec(**HOT), world.target, [], fleet)
    world.take("a")
    late = world.care.look(TUNER, spec(**HOT), world.target, [], fleet)
    assert world.care.propose(spec(**HOT), late, fleet, [], NOW) is None
    world.take("b")
    there = world.care.look(TUNER, spec(**HOT), world.target, [], fleet)
    found = world.care.propose(spec(**HOT), there, fleet, [], NOW)
    assert found is not None and found[1] == "a" and found[0].cap <= 99
    assert world.care.propose(spec(), there, fleet, [], NOW) is None
    assert world.care.propose(spec(**HOT), there, FLEET, [], NOW) is None


def test_another_policy_of_the_person_ends_the_trial() -> None:
    trial = trial_of(policy_label(spec(**HOT)), TrialKind.POLICY, policy=CHANGE)
    assert wish(TUNER, trial, spec(**HOT)).stop == ""
    other = spec(tokenPolicy={**HOT["tokenPolicy"], "policy": {"tokens": {"capMaxTokens": 3}}})
    assert "tokenPolicy changed" in wish(TUNER, trial, other).stop
    assert search_hash(other) == search_hash(spec(**HOT))  # and begins no search anew


def test_deaths_are_dated_by_the_kubelet() -> None:
    ended = {"name": "vllm", "lastState": {"terminated": {"finishedAt": rfc3339(NOW)}}}
    assert died_at(pod("a", containerStatuses=[ended]), "vllm") == NOW
    assert died_at(pod("a"), "vllm") is None


# --- the tuner's status -----------------------------------------------------------------------------------------------
def test_the_condition_is_told_and_kept_during_a_trial() -> None:
    said = Middleware(Decision(False, "False", "InstallFailed", "because"), {"pods": 0})
    status = tuner_status(TUNER, spec(), [], None, Situation(middleware=said), NOW)
    (condition,) = [c for c in status["conditions"] if c["type"] == "Middleware"]
    assert (condition["status"], condition["reason"], status["middleware"]) == ("False", "InstallFailed", {"pods": 0})
    later = tuner_status({**TUNER, "status": status}, spec(), [], None, Situation(), NOW + 60)
    assert condition in later["conditions"] and later["middleware"] == {"pods": 0}
    nothing = Situation(middleware=Middleware(Decision(False), None))
    gone = tuner_status({**TUNER, "status": status}, spec(), [], None, nothing, NOW)
    assert "Middleware" not in {c["type"] for c in gone["conditions"]} and "middleware" not in gone
