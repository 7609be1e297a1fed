"""What the kill matrix is made of: a target, a tuner and the operator in a namespace of a bare control plane."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from operator_child import Run

from control_plane import ControlPlane, StandInKubelet, object_path, running, until
from stand_in_engines import StandInEngines, Taken
from stand_in_prometheus import Changes, StandInPrometheus
from trimtab.engine.install import POLICY_KEY, installed
from trimtab.plan.hot import TRIAL, cap_of
from trimtab.plan.token_policy import body_of
from trimtab_operator.middleware import names

Json = dict[str, Any]
BASE, CANDIDATE = "--max-num-seqs=4", 48
#: the trial's clock: a trial of minutes takes seconds
HASTE: Final = 10.0
ENDED: Final = ("Promoted", "RolledBack", "Cancelled")
OWNERS_STRATEGY: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
HOT: Final = "hot"
#: of samples before the first trial: a thousand requests of each pod
_HISTORY_SECONDS: Final = 300.0
#: of what pods of the candidate do, with a usual pod's work as 1
BETTER, WORSE = 2.5, 0.4


@dataclass(frozen=True)
class Way:
    """A strategy and how its trial ends."""

    strategy: str
    better: bool
    replicas: int = 2
    rollout: Json = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.strategy}, {'promoted' if self.better else 'rolled back'}"


#: the judge trusts a switchback's windows less: the two settings served at different hours
LONGER: Final = {"measurementSeconds": 80, "maxMeasurementSeconds": 160}
WAYS: Final = [
    Way(strategy, better, replicas, rollout)
    for strategy, replicas, rollout in (
        ("canary, maxSurge 0", 2, {"maxSurge": 0}),
        ("canary, maxSurge 1", 2, {"maxSurge": 1}),
        ("switchback", 1, {"strategy": "Switchback", "maxSurge": 0, "allowDowntime": True, **LONGER}),
        (HOT, 2, {}),
    )
    for better in (True, False)
]


def speed_of(kubelet: StandInKubelet, better: Callable[[str], bool]) -> Callable[[str, str], float | Changes | None]:
    """For the stand-in Prometheus: pods of the candidate do far more or less than those of the baseline. It knows pods
    that are gone, as Prometheus does.
    """

    def speed(namespace: str, pod: str) -> float | None:
        found = kubelet.ever.get((namespace, pod))
        if found is None:
            return None
        if BASE in found["spec"]["containers"][0]["args"]:
            return 1.0
        return BETTER if better(namespace) else WORSE

    return speed


def speeds_by_policy(files: list[Taken], pod: str, speed: float, clock: Callable[[float], float]) -> Changes:
    """The same for a pod that never restarts: from which of the trial's times on it has had the candidate's policy."""

    def tries(body: Json) -> bool:
        arms = (body.get("experiment") or {}).get("arms") or ()
        arm = next((a for a in arms if a["name"] == TRIAL and pod in a["pods"]), None)
        return arm is not None or cap_of(body) is not None

    changes = [(clock(f.at), speed if tries(f.body) else 1.0) for f in files]
    return [(0.0, changes[0][1]), *changes[1:]]


@dataclass
class World:
    """One namespace: `begin`, then `live` once or more; `problem` says what is wrong at the end, "" for nothing."""

    plane: ControlPlane
    way: Way
    prometheus: str
    folder: Path
    namespace: str = ""
    haste: float = HASTE
    #: of the engines; only where the middleware is asked
    port: int = 8000
    #: in a variable of the target: each is two characters of JSON, and four of JSON in JSON
    quotes: int = 0
    before: Json = field(default_factory=dict)
    began: float = 0.0

    @property
    def hot(self) -> bool:
        return self.way.strategy == HOT

    def begin(self, namespace: str) -> None:
        self.namespace = namespace
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plane.request("POST", object_path("Deployment", namespace), self._target())
        until(lambda: self._available() == self.way.replicas, 60, "the target is available")
        self.before = self.deployment()
        self.began = time.time()
        spec = tuner(self.prometheus, self.way.rollout, HOT_SPEC if self.hot else {})
        self.plane.request("POST", object_path("VLLMTuner", namespace), spec)

    def _target(self) -> Json:
        body = target(self.way.replicas, self.port)
        if self.quotes:
            (engine,) = body["spec"]["template"]["spec"]["containers"]
            engine["env"] = [{"name": "QUOTES", "value": '"' * self.quotes}]
        if self.hot:
            body["spec"]["template"] = installed(body["spec"]["template"], None, names("llm"))
        return body

    def _available(self) -> int:
        return int((self.deployment().get("status") or {}).get("availableReplicas", 0))

    def run(self, kill: tuple[int, str] = (0, ""), named: Mapping[tuple[str, int], str] | None = None) -> Run:
        return Run(self.plane.kubeconfig, self.namespace, self.folder, kill, named or {}, self.began, self.haste)

    def live(
        self, kill: tuple[int, str] = (0, ""), named: Mapping[tuple[str, int], str] | None = None, seconds: float = 300
    ) -> bool:
        """One process until it is killed (True) or until everything is at rest (False)."""
        process = self.run(kill, named).start()
        what = f"{self.way.name} {kill} {named}"
        try:
            until(lambda: process.exitcode is not None or self.at_rest(), seconds, what, 0.3)
            assert process.exitcode in (None, -signal.SIGKILL), f"{what}: exit code {process.exitcode}"
            return process.exitcode is not None
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}\n{json.dumps(self.trials())[-3000:]}") from error
        finally:
            process.kill()
            process.join(20)

    def log(self) -> str:
        return (self.folder / "operator.log").read_text()[-3000:]

    def end(self) -> None:
        """What is left costs the next worlds nothing."""
        self.plane.request("DELETE", object_path("Deployment", self.namespace, "llm"))

    # --- looking ------------------------------------------------------------------------------------------------------
    def deployment(self) -> Json:
        return self.plane.get("Deployment", self.namespace, "llm")

    def trials(self) -> list[Json]:
        found: list[Json] = self.plane.get("TuningTrial", self.namespace)["items"]
        return sorted(found, key=lambda t: int(t["spec"]["number"]))

    def at_rest(self) -> bool:
        """The trial has ended, nothing holds the objects any more, and the tuner's status says so."""
        trials, tuner = self.trials(), self.plane.get("VLLMTuner", self.namespace, "llm")
        if not trials or any((t.get("status") or {}).get("phase") not in ENDED for t in trials):
            return False
        held = any(o["metadata"].get("finalizers") for o in (*trials, tuner))
        return not held and not (tuner.get("status") or {}).get("currentTrial")

    def problem(self) -> str:
        """Stranded, or promoted without being better: "" when neither."""
        now, trials = self.deployment(), self.trials()
        if len(trials) != 1:
            ends = [(t["status"]["phase"], t["status"].get("verdict"), t["status"]["message"]) for t in trials]
            return f"{len(trials)} trials: {ends}"
        (trial,), status = trials, trials[0]["status"]
        if "trimtab.dev/trial" in (now["metadata"].get("annotations") or {}):
            return "marked"
        promoted = status["phase"] == "Promoted"
        if promoted and (not self.way.better or status["verdict"]["kind"] != "Better"):
            return f"wrong promotion: {status['verdict']}"
        wanted = dict(self.before["spec"])
        if promoted and not self.hot:
            wanted["template"] = json.loads(trial["spec"]["baseline"]["candidateTemplateJson"])
        if now["spec"] != wanted:
            return f"the spec is not its owner's: {json.dumps(now['spec'])}"
        if self.hot and self.policy() != json.loads(trial["spec"]["policy"][f"{BODY[promoted]}Json"]):
            return f"the policy is neither its owner's nor a promoted one: {self.policy()}"
        if promoted != self.way.better or status["phase"] == "Cancelled":
            return f"ended as {status['phase']}: {status.get('message')}"
        return ""

    def policy(self) -> Json | None:
        """What the ConfigMap says."""
        return body_of(self.plane.get("ConfigMap", self.namespace, names("llm").policy)["data"][POLICY_KEY])


