"""The rows of the fault table: what is broken, and how the trial must end. Each has a world of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

import urllib3
from kill_worlds import BASE, HASTE, World
from operator_child import Run

from control_plane import ApiError, ControlPlane, object_path, until
from fault_proxy import Fault, FaultProxy
from stand_in_prometheus import StandInPrometheus
from trimtab_operator.target import MOST_TEMPLATE

Json = dict[str, Any]
#: how long a large model loads, in the trial's seconds
LOADS: Final = 1200.0
#: of one annotation: the API server takes 256 KiB of all of them together
_MOST_ANNOTATION: Final = 262_000


@dataclass
class Stage:
    """A world with its trial, and everything that can be broken in it. slow: seconds that a pod of the candidate needs
    until it is ready, by namespace."""

    world: World
    proxy: FaultProxy
    prometheus: StandInPrometheus
    life: Run
    slow: dict[str, float]
    process: ForkServerProcess | None = None
    #: the fewest available pods that were seen
    least: int = 99
    #: what the tuner's conditions said while nothing could begin
    said: str = ""

    @property
    def plane(self) -> ControlPlane:
        return self.world.plane

    def start(self, life: Run | None = None) -> ForkServerProcess:
        return (life or self.life).start()

    def now(self) -> float:
        return self.life.now()

    def pods(self, *, canary: bool) -> list[Json]:
        found: list[Json] = self.plane.get("Pod", self.world.namespace)["items"]
        return [p for p in found if (BASE in p["spec"]["containers"][0]["args"]) != canary]

    def status(self, pod: Json, patch: Json) -> None:
        """What a kubelet would say of the pod."""
        path = f"{object_path('Pod', self.world.namespace, pod['metadata']['name'])}/status"
        self.plane.request("PATCH", path, {"status": patch}, "application/merge-patch+json")

    def phase(self) -> str:
        trials = self.world.trials()
        return str((trials[-1].get("status") or {}).get("phase", "")) if trials else ""

    def until(self, check: Callable[[], bool], seconds: float, what: str) -> float:
        """As `until`, with an eye on the pods."""

        def seen() -> bool:
            with contextlib.suppress(ApiError, urllib3.exceptions.HTTPError, OSError):
                status = self.world.deployment().get("status") or {}
                self.least = min(self.least, int(status.get("availableReplicas", 0)))
            return check()

        return until(seen, seconds, what, 0.2)

    def condition(self, kind: str) -> Json:
        found = (self.plane.get("VLLMTuner", self.world.namespace, "llm").get("status") or {}).get("conditions") or ()
        return next((c for c in found if c["type"] == kind), {})


#: breaks something; what it returns is called to mend it, None where it stays broken
Break = Callable[[Stage], Callable[[], None] | None]


@dataclass(frozen=True)
class Row:
    """ends: the trial's phase and its verdict's reasons, one of which it must be. broken_seconds: true time.

    blocks: broken before there is a trial, until the tuner's condition Stalled has this reason. slow: broken before
    there is a trial, and what mends it is called while the canary starts. alone: breaks the control plane itself, so it
    has one of its own. quotes: in the target's template.
    """

    fault: str
    make: Break
    ends: str
    reasons: tuple[str, ...] = ()
    broken_seconds: float = 4.0
    alone: bool = False
    blocks: str = ""
    slow: bool = False
    quotes: int = 0
    haste: float = HASTE
    rollout: Json = field(default_factory=dict)


def api(**how: Any) -> Break:
    def make(stage: Stage) -> Callable[[], None]:
        stage.proxy.fault = Fault(**how)
        return lambda: mended(stage)

    return make


def mended(stage: Stage) -> None:
    stage.proxy.fault = Fault()


def metrics(*, stays: bool, **how: Any) -> Break:
    def make(stage: Stage) -> Callable[[], None] | None:
        usual = stage.prometheus.trouble
        stage.prometheus.trouble = replace(usual, **how)

        def mend() -> None:
            stage.prometheus.trouble = usual

        return None if stays else mend

    return make


def nothing(_stage: Stage) -> None:
    """The target itself is the fault."""


# --- pods -------------------------------------------------------------------------------------------------------------
def container(state: Json, restarts: int, last: Json | None = None) -> Json:
    status = {"name": "vllm", "ready": False, "restartCount": restarts, "state": state, "image": "x", "imageID": "x"}
    return {
        "containerStatuses": [{**status, **({"lastState": last} if last else {})}],
        "conditions": [{"type": t, "status": "False"} for t in ("Ready", "ContainersReady")],
    }


def died(exit_code: int, reason: str, restarts: int) -> Break:
    def make(stage: Stage) -> None:
        ended = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": None, "startedAt": None}}
        said = container({"waiting": {"reason": "CrashLoopBackOff"}}, restarts, ended)
        stage.status(stage.pods(canary=True)[0], said)

    return make


def evicted(stage: Stage) -> None:
    name = stage.pods(canary=True)[0]["metadata"]["name"]
    stage.plane.request("DELETE", object_path("Pod", stage.world.namespace, name))


def unscraped(stage: Stage, names: set[str]) -> None:
    usual = stage.prometheus.speed
    stage.prometheus.speed = lambda ns, pod: None if pod in names else usual(ns, pod)


def partial(stage: Stage) -> None:
    """The canary alone is no longer scraped."""
    unscraped(stage, {p["metadata"]["name"] for p in stage.pods(canary=True)})


def node_lost(*, canary: bool) -> Break:
    """What the node controller says of a pod whose node is silent; nobody reaches its engine."""

    def make(stage: Stage) -> None:
        pod = stage.pods(canary=canary)[0]
        lost = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
        stage.status(pod, {"conditions": [lost, {"type": "ContainersReady", "status": "True"}]})
        unscraped(stage, {pod["metadata"]["name"]})

    return make


def stuck(gauges: dict[str, float], *, canary: bool | None) -> Break:
    """From now on no token comes from these pods (None: from all), while /health says 200."""

    def make(stage: Stage) -> Callable[[], None]:
        chosen = [stage.pods(canary=canary)] if canary is not None else [stage.pods(canary=c) for c in (True, False)]
        names = {p["metadata"]["name"] for pods in chosen for p in pods}
        usual, trouble, at = stage.prometheus.speed, stage.prometheus.trouble, stage.now()

        def speed(namespace: str, pod: str) -> Any:
            before = usual(namespace, pod)
            return [(0.0, before), (at, 0.0)] if pod in names and before is not None else before

        def mend() -> None:
            stage.prometheus.speed, stage.prometheus.trouble = usual, trouble

        stage.prometheus.speed = speed
        stage.prometheus.trouble = replace(trouble, gauges=gauges, sick=lambda pod: pod in names)
        return mend

    return make


def device_held(stage: Stage) -> Callable[[], None]:
    """With maxSurge 0: the old pod's process still has the device when the new one loads, which dies of it once."""
    for pod in stage.pods(canary=False):
        finalizers(stage, pod, ["example.com/device"])

    def canaries() -> list[Json]:
        return [p for p in stage.pods(canary=True) if (p.get("status") or {}).get("podIP")]

    def mend() -> None:
        stage.until(lambda: bool(canaries()), 30, "a canary runs beside the old pod")
        ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": None, "startedAt": None}}
        stage.status(canaries()[0], container(ended, 0))
        time.sleep(2.0)
        for pod in stage.pods(canary=False):
            finalizers(stage, pod, None)
        stage.slow[stage.world.namespace] = 0.0
        running = {**container({"running": {}}, 1, ended)["containerStatuses"][0], "ready": True}
        ready = [{"type": t, "status": "True"} for t in ("Ready", "ContainersReady")]
        stage.status(canaries()[0], {"containerStatuses": [running], "conditions": ready})

    return mend


