"""Each fault of docs/faults.md, made in the middle of a trial: how the trial ends, what the owner is told, how long.

A real API server behind a proxy that breaks things, the real Deployment controller, the operator as a process; pods and
Prometheus are stand-ins, and the trial's clock runs ten times as fast. `TRIMTAB_WRITE=1` writes what was seen into the
page; without it the page is only compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
from kill_worlds import BASE, ENDED, Way, World, speed_of
from operator_child import Run

from control_plane import ControlPlane, StandInKubelet, object_path, running, until
from fault_proxy import Fault, FaultProxy
from stand_in_prometheus import StandInPrometheus
from trimtab_operator.cluster import CRD_VERSION_ANNOTATION
from written import region, rewrite

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(600)]
Json = dict[str, Any]
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
COMMAND: Final = "TRIMTAB_WRITE=1 pytest tests/cluster/test_faults.py"
PARALLEL: Final = int(os.environ.get("FAULTS_PARALLEL", "5"))


@dataclass
class Stage:
    """A world with a trial in its measurement, and everything that can be broken in it."""

    world: World
    proxy: FaultProxy
    prometheus: StandInPrometheus
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def plane(self) -> ControlPlane:
        return self.world.plane

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


#: breaks something; what it returns is called to mend it, None where it stays broken
Break = Callable[[Stage], Callable[[], None] | None]


@dataclass(frozen=True)
class Row:
    """ends: the trial's phase and its verdict's reasons, one of which it must be. broken_seconds: true time."""

    fault: str
    make: Break
    ends: str
    reasons: tuple[str, ...] = ()
    broken_seconds: float = 4.0
    #: breaks the control plane itself, so it has one of its own
    alone: bool = False


def api(**how: Any) -> Break:
    def make(stage: Stage) -> Callable[[], None]:
        stage.proxy.fault = Fault(**how)

        def mend() -> None:
            stage.proxy.fault = Fault()

        return mend

    return make


def metrics(*, stays: bool, **how: Any) -> Break:
    def make(stage: Stage) -> Callable[[], None] | None:
        usual = stage.prometheus.trouble
        stage.prometheus.trouble = replace(usual, **how)

        def mend() -> None:
            stage.prometheus.trouble = usual

        return None if stays else mend

    return make


def container(state: Json, restarts: int, last: Json | None = None) -> Json:
    status = {"name": "vllm", "ready": False, "restartCount": restarts, "state": state, "image": "x", "imageID": "x"}
    return {
        "containerStatuses": [{**status, **({"lastState": last} if last else {})}],
        "conditions": [{"type": t, "status": "False"} for t in ("Ready", "ContainersReady")],
    }


def out_of_memory(stage: Stage) -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": None, "startedAt": None}}
    stage.status(stage.pods(canary=True)[0], container({"waiting": {"reason": "CrashLoopBackOff"}}, 1, ended))


def crash_loop(stage: Stage) -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": None, "startedAt": None}}
    stage.status(stage.pods(canary=True)[0], container({"waiting": {"reason": "CrashLoopBackOff"}}, 3, ended))


def evicted(stage: Stage) -> None:
    name = stage.pods(canary=True)[0]["metadata"]["name"]
    stage.plane.request("DELETE", object_path("Pod", stage.world.namespace, name))


def partial(stage: Stage) -> None:
    """The canary alone is no longer scraped."""
    names, usual = {p["metadata"]["name"] for p in stage.pods(canary=True)}, stage.prometheus.speed
    stage.prometheus.speed = lambda ns, pod: None if pod in names else usual(ns, pod)


def another_holder(stage: Stage) -> Callable[[], None]:
    """Another operator holds the lease, renews it for a while, and gives it up."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + 8))
    spec = {"holderIdentity": "another", "renewTime": now, "leaseDurationSeconds": 15}
    stage.plane.merge("Lease", stage.world.namespace, "trimtab-operator", {"spec": spec})

    def mend() -> None:
        gone = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        stage.plane.merge("Lease", stage.world.namespace, "trimtab-operator", gone)

    return mend


def suspended_unseen(stage: Stage) -> None:
    """No watch event arrives any more, and the owner suspends the tuner."""
    stage.proxy.fault = Fault(mute=True)
    stage.plane.merge("VLLMTuner", stage.world.namespace, "llm", {"spec": {"suspend": True}})


