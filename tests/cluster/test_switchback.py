"""One replica under load on a real cluster: baseline, candidate and baseline again, with a second pod only while one
takes over from the other. No request is lost, the spec comes back to the byte; where no second pod fits, nothing is
touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario import Scenario
from test_kill import OperatorProcess

import manifests

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
Json = dict[str, Any]
ROLLOUT = {
    "strategy": "Switchback",
    "maxSurge": None,  # found out
    "warmupSeconds": 2,
    "measurementSeconds": 8,  # one window each: no verdict, so it ends on the baseline
    "confirmationSeconds": 0,
    "maxMeasurementSeconds": 8,
    "verificationSeconds": 2,
    "progressDeadlineSeconds": 60,
    "cooldownSeconds": 1,
}
#: streams of some seconds: some are in flight at each of the restarts
LOAD = ("--rate=4", "--duration=600", "--prompt=60:0.3", "--output=100:0.4", "--seed=2")


@pytest.fixture
def worlds(
    cluster: Any, crds: None, new_namespace: Callable[..., str], kubeconfig: Path, tmp_path: Path
) -> Iterator[tuple[Scenario, Scenario]]:
    """A target beside which a second pod fits, and one beside which none does; an operator process for each."""
    tuner = manifests.tuner(
        search={"maxNumSeqs": {"min": 4, "max": 256}, "maxTrials": 1, "candidates": [{"maxNumSeqs": 48}]},
        metrics={"prometheus": None, "direct": {"intervalSeconds": 1}},
        rollout=ROLLOUT,
        guardrails={"windowSeconds": 8, "maxMetricsGapSeconds": 30},
        preconditions={"stableSeconds": 3, "minRequestsPerSecond": 0.2, "visibleGainPercent": 0},
    )
    room, full = (
        Scenario(cluster.at(new_namespace()), tuner, replicas=1, args=("--max-num-seqs=32",), load=LOAD)
        for _ in range(2)
    )
    room.start()
    full.start()
    # one pod of such a label at most fits on the one node
    alone = {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "llm"}}, "topologyKey": "kubernetes.io/hostname"}
    ]}  # fmt: skip
    patch = json.dumps({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                                 "template": {"spec": {"affinity": {"podAntiAffinity": alone}}}}})  # fmt: skip
    full.kubectl("patch", "deployment", "llm", "-p", patch)
    operators = []
    for number, s in enumerate((room, full)):
        s.tune()
        data = tmp_path / str(number)
        data.mkdir()
        operators.append(OperatorProcess(s.kubectl.namespace, kubeconfig, data))
    yield room, full
    for operator in operators:
        operator.kill()
    for number in range(2):
        print((tmp_path / str(number) / "operator.log").read_text()[-4000:])


def test_one_replica_loses_no_request_and_a_full_node_is_found_out(worlds: tuple[Scenario, Scenario]) -> None:
    room, full = worlds
    full.wait_phase("RolledBack", seconds=240)
    assert full.trial()["status"]["verdict"]["reason"] == "NoRoom" and full.trial()["status"]["restarts"] == 0
    full.assert_as_before()
    full.wait("NoSpareCapacity", lambda: full.condition("Stalled").get("reason") == "NoSpareCapacity", 60)
    assert "allowDowntime" in full.condition("Stalled")["message"]
    room.wait_phase("RolledBack", "Cancelled", "Promoted", seconds=240)
    status = room.trial()["status"]
    assert [line["phase"] for line in status["history"]] == [
        "MeasuringBefore", "Starting", "WarmingUp", "Measuring", "Returning", "MeasuringAfter", "RollingBack",
        "RolledBack",
    ], json.dumps(status, indent=1)  # fmt: skip
    assert status["restarts"] == 2 and len({s["pod"] for s in status["spans"]}) == 3
    room.assert_as_before()
    for s in worlds:
        assert len(s.records()) > 20 and s.failures() == {}
