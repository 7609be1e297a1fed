"""A canary beside the only pod of a target: the Deployment controller takes it for the whole new rollout, and must not
remove the old pod while nothing is proved. Real controller and kubelet, streams in flight.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario import STARVED, Scenario
from test_kill import OperatorProcess

import manifests
from trimtab_operator.rollout import HOLD_MIN_READY_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
Json = dict[str, Any]
ROLLOUT = {
    "maxSurge": 1, "warmupSeconds": 5, "measurementSeconds": 40, "confirmationSeconds": 12, "maxMeasurementSeconds": 80,
    "verificationSeconds": 5, "progressDeadlineSeconds": 60, "cooldownSeconds": 1,
}  # fmt: skip


@pytest.fixture
def target(
    cluster: Any, crds: None, new_namespace: Callable[..., str], kubeconfig: Path, tmp_path: Path
) -> Iterator[Scenario]:
    tuner = manifests.tuner(
        search={"maxNumSeqs": {"min": 4, "max": 256}, "maxTrials": 1, "candidates": [{"maxNumSeqs": 48}]},
        metrics={"prometheus": None, "direct": {"intervalSeconds": 1}}, rollout=ROLLOUT,
        guardrails={"windowSeconds": 20, "maxMetricsGapSeconds": 30},
        preconditions={"stableSeconds": 3, "minRequestsPerSecond": 0.2, "visibleGainPercent": 0},
    )  # fmt: skip
    s = Scenario(
        cluster.at(new_namespace()), tuner, replicas=1, args=STARVED
    )  # the load is for two pods: so many serve
    s.start()
    s.tune()
    operator = OperatorProcess(s.kubectl.namespace, kubeconfig, tmp_path)
    yield s
    operator.kill()
    print((tmp_path / "operator.log").read_text()[-4000:])


def test_the_old_pod_serves_until_the_canary_is_promoted(target: Scenario) -> None:
    def pods() -> set[str]:
        found: list[Json] = target.kubectl.json("get", "pods", "-l", "app=llm")["items"]
        return {p["metadata"]["name"] for p in found if not p["metadata"].get("deletionTimestamp")}

    (old,) = pods()
    target.wait_phase("Measuring", seconds=120)
    until = time.monotonic() + HOLD_MIN_READY_SECONDS + 6
    while time.monotonic() < until and target.phase() in ("Measuring", "Confirming"):
        both = pods()
        assert old in both and len(both) == 2, both
        time.sleep(1)
    available = target.deployment()["status"]["availableReplicas"]
    assert available == 1, "the old pod counts as available, the canary does not"
    target.wait_phase("Promoted", "RolledBack", "Cancelled", seconds=300)
    assert target.phase() == "Promoted", json.dumps(target.trial()["status"], indent=1)
    now = target.deployment()["spec"]
    assert {k: v for k, v in now.items() if k != "template"} == {
        k: v for k, v in target.before["spec"].items() if k != "template"
    }
    assert old not in pods() and target.failures() == {}
