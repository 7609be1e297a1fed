"""The operator in its pod, installed by the chart, on a real API server, Deployment controller, kubelet and Prometheus.

Each scenario has a namespace of its own and begins when a test asks for it. Each process of pytest-xdist has an
operator of its own, for the namespaces of its scenarios (conftest.py says which process gets which).
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scenario import LOAD, Scenario

import manifests

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

FAST = {
    "warmupSeconds": 5,
    "measurementSeconds": 30,
    "confirmationSeconds": 12,
    "maxMeasurementSeconds": 45,
    "verificationSeconds": 5,
    "progressDeadlineSeconds": 60,
    "cooldownSeconds": 1,
}
GOOD = {"maxNumSeqs": 48, "enablePrefixCaching": True}


def search(*candidates: Json, trials: int = 1) -> Json:
    return {"maxNumSeqs": {"min": 4, "max": 256}, "candidates": list(candidates), "maxTrials": trials}


@pytest.fixture(scope="module")
def homes(new_namespace: Callable[..., str]) -> dict[str, str]:
    """A namespace for each scenario."""
    return {name: new_namespace() for name in SCENARIOS}


@pytest.fixture(scope="module")
def operator(
    cluster: Any, crds: None, helm: Callable[..., Any], new_namespace: Callable[..., str], homes: dict[str, str]
) -> Iterator[str]:
    """The chart's operator for the scenarios' namespaces; uninstalled at the end."""
    namespace = new_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})
    image = "image.repository=localhost/trimtab,image.tag=dev,image.pullPolicy=Never"
    values = f"rbac.mode=Apply,crds.install=false,log.format=text,watchNamespaces={{{','.join(homes.values())}}}"
    arguments = ("--set", image, "--set", values)
    helm("install", "op", str(ROOT / "charts" / "trimtab"), "-n", namespace, *arguments, "--wait", "--timeout=90s")
    yield namespace
    log = cluster.at(namespace)("logs", "deployment/op-trimtab", "--tail=2000")
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / f"operator-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.log").write_text(log)
    helm("uninstall", "op", "-n", namespace, "--wait", "--timeout=200s", timeout=240)


@dataclass
class World:
    """All scenarios of this module, by name; asking for one begins it and ends the load of the one before."""

    scenarios: dict[str, Scenario]
    begun: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Scenario:
        scenario = self.scenarios[name]
        if name not in self.begun:
            for before in self.begun[-1:]:
                self.scenarios[before].kubectl("delete", "pod", "load", "--wait=false")
            self.begun.append(name)
            scenario.start()
            scenario.tune()
        return scenario


def _tuner(mode: str = "Auto", **sections: Any) -> Json:
    settings = {"rollout": FAST, "preconditions": {"stableSeconds": 5, "minRequestsPerSecond": 0.2}, **sections}
    return manifests.tuner(mode=mode, **settings)


SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}
#: what is special about each: the tuner, and what else a `Scenario` takes
SCENARIOS: dict[str, tuple[Json, Json]] = {
    "tuned": (_tuner(search=search(GOOD)), {"replicas": 3, "strategy": SURGE, "load": [*LOAD, "--rate=9"]}),
    "crash": (
        _tuner(search=search({"maxNumSeqs": 256}, trials=2)),
        {"env": {"EMULATE_CRASH_IF": "max_num_seqs>200"}},
    ),
    "suspended": (_tuner(search=search(GOOD)), {}),
    "recommend": (_tuner("Recommend", search=search()), {}),
    "approve": (_tuner("Approve", search=search(GOOD)), {}),
    "foreign": (_tuner(search=search(GOOD)), {}),
    "replicas": (_tuner(search=search(GOOD)), {}),
    "reverted": (_tuner(search=search(GOOD, {"maxNumSeqs": 24}, trials=3)), {}),
    "direct": (
        _tuner(
            search=search(GOOD),
            metrics={"prometheus": None, "direct": {"intervalSeconds": 1}},
            rollout={**FAST, "maxSurge": 1},
            guardrails={"windowSeconds": 20, "maxMetricsGapSeconds": 90},
        ),
        {"strategy": {"type": "Recreate"}, "load": [*LOAD, "--rate=9"]},  # the third pod would carry less
    ),
}


@pytest.fixture(scope="module")
def world(cluster: Any, prometheus: str, operator: str, homes: dict[str, str]) -> World:
    return World({name: Scenario(cluster.at(homes[name]), tuner, **more) for name, (tuner, more) in SCENARIOS.items()})


def test_a_target_with_too_few_slots_is_tuned_while_it_serves(world: World) -> None:
    s = world["tuned"]
    s.wait_phase("Promoted", "RolledBack", "Cancelled", seconds=300)
    trial = s.trial()
    assert trial["status"]["phase"] == "Promoted", json.dumps(trial["status"], indent=1)
    assert trial["status"]["verdict"]["kind"] == "Better"
    assert trial["status"]["restarts"] == 3  # one canary, two more by the promotion
    now = s.deployment()
    args = now["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-num-seqs=48" in args and "--enable-prefix-caching" in args
    kept = {k: v for k, v in now["spec"].items() if k != "template"}
    assert kept == {k: v for k, v in s.before["spec"].items() if k != "template"}  # strategy, pause, replicas as before
    assert "trimtab.dev/trial" not in now["metadata"].get("annotations", {})
    s.wait("Converged", lambda: s.status().get("phase") == "Converged", 60)
    assert s.failures() == {}


def test_the_columns_answer_what_a_person_asks(world: World) -> None:
    s = world["tuned"]
    s.wait("Converged", lambda: s.status().get("phase") == "Converged", 300)
    s.kubectl("wait", "--for=condition=Ready", "vt/llm", "--timeout=30s")
    table = s.kubectl("get", "vt,tt")
    assert "Converged" in table and "Promoted" in table and "Better" in table and "max_num_seqs=48" in table
    events = s.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")
    for reason in ("TrialProposed", "TrialWarmingUp", "TrialMeasuring", "TrialPromoting", "TrialPromoted"):
        assert reason in events


def test_a_configuration_that_cannot_start_fails_with_its_last_words_and_is_not_tried_again(world: World) -> None:
    s = world["crash"]
    s.wait("the crash", lambda: s.phase() in ("RollingBack", "RolledBack"), 120)
    took = s.wait_phase("RolledBack", seconds=60)
    assert took < 60
    status = s.trial()["status"]
    assert status["infeasible"] and status["verdict"]["kind"] == "Error"
    assert "memory" in status["verdict"]["message"].lower()
    s.wait("a second trial", lambda: bool(s.trial(2)), 120)
    assert s.trial(2)["spec"]["configuration"].get("maxNumSeqs", 0) < 256


def test_suspend_stops_at_once_and_restores_the_baseline(world: World) -> None:
    s = world["suspended"]
    s.wait_phase("Measuring", "Confirming")
    s.kubectl("patch", "vt", "llm", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    assert s.wait_phase("RollingBack", "RolledBack", seconds=20) < 20
    s.wait_phase("RolledBack", seconds=90)
    s.assert_as_before()
    s.wait("Suspended", lambda: s.status().get("phase") == "Suspended", 30)
    assert s.trial()["status"]["verdict"]["reason"] == "Stopped"


def test_recommend_writes_nothing_to_the_target_and_says_what_it_would_do(world: World) -> None:
    s = world["recommend"]
    s.wait("a recommendation", lambda: bool(s.status().get("recommendation")), 120)
    said = s.status()["recommendation"]
    assert said["patch"].startswith("kubectl patch deployment llm") and "\n" not in said["patch"].strip()
    assert s.deployment()["metadata"]["generation"] == s.before["metadata"]["generation"]
    assert s.trials() == []
    # the patch is really paste-ready: the API server takes it
    program = f"{s.kubectl.program} --kubeconfig={s.kubectl.kubeconfig}"
    command = said["patch"].replace("kubectl", program, 1) + " --dry-run=server"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    events = s.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")
    assert "Recommendation" in events


def test_approve_waits_and_a_deleted_tuner_rolls_back_first(world: World) -> None:
    s = world["approve"]
    s.wait_phase("AwaitingApproval")
    assert s.deployment()["metadata"]["generation"] == s.before["metadata"]["generation"]
    assert s.status()["phase"] == "AwaitingApproval"
    s.kubectl("annotate", "vt", "llm", f"trimtab.dev/approve={s.trial()['metadata']['name']}")
    s.wait_phase("WarmingUp", "Measuring", seconds=60)
    s.kubectl("delete", "vt", "llm", "--timeout=120s", timeout=130)
    s.assert_as_before()
    s.wait("no trials left", lambda: not s.trials(), 60)


def test_someone_elses_change_stays_and_ends_the_trial(world: World) -> None:
    s = world["foreign"]
    s.wait_phase("WarmingUp", "Measuring")
    s.kubectl("set", "env", "deployment/llm", "TEAM=search")
    s.wait_phase("Cancelled", seconds=60)
    now = s.deployment()
    assert {"name": "TEAM", "value": "search"} in now["spec"]["template"]["spec"]["containers"][0]["env"]
    assert not now["spec"].get("paused") and "trimtab.dev/trial" not in now["metadata"].get("annotations", {})
    assert now["spec"]["strategy"] == s.before["spec"]["strategy"]
    assert s.trial()["status"]["verdict"]["reason"] == "ExternalChange"


def test_a_changed_replica_count_makes_the_trial_inconclusive(world: World) -> None:
    s = world["replicas"]
    s.wait_phase("WarmingUp", "Measuring")
    s.kubectl("scale", "deployment/llm", "--replicas=3")
    s.wait_phase("RolledBack", seconds=120)
    s.assert_as_before(replicas=3)
    assert s.trial()["status"]["verdict"]["reason"] == "ReplicasChanged"


def test_an_owner_that_reverts_is_not_fought(world: World) -> None:
    """A GitOps tool puts the template back within a second: at most 2 writes, then a clear condition."""
    s = world["reverted"]
    stop, written = threading.Event(), []

    def revert() -> None:
        template = json.dumps([{"op": "replace", "path": "/spec/template", "value": s.before["spec"]["template"]}])
        while not stop.is_set():
            if s.deployment()["spec"]["template"] != s.before["spec"]["template"]:
                written.append(time.monotonic())
                s.kubectl("patch", "deployment", "llm", "--type=json", "-p", template)
            time.sleep(0.5)

    thread = threading.Thread(target=revert)
    thread.start()
    try:
        s.wait("Stalled", lambda: s.condition("Stalled").get("reason") == "OwnerReverts", 150)
        time.sleep(10)
    finally:
        stop.set()
        thread.join()
    assert len(written) <= 2
    assert s.trial()["status"]["verdict"]["reason"] == "Reverted" and len(s.trials()) == 1
    s.assert_as_before()


def test_direct_scrape_surge_and_a_recreate_strategy(world: World, cluster: Any, operator: str) -> None:
    """One pod more for the trial instead of one less; the owner's Recreate strategy stops nothing and comes back.

    In the middle the operator's pod is killed without grace. Its samples are gone with it, so it measures anew.
    """
    s = world["direct"]
    s.wait_phase("Measuring")
    time.sleep(15)  # half of the measurement is lost with the process: too much to judge by the rest
    where = ("-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force")
    cluster.at(operator)("delete", "pod", *where)
    s.wait_phase("Promoted", "RolledBack", "Cancelled", seconds=300)
    assert s.trial()["status"]["remeasured"] >= 1
    assert s.phase() == "Promoted", json.dumps(s.trial()["status"], indent=1)
    assert s.deployment()["spec"]["strategy"] == {"type": "Recreate"}
    assert s.failures() == {}
