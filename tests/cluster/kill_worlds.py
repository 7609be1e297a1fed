"""What the kill matrix is made of: a target, a tuner and the operator in a namespace of a bare control plane."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from operator_child import Run

from control_plane import ControlPlane, StandInKubelet, object_path, until

Json = dict[str, Any]
BASE, CANDIDATE = "--max-num-seqs=4", 48
#: the trial's clock: a trial of minutes takes seconds
HASTE: Final = 10.0
ENDED: Final = ("Promoted", "RolledBack", "Cancelled")
OWNERS_STRATEGY: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}


@dataclass(frozen=True)
class Way:
    """A strategy and how its trial ends."""

    strategy: str
    better: bool
    replicas: int = 2
    rollout: Json = field(default_factory=dict)

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
    )
    for better in (True, False)
]


def speed_of(kubelet: StandInKubelet, better: Callable[[str], bool]) -> Callable[[str, str], float | None]:
    """For the stand-in Prometheus: pods of the candidate do far more or less than those of the baseline. It knows pods
    that are gone, as Prometheus does.
    """

    def speed(namespace: str, pod: str) -> float | None:
        found = kubelet.ever.get((namespace, pod))
        if found is None:
            return None
        if BASE in found["spec"]["containers"][0]["args"]:
            return 1.0
        return 2.5 if better(namespace) else 0.4

    return speed


@dataclass
class World:
    """One namespace: `begin`, then `live` once or more; `problem` says what is wrong at the end, "" for nothing."""

    plane: ControlPlane
    way: Way
    prometheus: str
    folder: Path
    namespace: str = ""
    before: Json = field(default_factory=dict)
    began: float = 0.0

    def begin(self, namespace: str) -> None:
        self.namespace = namespace
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plane.request("POST", object_path("Deployment", namespace), target(self.way.replicas))
        until(lambda: self._available() == self.way.replicas, 60, "the target is available")
        self.before = self.deployment()
        self.began = time.time()
        self.plane.request("POST", object_path("VLLMTuner", namespace), tuner(self.prometheus, self.way.rollout))

    def _available(self) -> int:
        return int((self.deployment().get("status") or {}).get("availableReplicas", 0))

    def run(self, kill: tuple[int, str] = (0, "")) -> Run:
        return Run(self.plane.kubeconfig, self.namespace, self.folder, kill, self.began, HASTE)

    def live(self, kill: tuple[int, str], seconds: float = 90) -> bool:
        """One process until it is killed (True) or until everything is at rest (False)."""
        process = self.run(kill).start()
        try:
            until(lambda: process.exitcode is not None or self.at_rest(), seconds, f"{self.way.name} {kill}", 0.2)
            assert process.exitcode in (None, -signal.SIGKILL), (self.folder / "operator.log").read_text()[-3000:]
            return process.exitcode is not None
        finally:
            process.kill()
            process.join(20)

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
        status = trials[0]["status"]
        if "trimtab.dev/trial" in (now["metadata"].get("annotations") or {}):
            return "marked"
        wanted = dict(self.before["spec"])
        if status["phase"] == "Promoted":
            if not self.way.better or status["verdict"]["kind"] != "Better":
                return f"wrong promotion: {status['verdict']}"
            wanted["template"] = json.loads(trials[0]["spec"]["baseline"]["candidateTemplateJson"])
        if now["spec"] != wanted:
            return f"the spec is not its owner's: {json.dumps(now['spec'])}"
        if status["phase"] != ("Promoted" if self.way.better else "RolledBack"):
            return f"ended as {status['phase']}: {status.get('message')}"
        return ""


def target(replicas: int) -> Json:
    container = {
        "name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "command": ["vllm", "serve", "m"],
        "args": [BASE, "--enable-prefix-caching"], "ports": [{"containerPort": 8000}],
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    }  # fmt: skip
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container]}}
    spec = {
        "replicas": replicas, "selector": {"matchLabels": {"app": "llm"}}, "template": template,
        "strategy": OWNERS_STRATEGY,
    }  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"}, "spec": spec}


def tuner(prometheus: str, rollout: Json) -> Json:
    times = {
        "warmupSeconds": 5, "measurementSeconds": 40, "confirmationSeconds": 20, "maxMeasurementSeconds": 60,
        "verificationSeconds": 10, "progressDeadlineSeconds": 3600, "cooldownSeconds": 0, "maxRestartsPerDay": 500,
        "drain": "Ignore",
    }  # fmt: skip
    spec = {
        "targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"prometheus": {"url": prometheus}},
        "objective": {"slo": {"ttftSeconds": 2.0, "tpotSeconds": 0.2}}, "rollout": {**times, **rollout},
        "search": {"maxNumSeqs": {"min": 4, "max": 128}, "candidates": [{"maxNumSeqs": CANDIDATE}], "maxTrials": 1},
        "guardrails": {"windowSeconds": 20, "maxMetricsGapSeconds": 600},
        "preconditions": {"stableSeconds": 0, "minRequestsPerSecond": 0.2},
    }  # fmt: skip
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": "llm"}, "spec": spec}