#: of a trial of the policy, by whether it was promoted
BODY: Final = {True: "candidate", False: "baseline"}
#: only the policy is tried
HOT_SPEC: Final[Json] = {
    "tokenPolicy": {"middleware": "Install", "method": "Percentile", "maxNewTokens": {"min": 16, "max": 2048}},
    "search": {"maxNumSeqs": None, "prefixCaching": "Keep", "maxTrials": 1},
}


@contextlib.contextmanager
def worlds(folder: Path, haste: float) -> Iterator[Callable[[Way], World]]:
    """Makes worlds, each in a namespace of its own of one control plane, with pods and metrics that it needs."""
    made: dict[str, World] = {}
    numbers = itertools.count()
    with running() as plane, StandInKubelet(plane) as kubelet, StandInEngines(plane, kubelet) as engines:
        by_template = speed_of(kubelet, lambda namespace: made[namespace].way.better)

        def speed(namespace: str, pod: str) -> float | Changes | None:
            world = made[namespace]
            if not world.hot or (namespace, pod) not in kubelet.ever:
                return by_template(namespace, pod)
            tried = BETTER if world.way.better else WORSE
            return speeds_by_policy(engines.files(namespace, pod), pod, tried, world.run().clock)

        with StandInPrometheus(speed, history_seconds=_HISTORY_SECONDS) as prometheus:

            def make(way: Way) -> World:
                namespace = plane.namespace()
                place = folder / str(next(numbers))
                made[namespace] = World(plane, way, prometheus.url, place, haste=haste, port=engines.port)
                made[namespace].begin(namespace)
                return made[namespace]

            yield make