def finalizers(stage: Stage, pod: Json, wanted: list[str] | None) -> None:
    patch = {"metadata": {"finalizers": wanted}}
    stage.plane.merge("Pod", stage.world.namespace, pod["metadata"]["name"], patch)


HANGS: Final = {"vllm:num_requests_running": 4.0, "vllm:num_requests_waiting": 2.0}
LEAKED: Final = {
    "vllm:num_requests_running": 0.0, "vllm:num_requests_waiting": 5.0, "vllm:kv_cache_usage_perc": 0.98,
}  # fmt: skip


# --- operators --------------------------------------------------------------------------------------------------------
def another_holder(stage: Stage) -> Callable[[], None]:
    """Another operator holds the lease, renews it for a while, and gives it up."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + 8))
    spec = {"holderIdentity": "another", "renewTime": now, "leaseDurationSeconds": 15}
    stage.plane.merge("Lease", stage.world.namespace, "trimtab-operator", {"spec": spec})

    def mend() -> None:
        gone = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        stage.plane.merge("Lease", stage.world.namespace, "trimtab-operator", gone)

    return mend


def second_operator(stage: Stage) -> Callable[[], None]:
    process = stage.start(replace(stage.life, holder="another-pod"))

    def mend() -> None:
        process.kill()
        process.join(20)

    return mend


def operator_killed(stage: Stage) -> Callable[[], None]:
    """As the kernel does where it uses more memory than its limit."""
    assert stage.process is not None
    stage.process.kill()
    stage.process.join(20)

    def mend() -> None:
        stage.process = stage.start()

    return mend


def search_dies(stage: Stage) -> Callable[[], None]:
    """As the kernel does with it where memory is short, each time it is asked."""
    flag = stage.life.search_dies
    flag.touch()
    return flag.unlink


# --- the API server and what it stores --------------------------------------------------------------------------------
def suspend(stage: Stage) -> None:
    stage.plane.merge("VLLMTuner", stage.world.namespace, "llm", {"spec": {"suspend": True}})


def suspended_unseen(stage: Stage) -> None:
    """No watch event arrives any more, and the owner suspends the tuner."""
    stage.proxy.fault = Fault(mute=True)
    suspend(stage)


def huge_annotations(stage: Stage) -> None:
    notes = {f"example.com/{i}": "\u202e\u001b[31m<script>${IFS}`reboot`" + "x" * 40_000 for i in range(5)}
    stage.plane.merge("Deployment", stage.world.namespace, "llm", {"metadata": {"annotations": notes}})


def filled(stage: Stage) -> None:
    """The TuningTrial is as large as etcd takes it: one byte more is refused. Control characters are six in JSON."""
    name = stage.world.trials()[-1]["metadata"]["name"]

    def fits(length: int) -> bool:
        note = {"metadata": {"annotations": {"example.com/note": "\u0001" * length}}}
        with contextlib.suppress(ApiError):
            stage.plane.merge("TuningTrial", stage.world.namespace, name, note)
            return True
        return False

    least, most = 0, _MOST_ANNOTATION
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    assert 0 < least < _MOST_ANNOTATION - 1, f"the limit was not met at {least}"


def status_refused(stage: Stage) -> Callable[[], None]:
    """No status of a trial is taken, and the owner suspends: the target must be taken back all the same."""
    stage.proxy.fault = Fault(status=422, hits=trial_status)
    suspend(stage)
    stage.until(lambda: as_before(stage), 40, "taken back while no status can be written")
    return lambda: mended(stage)


def as_before(stage: Stage) -> bool:
    now = stage.world.deployment()
    marked = "trimtab.dev/trial" in (now["metadata"].get("annotations") or {})
    return not marked and now["spec"] == stage.world.before["spec"]


def killed(part: str) -> Break:
    """SIGKILL, and a new process after a while."""

    def make(stage: Stage) -> Callable[[], None]:
        stage.plane.kill(part)

        def mend() -> None:
            stage.plane.launch(part)
            stage.plane.wait_ready()
            until(lambda: stage.plane.exists("/apis/trimtab.dev/v1alpha1/vllmtuners"), 30, "the CRDs are served again")

        return mend

    return make


def writes(method: str, path: str) -> bool:
    return method in ("PUT", "PATCH", "POST") and "/leases" not in path


def trial_status(method: str, path: str) -> bool:
    return method == "PUT" and "/tuningtrials/" in path


def watches(_method: str, path: str) -> bool:
    return "watch=true" in path


_BACK: Final = "RolledBack"
_LOST: Final = ("MetricsLost",)
#: at this pace a pass of the operator takes half a minute of the trial
_FASTER: Final = 30.0
ROWS: Final = [
    Row("API server: each answer 1 s late", api(slow_seconds=1.0), "Promoted", broken_seconds=8),
    Row("API server: 500 to everything", api(status=500), "Promoted", broken_seconds=2),
    Row("API server: 429 to everything", api(status=429), "Promoted", broken_seconds=2),
    Row("API server: 409 to every write", api(status=409, hits=writes), "Promoted", broken_seconds=2),
    Row("API server: 410 to every watch", api(status=410, hits=watches), "Promoted"),
    Row("API server: closes each connection", api(cut=True), "Promoted"),
    Row("API server: killed, back after 4 s", killed("kube-apiserver"), "Promoted", alone=True),
    Row("API server: refuses every status of a trial; the owner suspends", status_refused, _BACK, ("Stopped",)),
    Row("etcd: killed, back after 4 s", killed("etcd"), "Promoted", alone=True),
    Row("etcd: the TuningTrial is as large as it takes", filled, "Promoted"),
    Row("watches say nothing any more; the owner suspends", suspended_unseen, _BACK, ("Stopped",)),
    Row("Prometheus: 503 for 3 s", metrics(stays=False, status=503), "Promoted", broken_seconds=3),
    Row("Prometheus: 503 for good", metrics(stays=True, status=503), _BACK, _LOST),
    Row("Prometheus: never answers", metrics(stays=True, silent=True), _BACK, _LOST),
    Row("Prometheus: newest sample 10 min old", metrics(stays=True, old_seconds=600), _BACK, _LOST),
    Row("Prometheus: canary not scraped", partial, _BACK, _LOST),
    Row("Prometheus: every value NaN", metrics(stays=True, nan=True), _BACK, _LOST),
    Row("Prometheus: series of another job, without pods", metrics(stays=True, pod_label=False), _BACK, _LOST),
    Row("Prometheus: its clock is 5 min behind", metrics(stays=True, skew_seconds=-300), _BACK,
        (*_LOST, "MetricsMissing")),
    Row("metrics: two API servers, counters jump back and forth", metrics(stays=True, processes=2), _BACK,
        (*_LOST, "MetricsMissing", "NotEnoughRequests", "NotEnoughWindows")),
    Row("canary: killed for memory", died(137, "OOMKilled", 1), _BACK, ("OutOfMemory", "CrashedUnderLoad")),
    Row("canary: crash loop", died(1, "Error", 3), _BACK, ("CrashedUnderLoad",)),
    Row("canary: hangs while /health says 200", stuck(HANGS, canary=True), _BACK, ("CanaryHangs",),
        broken_seconds=0),
    Row("canary: leaked KV blocks, nothing is admitted", stuck(LEAKED, canary=True), _BACK, ("CanaryHangs",),
        broken_seconds=0),
    Row("canary: evicted, its successor serves at once", evicted, "Promoted"),
    Row("canary: its node is NotReady", node_lost(canary=True), _BACK, _LOST),
    Row("control: the node of one pod is NotReady", node_lost(canary=False), "Promoted"),
    Row("canary: loads for 20 min, progressDeadlineSeconds 1800", nothing, "Promoted", slow=True, haste=_FASTER,
        rollout={"progressDeadlineSeconds": 1800}),
    Row("canary: loads for 20 min, progressDeadlineSeconds 900", nothing, _BACK, ("NeverReady",), slow=True,
        haste=_FASTER, rollout={"progressDeadlineSeconds": 900}),
    Row("canary: out of device memory while the old pod still ends", device_held, "Promoted", slow=True,
        rollout={"maxSurge": 0}),
    Row("target: leaked KV blocks before a trial", stuck(LEAKED, canary=None), "Promoted", blocks="LeakedBlocks"),
    Row("target: 200 KiB of hostile annotations", huge_annotations, "Promoted"),
    Row("target: a pod template at Trimtab's limit, all quotes", nothing, "Promoted", quotes=MOST_TEMPLATE // 2 - 900),
    Row("operator: killed as for memory, back after 4 s", operator_killed, "Promoted"),
    Row("operator: its search is killed each time, before a trial", search_dies, "Promoted", blocks="SearchFailed"),
    Row("operator: lease taken by another holder for 8 s", another_holder, "Promoted", broken_seconds=8),
    Row("operator: a second one starts", second_operator, "Promoted", broken_seconds=5),
]  # fmt: skip
