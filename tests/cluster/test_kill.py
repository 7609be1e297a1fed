"""SIGKILL the operator in every phase of a trial: it goes on or rolls back, and never leaves a paused Deployment.

Here the operator is a process on this machine, so that the kill is exact and the restart is at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario import LOAD, Scenario

import manifests
from trimtab_operator.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]
Json = dict[str, Any]
FAST = {
    "warmupSeconds": 6,
    "measurementSeconds": 36,
    "confirmationSeconds": 12,
    "maxMeasurementSeconds": 54,
    "verificationSeconds": 6,
    "progressDeadlineSeconds": 60,
    "cooldownSeconds": 1,
}


class OperatorProcess:
    """`trimtab-operator run` for one namespace. `kill` is SIGKILL; it has no chance to clean up."""

    def __init__(self, namespace: str, kubeconfig: Path, data: Path) -> None:
        self._log = (data / "operator.log").open("a")
        self._command = [
            sys.executable, "-m", "trimtab_operator", "run", "-n", namespace, "--lease-namespace", namespace,
            "--data-dir", str(data), "--health-port", "0", "--metrics-port", "0",
        ]  # fmt: skip
        # the same holder name as a container that the kubelet starts again: it need not wait for its own lease
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "operator-under-test"}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._env, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def restart(self) -> None:
        self.process = self._start()


@pytest.fixture
def begin(
    cluster: Any, crds: None, prometheus: str, new_namespace: Callable[..., str], kubeconfig: Path, tmp_path: Path
) -> Iterator[Callable[[Json], tuple[Scenario, OperatorProcess]]]:
    """Target, load, operator process, tuner."""
    running: list[OperatorProcess] = []

    def make(search: Json) -> tuple[Scenario, OperatorProcess]:
        namespace = new_namespace()
        tuner = manifests.tuner(
            search={"maxNumSeqs": {"min": 4, "max": 256}, "maxTrials": 1, **search},
            metrics={"prometheus": {"url": prometheus}},
            rollout=FAST,
            preconditions={"stableSeconds": 5, "minRequestsPerSecond": 0.2},
        )
        s = Scenario(cluster.at(namespace), tuner, replicas=3, load=[*LOAD, "--rate=9"])
        s.start()
        s.tune()
        operator = OperatorProcess(namespace, kubeconfig, tmp_path)
        running.append(operator)
        return s, operator

    yield make
    for operator in running:
        operator.kill()
    print((tmp_path / "operator.log").read_text()[-6000:])


def _kill_when(operator: OperatorProcess, s: Scenario, phase: str) -> None:
    s.wait(f"phase {phase} or later", lambda: s.phase() == phase or phase in _past(s), 150)
    operator.kill()
    time.sleep(2)
    operator.restart()


def _past(s: Scenario) -> list[str]:
    return [h["phase"] for h in (s.trial().get("status") or {}).get("history") or ()]


def test_killed_in_each_phase_on_the_way_to_promotion(begin: Callable[[Json], Any]) -> None:
    s, operator = begin({"candidates": [{"maxNumSeqs": 48}]})
    for phase in ("Starting", "WarmingUp", "Measuring", "Confirming", "Promoting", "Verifying"):
        _kill_when(operator, s, phase)
    s.wait_phase("Promoted", "RolledBack", "Cancelled", seconds=120)
    assert s.phase() == "Promoted", json.dumps(s.trial()["status"], indent=1)
    now, before = s.deployment()["spec"], s.before["spec"]
    assert {**now, "template": None} == {**before, "template": None}
    assert len(s.trials()) == 1 and s.failures() == {}
    s.wait("the finalizer is gone", lambda: not s.kubectl.json("get", "vt", "llm")["metadata"].get("finalizers"), 30)


def test_killed_while_rolling_back(begin: Callable[[Json], Any]) -> None:
    s, operator = begin({"candidates": [{"maxNumSeqs": 48}]})
    s.wait_phase("Measuring")
    s.kubectl("patch", "vt", "llm", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    _kill_when(operator, s, "RollingBack")
    s.wait_phase("RolledBack", seconds=90)
    s.assert_as_before()
    assert s.failures() == {}


@pytest.mark.parametrize("delay", [0.0, pytest.param(0.3, marks=pytest.mark.soak)])
def test_killed_between_the_template_and_the_pause(
    begin: Callable[[Json], Any], kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    """The narrowest moment: the candidate's template is written, the pause is not. One pod has moved, not two."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    api = Cluster.connect()
    s, operator = begin({"candidates": [{"maxNumSeqs": 48}]})
    before = s.before["spec"]["template"]
    end = time.monotonic() + 120
    while (found := api.get("Deployment", s.kubectl.namespace, "llm")) is None or found["spec"]["template"] == before:
        assert time.monotonic() < end, "no trial began"
        time.sleep(0.01)
    time.sleep(delay)
    operator.kill()
    time.sleep(3)
    operator.restart()
    s.wait_phase("WarmingUp", "Measuring", seconds=60)
    now = s.deployment()
    assert now["spec"]["paused"] and now["status"]["updatedReplicas"] == 1
    s.kubectl("patch", "vt", "llm", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    s.wait_phase("RolledBack", seconds=90)
    s.assert_as_before()