def huge_annotations(stage: Stage) -> None:
    notes = {f"example.com/{i}": "\u202e\u001b[31m<script>${IFS}`reboot`" + "x" * 40_000 for i in range(5)}
    stage.plane.merge("Deployment", stage.world.namespace, "llm", {"metadata": {"annotations": notes}})


def second_operator(stage: Stage) -> Callable[[], None]:
    process = replace(stage.world.run(), holder="another-pod").start()

    def mend() -> None:
        process.kill()
        process.join(20)

    return mend


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


def watches(_method: str, path: str) -> bool:
    return "watch=true" in path


ROWS: Final = [
    Row("API server: each answer 1 s late", api(slow_seconds=1.0), "Promoted", broken_seconds=8),
    Row("API server: 500 to everything", api(status=500), "Promoted", broken_seconds=2),
    Row("API server: 429 to everything", api(status=429), "Promoted", broken_seconds=2),
    Row("API server: 409 to every write", api(status=409, hits=writes), "Promoted", broken_seconds=2),
    Row("API server: 410 to every watch", api(status=410, hits=watches), "Promoted"),
    Row("API server: closes each connection", api(cut=True), "Promoted"),
    Row("API server: killed, back after 4 s", killed("kube-apiserver"), "Promoted", alone=True),
    Row("etcd: killed, back after 4 s", killed("etcd"), "Promoted", alone=True),
    Row("watches say nothing any more; the owner suspends", suspended_unseen, "RolledBack", ("Stopped",)),
    Row("Prometheus: 503 for 3 s", metrics(stays=False, status=503), "Promoted", broken_seconds=3),
    Row("Prometheus: 503 for good", metrics(stays=True, status=503), "RolledBack", ("MetricsLost",)),
    Row("Prometheus: never answers", metrics(stays=True, silent=True), "RolledBack", ("MetricsLost",)),
    Row("Prometheus: newest sample 10 min old", metrics(stays=True, old_seconds=600), "RolledBack", ("MetricsLost",)),
    Row("Prometheus: canary not scraped", partial, "RolledBack", ("MetricsLost",)),  # type: ignore[arg-type]
    Row("Prometheus: every value NaN", metrics(stays=True, nan=True), "RolledBack", ("MetricsLost",)),
    Row("Prometheus: series of another job, without pods", metrics(stays=True, pod_label=False), "RolledBack",
        ("MetricsLost",)),
    Row("Prometheus: its clock is 5 min behind", metrics(stays=True, skew_seconds=-300), "RolledBack",
        ("MetricsLost", "MetricsMissing")),
    Row("canary: killed for memory", out_of_memory, "RolledBack", ("OutOfMemory", "CrashedUnderLoad")),  # type: ignore[arg-type]
    Row("canary: crash loop", crash_loop, "RolledBack", ("CrashedUnderLoad",)),  # type: ignore[arg-type]
    Row("canary: evicted, its successor serves at once", evicted, "Promoted"),  # type: ignore[arg-type]
    Row("lease taken by another holder for 8 s", another_holder, "Promoted", broken_seconds=8),
    Row("a second operator starts", second_operator, "Promoted", broken_seconds=5),
    Row("200 KiB of hostile annotations on the target", huge_annotations, "Promoted"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.fixture(scope="module")
def base() -> Iterator[tuple[ControlPlane, StandInKubelet]]:
    with running() as plane, StandInKubelet(plane) as kubelet:
        yield plane, kubelet


def played(row: Row, base: tuple[ControlPlane, StandInKubelet], folder: Path) -> Json:
    """One row: what was seen. AssertionError where it is not what must be."""
    plane, kubelet = base
    way = Way("canary", True, 3, {"maxSurge": 1})
    with (
        StandInPrometheus(speed_of(kubelet, lambda _: True)) as prometheus,
        FaultProxy(plane.url, plane.pool()) as proxy,
    ):
        world = World(plane, way, prometheus.url, folder)
        namespace = plane.namespace()
        kubeconfig = plane.kubeconfig_for(namespace, proxy.url)
        stage = Stage(world, proxy, prometheus)
        world.begin(namespace)
        gap = {"guardrails": {"maxMetricsGapSeconds": 60}, "rollout": {"measurementSeconds": 120,
               "maxMeasurementSeconds": 180}}  # fmt: skip
        plane.merge("VLLMTuner", namespace, "llm", {"spec": gap})
        process = replace(world.run(), kubeconfig=kubeconfig).start()
        try:
            until(lambda: stage.phase() == "Measuring", 90, f"{row.fault}: Measuring")
            began = time.monotonic()
            mend = row.make(stage)
            if mend is not None:
                time.sleep(row.broken_seconds)
                mend()
                began = time.monotonic()
                assert stage.phase() not in ENDED, f"{row.fault}: ended while it was broken"
            before = stage.phase()
            until(lambda: stage.phase() != before, 90, f"{row.fault}: goes on")
            took = time.monotonic() - began
            until(world.at_rest, 120, f"{row.fault}: at rest")
            return seen(row, stage, took)
        finally:
            process.kill()
            process.join(20)
            world.end()


def seen(row: Row, stage: Stage, took: float) -> Json:
    (trial,) = stage.world.trials()
    status = trial["status"]
    events = {e["reason"] for e in stage.plane.get("Event", stage.world.namespace)["items"]}
    found = {"fault": row.fault, "phase": status["phase"], "verdict": status["verdict"]["reason"],
             "message": status["message"], "seconds": round(took, 1), "events": sorted(events)}  # fmt: skip
    assert status["phase"] == row.ends, found
    assert not row.reasons or status["verdict"]["reason"] in row.reasons, found
    if row.ends == "Promoted":
        assert stage.world.problem() == "", (row.fault, stage.world.problem())
    else:
        stranded = replace(stage.world.way, better=False)
        stage.world.way = stranded
        assert stage.world.problem() == "", (row.fault, stage.world.problem())
    return found


def test_every_fault_in_the_middle_of_a_trial(
    base: tuple[ControlPlane, StandInKubelet], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("faults")

    def play(row: Row) -> Json:
        place = folder / str(ROWS.index(row))
        if not row.alone:
            return played(row, base, place)
        with running() as plane, StandInKubelet(plane) as kubelet:
            return played(row, (plane, kubelet), place)

    with ThreadPoolExecutor(PARALLEL) as threads:
        results = [threads.submit(play, row) for row in ROWS]
    wrong = [f"{row.fault}: {r.exception()}" for row, r in zip(ROWS, results, strict=True) if r.exception() is not None]
    rows = [r.result() for r in results if r.exception() is None]
    for found in rows:
        print(found)
    assert not wrong, "\n".join(wrong)
    if os.environ.get("TRIMTAB_WRITE"):
        rewrite(PAGE, COMMAND, table(rows))
    named = [line.split("|")[1].strip() for line in region(PAGE, COMMAND).splitlines()[2:]]
    assert named == [row.fault for row in ROWS], "run it with TRIMTAB_WRITE=1: it writes the page"


def test_an_operator_refuses_crds_of_another_release(tmp_path: Path) -> None:
    """Older and newer ones: a schema that prunes what it writes would lose a trial's baseline."""
    with running() as plane:
        for version in ("1", "99"):
            name = "vllmtuners.trimtab.dev"
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            note = {"metadata": {"annotations": {CRD_VERSION_ANNOTATION: version}}}
            plane.request("PATCH", path, note, "application/merge-patch+json")
            process = Run(plane.kubeconfig, plane.namespace(), tmp_path).start()
            process.join(60)
            said = (tmp_path / "operator.log").read_text()
            assert process.exitcode == 1 and f"CRD {name} has version {version}, this operator needs" in said


def table(rows: list[Json]) -> str:
    head = "fault, while the canary is measured | the trial | what its owner reads | seconds until it goes on"
    lines = [f"| {head} |", "|---|---|---|---|"]
    for r in rows:
        back = r["phase"] == "RolledBack"
        said = f"`{r['verdict']}`: {r['message'][:150]}" if back else "nothing new"
        lines.append(f"| {r['fault']} | {'rolled back' if back else 'promoted'} | {said} | {r['seconds']:g} |")
    return "\n".join(lines)
