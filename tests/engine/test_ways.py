"""What tests/cluster/test_lost_requests.py does, with real vLLM: a whole trial by each strategy under streams.

Two engines at most, for a small machine; the load fits what one stream gets from an idle one: more would leave the pod
that starts no CPU. Writes its table into docs/safety.md. LOST_WAYS: only ways whose name has this in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from real_vllm import pod_template, stream_tokens_per_second
from scenario import Scenario
from test_lost_requests import HOT, PAGE, lived, nothing_lost, table, under_an_operator

import manifests
from written import rewrite

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(4800)]
Json = dict[str, Any]
COMMAND: Final = "pytest -m soak tests/engine/test_ways.py"
#: a stream of half a second to some seconds, by what else the cores do
OUTPUT_TOKENS: Final = 250
LOAD: Final = (
    "--duration=2000", "--prompt=100:0.3", f"--output={OUTPUT_TOKENS}:0.3", "--max-output-tokens=500", "--patience=60",
    "--cancel=0.05", "--prompt-unit=char", "--model=tiny", "--seed=5", "--natural-lengths=forced",
)  # fmt: skip
TIMES: Final[Json] = {
    "warmupSeconds": 10, "measurementSeconds": 50, "confirmationSeconds": 15, "maxMeasurementSeconds": 100,
    "verificationSeconds": 10, "progressDeadlineSeconds": 600, "cooldownSeconds": 2,
}  # fmt: skip
TUNE: Final[Json] = {
    "maxNumSeqs": {"min": 1, "max": 64}, "prefixCaching": "Keep", "candidates": [{"maxNumSeqs": 16}], "maxTrials": 1,
}  # fmt: skip
#: way -> replicas, offered load in streams' worth of tokens, sections of the tuner, number of the trial that counts
WAYS: Final[dict[str, tuple[int, float, Json, int]]] = {
    "canary, maxSurge 0": (2, 0.6, {"search": TUNE, "rollout": {**TIMES, "maxSurge": 0}}, 1),
    "canary beside the only pod": (1, 0.6, {"search": TUNE, "rollout": {**TIMES, "maxSurge": 1}}, 1),
    "switchback, a second pod fits": (
        1, 0.4, {"search": TUNE, "rollout": {**TIMES, "strategy": "Switchback", "maxSurge": None}}, 1,
    ),
    "hot, after its installation": (2, 0.6, {**HOT, "rollout": {**TIMES, "maxSurge": 0}}, 2),
}  # fmt: skip


def begun(s: Scenario, streams: float, settings: list[str], vllm: tuple[Path, Path]) -> None:
    """Target, load and tuner of one way."""
    items = manifests.target(replicas=s.replicas)
    items[0]["spec"]["template"] = pod_template(vllm, settings)
    if s.replicas > 1:
        items[0]["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    s.kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})
    s.kubectl("rollout", "status", "deployment/llm", "--timeout=500s", timeout=520)
    speed = stream_tokens_per_second(s.kubectl("get", "service", "llm", "-o", "jsonpath={.spec.clusterIP}"))
    print(f"\none stream gets {speed:.0f} tokens/s")
    s.load = [*LOAD, f"--rate={streams * speed / OUTPUT_TOKENS:.2f}"]
    s.tune()


def test_no_request_is_lost_by_any_strategy_on_real_vllm(
    cluster: Any, crds: None, new_namespace: Callable[..., str], kubeconfig: Path, vllm: Any, tmp_path: Path
) -> None:
    ways = {name: way for name, way in WAYS.items() if os.environ.get("LOST_WAYS", "") in name}
    found: dict[str, Json] = {}
    for name, (replicas, streams, sections, number) in ways.items():
        folder = tmp_path / str(len(found))
        folder.mkdir()
        tuner = manifests.tuner(
            metrics={"prometheus": None, "direct": {"intervalSeconds": 3}},
            **{"objective": {"slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.5}}, **sections},
            guardrails={"windowSeconds": 20, "maxMetricsGapSeconds": 60, "minRequests": 10, "maxLatencyRatio": 50},
            preconditions={"stableSeconds": 10, "minRequestsPerSecond": 0.1, "visibleGainPercent": 0},
        )
        s = Scenario(cluster.at(new_namespace()), tuner, replicas)
        begun(s, streams, ["--max-num-seqs=16" if name.startswith("hot") else "--max-num-seqs=1"], vllm)
        with under_an_operator(s, kubeconfig, folder, "--cascade=foreground", "--timeout=120s"):
            found[name] = lived(s, number, seconds=1100)
            print(name, found[name])
    nothing_lost(found, least=50)
    if len(found) == len(WAYS):
        rewrite(PAGE, COMMAND, table(found))
