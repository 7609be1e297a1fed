"""The reconcile loop from an untouched target to a tried cap, on an API server of dicts that runs Deployments.

Metrics are given; everything else is the operator's own code. Killed at any write, the next process ends the same way.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from builders import evidence, observation

from trimtab.errors import ClusterUnavailable, TargetRefused
from trimtab.observe.middleware import MiddlewareView
from trimtab.observe.observation import Histogram
from trimtab.plan.budgets import Limits
from trimtab.plan.record import Evidence
from trimtab.plan.token_policy import digest_of
from trimtab.tune.apart import Answer
from trimtab.tune.evidence import Look
from trimtab_operator import reconcile
from trimtab_operator.admission import Admission
from trimtab_operator.brakes import BrakeReader
from trimtab_operator.care import Care
from trimtab_operator.middleware import GENERATION_ANNOTATION, Delivery, names
from trimtab_operator.neighbours import Neighbours
from trimtab_operator.reconcile import Reconciler
from trimtab_operator.records import rfc3339

Json = dict[str, Any]
START = 1_800_000_000.0
LABELS = {"app": "llm"}
TEMPLATE: Json = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": ["--model=m"]}]},
}
BOUNDS = (50.0, 100.0, 200.0, 500.0, 1000.0, float("inf"))
LENGTHS = Histogram(BOUNDS, (0.0, 50.0, 980.0, 1000.0, 1000.0, 1000.0), 150_000)


class Killed(BaseException):
    """The process ends here."""


class Api:
    """Objects by (kind, name), and a Deployment controller with a kubelet that need no time. Two replicas.

    kill_at: the number of the write after which the process ends.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.now, self.count, self.kill_at = START, 0, 0
        self.templates: list[Json] = []
        self.pods = 0
        #: pod -> the policy file that its kubelet has brought
        self.files: dict[str, str] = {}

    # --- the operator's side ---
    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.objects.get((kind, name)))

    def list(self, kind: str, namespace: str, labels: Any = "") -> list[Json]:
        return [copy.deepcopy(o) for (k, _), o in self.objects.items() if k == kind]

    def create(self, kind: str, namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        assert (kind, name) not in self.objects
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": f"{kind}-{name}", "creationTimestamp": rfc3339(self.now), "resourceVersion": "1"}
        self.objects[kind, name] = made
        self._written()
        return copy.deepcopy(made)

    def json_patch(self, kind: str, seen: Json, operations: list[Json]) -> Json:
        body = self.objects[kind, seen["metadata"]["name"]]
        for operation in operations:
            *path, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
            at = body
            for key in path:
                at = at[key]
            if operation["op"] == "remove":
                del at[last]
            else:
                at[last] = copy.deepcopy(operation["value"])
        if kind == "Pod":  # the annotation makes the kubelet bring the file
            self.files[body["metadata"]["name"]] = self.policy()
        self._written()
        return copy.deepcopy(body)

    def write_status(self, kind: str, seen: Json, status: Json) -> Json:
        body = self.objects[kind, seen["metadata"]["name"]]
        body["status"] = copy.deepcopy(status)
        self._written()
        return copy.deepcopy(body)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self.objects.pop((kind, name), None)

    def may(self, *_: str) -> bool:
        return True

    def pod_log(self, *_: Any, **__: Any) -> str:
        return ""

    def _written(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed

    # --- the cluster's side ---
    def policy(self) -> str:
        found = self.objects.get(("ConfigMap", "llm-token-policy"))
        return "" if found is None else str(found["data"]["policy.json"])

    def settle(self) -> None:
        """What controllers and kubelets do between two looks: one pod a step while narrowed, held while paused."""
        deployment = self.objects["Deployment", "llm"]
        spec = deployment["spec"]
        if spec["template"] not in self.templates:
            self.templates.append(copy.deepcopy(spec["template"]))
        now = self.templates.index(spec["template"])
        pods = [o for (k, _), o in self.objects.items() if k == "Pod"]
        old = [p for p in pods if p["spec"] != spec["template"]["spec"]]
        new = len(pods) - len(old)
        if (old or len(pods) < 2) and not (spec.get("paused") and new):
            for pod in old[:1]:
                del self.objects["Pod", pod["metadata"]["name"]]
            self._pod(now)
            new += 1
        for number, template in enumerate(self.templates):
            count = sum(o["spec"] == template["spec"] for (k, _), o in self.objects.items() if k == "Pod")
            self._replica_set(number, template, count)
        have = {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": min(2, new)}
        deployment["status"] = {"observedGeneration": 1, **have}

    def _replica_set(self, number: int, template: Json, count: int) -> None:
        owner = {"controller": True, "uid": "d", "kind": "Deployment", "name": "llm", "apiVersion": "apps/v1"}
        meta = {"name": f"rs-{number}", "uid": f"rs-{number}", "ownerReferences": [owner]}
        self.objects["ReplicaSet", f"rs-{number}"] = {
            "metadata": meta,
            "spec": {"template": template, "replicas": count},
        }

    def _pod(self, number: int) -> None:
        self.pods += 1
        name, uid = f"pod-{self.pods}", f"rs-{number}"
        owner = {"controller": True, "uid": uid, "kind": "ReplicaSet", "name": uid, "apiVersion": "apps/v1"}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(self.now)}
        self.objects["Pod", name] = {
            "metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": [owner]},
            "spec": copy.deepcopy(self.templates[number]["spec"]),
            "status": {
                "podIP": name,
                "conditions": [ready],
                "containerStatuses": [{"name": "vllm", "restartCount": 0}],
            },
        }
        self.files[name] = self.policy()  # a new pod mounts what is there


class World:
    """`gain` is what the canary of a policy trial has over its control."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gain: float, **policy: Any) -> None:
        self.api, self.gain, self.limits = Api(), gain, Limits()
        self.api.objects["Deployment", "llm"] = {
            "metadata": {"name": "llm", "namespace": "ns", "uid": "d", "generation": 1, "resourceVersion": "1"},
            "spec": {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": copy.deepcopy(TEMPLATE)},
        }
        rollout = {
            "warmupSeconds": 5, "measurementSeconds": 60, "confirmationSeconds": 12, "maxMeasurementSeconds": 60,
            "verificationSeconds": 5, "cooldownSeconds": 0, "maxRestartsPerDay": 100, "drain": "Ignore",
        }  # fmt: skip
        self.api.objects["VLLMTuner", "llm"] = {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "VLLMTuner",
            "metadata": {"name": "llm", "namespace": "ns", "uid": "t", "generation": 1, "resourceVersion": "1"},
            "spec": {
                "targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"direct": {}}, "rollout": rollout,
                "search": {"maxNumSeqs": None, "prefixCaching": "Keep"},
                "preconditions": {"stableSeconds": 0}, "tokenPolicy": {"middleware": "Install", **policy},
            },
        }  # fmt: skip
        monkeypatch.setattr(reconcile, "trial_evidence", self._evidence)
        monkeypatch.setattr(reconcile, "fleet_observation", self._fleet)
        monkeypatch.setattr(reconcile, "look_at", lambda *_: Look(*self._fleet()))
        while len([1 for k, _ in self.api.objects if k == "Pod"]) < 2:
            self.api.settle()
        self.reconciler = self.process()

    def process(self) -> Reconciler:
        """A new process of the operator."""

        class Quiet:
            def event(self, *_: Any, **__: Any) -> None: ...

            def of(self, *_: Any) -> None: ...

            def next(self, *_: Any) -> Answer:
                return Answer(None, "nothing here is searched")

            def forget(self, *_: Any) -> None: ...

        quiet: Any = Quiet()
        api: Any = self.api
        delivery = Delivery(api, lambda: self.api.now, self._ask)
        return Reconciler(
            api,
            quiet,
            quiet,
            quiet,
            lambda: self.api.now,
            lambda _: self.api.settle(),
            Care(api, delivery, lambda: "tok"),
            Neighbours(api, BrakeReader(api, "ops", lambda: self.api.now), lambda: self.api.now),
            Admission(api, self.limits, [None], lambda: self.api.now),
        )

    def _ask(self, ip: str, port: int) -> MiddlewareView | None:
        mounted = any(v["name"] == "trimtab-middleware" for v in self.api.objects["Pod", ip]["spec"].get("volumes", ()))
        return MiddlewareView("0.1.0", digest_of(self.api.files[ip])) if mounted else None

    def _evidence(
        self, source: Any, spec: Any, record: Any, view: Any, namespace: str, port: int, now: float
    ) -> Evidence:
        start = record.measure_from or record.phase_since
        gain = self.gain if record.kind.value == "Policy" else 0.0
        windows = int((now - start) // 6)
        return evidence(gain, start=start, windows=windows) if windows else evidence()

    def _fleet(self, *_: Any) -> Any:
        from dataclasses import replace

        return replace(observation(), output_length=LENGTHS), ""

    # --- driving ---
    def run(self, done: Any, ticks: int = 400) -> None:
        """Looks of 3 s until `done`; a killed process is followed by a new one."""
        for _ in range(ticks):
            try:
                with contextlib.suppress(ClusterUnavailable, TargetRefused):  # the loop looks again later
                    self.reconciler.reconcile("ns", "llm")
            except Killed:
                self.reconciler = self.process()
            self.api.settle()
            self.api.now += 3.0
            if done():
                return
        raise AssertionError(json.dumps([t.get("status") for t in self.trials()], indent=1)[-3000:])

    def trials(self) -> list[Json]:
        found = [o for (k, _), o in self.api.objects.items() if k == "TuningTrial"]
        return sorted(found, key=lambda t: t["spec"]["number"])

    def phase(self, number: int) -> str:
        found = [t for t in self.trials() if t["spec"]["number"] == number]
        return str((found[0].get("status") or {}).get("phase", "")) if found else ""

    def tuner(self) -> Json:
        return self.api.objects["VLLMTuner", "llm"]

    def condition(self) -> Json:
        found = (self.tuner().get("status") or {}).get("conditions") or ()
        return next((c for c in found if c["type"] == "Middleware"), {})

    def delivered(self) -> bool:
        seen = (self.tuner().get("status") or {}).get("middleware") or {}
        return seen.get("podsWithPolicy") == 2 and self.condition().get("status") == "True"


HOT = {"method": "Percentile", "maxNewTokens": {"min": 16, "max": 2048}}


def test_the_middleware_is_installed_and_the_policy_reaches_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.0, policy={"tokens": {"capMaxTokens": 700}})
    world.run(world.delivered)
    (trial,) = world.trials()
    assert (trial["spec"]["kind"], trial["status"]["phase"], trial["status"]["restarts"]) == ("Install", "Promoted", 2)
    assert trial["status"]["verdict"]["reason"] == "NothingWorse"
    assert trial["status"]["settings"].startswith("middleware 0.1.0")
    template = world.api.objects["Deployment", "llm"]["spec"]["template"]
    assert template["spec"]["volumes"][0]["configMap"]["name"] == names("llm").code
    world.tuner()["spec"]["tokenPolicy"]["policy"] = {"tokens": {"capMaxTokens": 600}}
    world.run(lambda: world.delivered() and '"cap_max_tokens": 600' in world.api.policy(), 5)
    pods = [o for (k, _), o in world.api.objects.items() if k == "Pod"]
    assert {p["metadata"]["annotations"][GENERATION_ANNOTATION] for p in pods} == {"2"}
    assert len(world.trials()) == 1


@pytest.mark.parametrize(("gain", "phase"), [(0.3, "Promoted"), (-0.4, "RolledBack")])
def test_a_cap_is_tried_on_one_pod_and_restarts_none(monkeypatch: pytest.MonkeyPatch, gain: float, phase: str) -> None:
    world = World(monkeypatch, gain, **HOT)
    world.run(lambda: world.phase(2) == "Measuring")
    pods = {n for k, n in world.api.objects if k == "Pod"}
    arms = json.loads(world.api.policy())["experiment"]["arms"]
    assert set(arms[1]["pods"]) < pods and {json.loads(f)["generation"] for f in world.api.files.values() if f} == {2}
    world.run(lambda: world.phase(2) in ("Promoted", "RolledBack", "Cancelled"))
    trial = world.trials()[1]
    assert (trial["status"]["phase"], trial["status"]["restarts"]) == (phase, 0)
    assert {n for k, n in world.api.objects if k == "Pod"} == pods
    cap = json.loads(trial["spec"]["policy"]["candidateJson"])
    now = {k: v for k, v in json.loads(world.api.policy()).items() if k not in ("version", "generation")}
    assert now == (cap if phase == "Promoted" else {})
    world.run(world.delivered)
    assert "finalizers" not in trial["metadata"] or not trial["metadata"]["finalizers"]


def test_suspend_during_a_policy_trial_puts_the_old_file_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.3, **HOT)
    world.run(lambda: world.phase(2) == "Measuring")
    world.tuner()["spec"]["suspend"] = True
    world.run(lambda: world.phase(2) == "RolledBack", 10)
    assert world.trials()[1]["status"]["verdict"]["reason"] == "Stopped"
    assert "experiment" not in world.api.policy() and set(world.api.files.values()) >= {world.api.policy()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_any_write_it_ends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = World(monkeypatch, 0.3, **HOT)
    plain.run(lambda: plain.phase(2) == "Promoted" and plain.delivered())
    for write in range(1, plain.api.count + 1):
        world = World(monkeypatch, 0.3, **HOT)
        world.api.kill_at = write
        world.run(lambda w=world: w.phase(2) == "Promoted" and w.delivered())
        ends = [(t["spec"]["kind"], t["status"]["phase"]) for t in world.trials()[:2]]
        assert ends == [("Install", "Promoted"), ("Policy", "Promoted")], write
        assert json.loads(world.api.policy())["tokens"] == json.loads(plain.api.policy())["tokens"], write
        assert "paused" not in world.api.objects["Deployment", "llm"]["spec"], write


BRAKES = {
    "KillSwitch": ("ConfigMap", "trimtab-kill-switch", {"data": {"stop": "true", "reason": "incident 42"}}),
    "NamespaceFrozen": ("Namespace", "ns", {"metadata": {"labels": {"trimtab.dev/freeze": "black-friday"}}}),
}


@pytest.mark.parametrize("reason", BRAKES)
def test_a_pulled_brake_rolls_back_and_nothing_starts_until_it_is_lifted(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    kind, name, body = BRAKES[reason]
    world = World(monkeypatch, 0.0)
    world.run(lambda: world.phase(1) == "Measuring")
    before = world.trials()[0]["spec"]["baseline"]["templateJson"]
    world.api.objects[kind, name] = body
    world.run(lambda: world.phase(1) == "RolledBack", 10)
    verdict = world.trials()[0]["status"]["verdict"]
    assert verdict["reason"] == "Stopped" and ("incident 42" in verdict["message"]) == (reason == "KillSwitch")
    deployment = world.api.objects["Deployment", "llm"]
    assert json.dumps(deployment["spec"]["template"], sort_keys=True) == before and not deployment["spec"].get("paused")
    for _ in range(20):
        world.run(lambda: True)
    status = world.tuner()["status"]
    found = {c["type"]: c["reason"] for c in status["conditions"]}
    assert (found["Progressing"], found["Stalled"], status["phase"]) == (reason, reason, "Suspended")
    assert len(world.trials()) == 1
    del world.api.objects[kind, name]
    world.run(lambda: len(world.trials()) == 2)


def test_a_second_tuner_of_the_same_target_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.0)
    other = copy.deepcopy(world.tuner())
    other["metadata"] |= {"name": "older", "uid": "o", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.tuner()["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    world.api.objects["VLLMTuner", "older"] = other
    for _ in range(5):
        world.run(lambda: True)
    found = {c["type"]: c["reason"] for c in world.tuner()["status"]["conditions"]}
    assert found["Stalled"] == "AnotherTuner" and not world.trials()
    del world.api.objects["VLLMTuner", "older"]
    world.api.now += 60
    world.run(lambda: world.phase(1) == "Promoted")


def test_a_full_house_is_said_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.0)
    world.limits = Limits(concurrent_trials=1)
    world.reconciler = world.process()
    meta = {"name": "other-1", "namespace": "elsewhere", "labels": {"trimtab.dev/active": "true"},
            "creationTimestamp": rfc3339(START), "ownerReferences": [{"controller": True, "uid": "other"}]}  # fmt: skip
    spec = {"number": 1, "configuration": {}, "baseline": {"deploymentUid": "x", "replicas": 2}, "tunerName": "other"}
    flying = {"metadata": meta, "spec": spec, "status": {"phase": "Measuring", "startedAt": rfc3339(START)}}

    class Elsewhere(Api):
        def list(self, kind: str, namespace: str, labels: Any = "") -> list[Json]:
            everywhere = kind == "TuningTrial" and namespace is None
            return [*super().list(kind, namespace, labels), *([flying] if everywhere and self.full else [])]

        full = True

    world.api.__class__ = Elsewhere
    for _ in range(5):
        world.run(lambda: True)
    found = {c["type"]: c["reason"] for c in world.tuner()["status"]["conditions"]}
    assert (found["Progressing"], found["Stalled"]) == ("TooManyTrials", "Working") and not world.trials()
    Elsewhere.full = False
    world.run(lambda: world.phase(1) == "Promoted")
    assert "trimtab.dev/active" not in world.trials()[0]["metadata"]["labels"]


def test_a_vertical_autoscaler_and_missing_rights_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.0)
    target = {"kind": "Deployment", "name": "llm"}
    world.api.objects["VerticalPodAutoscaler", "vpa"] = {"metadata": {"name": "vpa"}, "spec": {"targetRef": target}}
    listed = world.api.list

    def refuse(kind: str, namespace: str, labels: Any = "") -> list[Json]:
        if kind == "PodDisruptionBudget":
            raise TargetRefused("403")
        return listed(kind, namespace, labels)

    monkeypatch.setattr(world.api, "list", refuse)
    world.run(lambda: True)
    status = world.tuner()["status"]
    assert {c["type"]: c["reason"] for c in status["conditions"]}["Stalled"] == "PodsResized"
    assert [n["reason"] for n in status["notes"]] == ["NoRight"] and "PodDisruptionBudget" in status["notes"][0][
        "message"
    ]