# --- kills ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kill:
    """write: its name. nth: of the writes of that name, over all lives, those that never arrived not counted."""

    write: str
    nth: int
    side: str


def kills_of(writes: list[str], sides: tuple[str, ...]) -> list[Kill]:
    """Every boundary of a trial that wrote this. An event changes nothing, so before an event is after the write in
    front of it: that is one kill.
    """
    seen: Counter[str] = Counter()
    found = []
    for name in writes:
        seen[name] += 1
        found += [Kill(name, seen[name], s) for s in sides if s == "after" or not name.startswith("create Event")]
    return found


def lived(world: World, kills: Sequence[Kill]) -> list[Kill]:
    """A trial through as many of these kills as it comes by, to its end; those that came about. AssertionError where it
    ends as it must not.
    """
    died: list[Kill] = []
    lost: Counter[str] = Counter()  # writes that were noted but never sent
    while True:
        noted = Counter(world.run().writes())
        left = {(k.write, k.nth - noted[k.write] + lost[k.write]): k for k in kills if k not in died}
        if not world.live(named={at: kill.side for at, kill in left.items()}):
            break
        last = world.run().writes()[-1]
        kill = left[last, (Counter(world.run().writes()) - noted)[last]]
        lost[last] += kill.side == "before"
        died.append(kill)
    problem = world.problem()
    assert problem == "" and world.at_rest(), f"{world.way.name} {died}: {problem}\n{world.log()}"
    world.end()
    return died


def target(replicas: int, port: int = 8000) -> Json:
    container = {
        "name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "command": ["vllm", "serve", "m"],
        "args": [BASE, "--enable-prefix-caching", f"--port={port}"], "ports": [{"containerPort": port}],
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    }  # fmt: skip
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container]}}
    spec = {
        "replicas": replicas, "selector": {"matchLabels": {"app": "llm"}}, "template": template,
        "strategy": OWNERS_STRATEGY,
    }  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"}, "spec": spec}


def tuner(prometheus: str, rollout: Json, more: Json | None = None) -> Json:
    times = {
        "warmupSeconds": 5, "measurementSeconds": 40, "confirmationSeconds": 20, "maxMeasurementSeconds": 60,
        "verificationSeconds": 10, "progressDeadlineSeconds": 3600, "cooldownSeconds": 0, "maxRestartsPerDay": 500,
        "drain": "Ignore",
    }  # fmt: skip
    spec = {
        "targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"prometheus": {"url": prometheus}},
        "objective": {"slo": {"ttftSeconds": 2.0, "tpotSeconds": 0.2}}, "rollout": {**times, **rollout},
        "search": {"maxNumSeqs": {"min": 4, "max": 128}, "candidates": [{"maxNumSeqs": CANDIDATE}], "maxTrials": 1},
        "guardrails": {"windowSeconds": 20, "maxMetricsGapSeconds": 86_400},  # a busy machine is no fault
        "preconditions": {"stableSeconds": 0, "minRequestsPerSecond": 0.2}, **(more or {}),
    }  # fmt: skip
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": "llm"}, "spec": spec}
