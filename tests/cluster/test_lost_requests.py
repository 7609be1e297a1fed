"""Requests that a trial loses: real rolling updates under load, by each strategy, with streams in flight all the while.

Emulated engines on a real kubelet and a real Service; the load's clients account for every request. Writes its table
into docs/safety.md. LOST_WAYS: only ways whose name has this in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from scenario import LOAD, STARVED, Scenario
from test_kill import OperatorProcess

import manifests
from written import rewrite

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(3600)]
Json = dict[str, Any]
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "safety.md"
COMMAND: Final = "pytest -m soak tests/cluster/test_lost_requests.py"
#: an answer of some 150 tokens is a stream of several seconds: longer than it takes until a pod that ends is out of the
#: Service
LONG: Final = (*LOAD, "--output=150:0.4", "--duration=900")
TUNE: Final[Json] = {"maxNumSeqs": {"min": 4, "max": 256}, "candidates": [{"maxNumSeqs": 48}], "maxTrials": 1}
TIMES: Final[Json] = {
    "warmupSeconds": 6, "measurementSeconds": 36, "confirmationSeconds": 12, "maxMeasurementSeconds": 90,
    "verificationSeconds": 6, "progressDeadlineSeconds": 90, "cooldownSeconds": 1,
}  # fmt: skip
HOT: Final[Json] = {
    "search": {"maxNumSeqs": None, "prefixCaching": "Keep"},
    "tokenPolicy": {"middleware": "Install", "method": "Percentile", "maxNewTokens": {"min": 16, "max": 2048}},
    "objective": {"maxLatencyRegressionPercent": 500},
}
SWITCH: Final = {"strategy": "Switchback", "maxSurge": None, "measurementSeconds": 60, "maxMeasurementSeconds": 120}
#: way -> replicas, requests/s, sections of the tuner, number of the trial that counts
WAYS: Final[dict[str, tuple[int, str, Json, int]]] = {
    "canary, maxSurge 0": (3, "9", {"search": TUNE, "rollout": {**TIMES, "maxSurge": 0}}, 1),
    "canary, maxSurge 1": (3, "9", {"search": TUNE, "rollout": {**TIMES, "maxSurge": 1}}, 1),
    "switchback, a second pod fits": (1, "3", {"search": TUNE, "rollout": {**TIMES, **SWITCH}}, 1),
    "hot, after its installation": (2, "3", {**HOT, "rollout": {**TIMES, "maxSurge": 0}}, 2),
}


def lived(s: Scenario, number: int, seconds: float = 500) -> Json:
    """The trials to the end of that number; what the load's clients saw."""
    s.wait_phase("Promoted", "RolledBack", "Cancelled", number=number, seconds=seconds)
    trials = [t["status"] for t in s.trials()[:number]]
    records = s.records()
    ends = Counter(r["ending"] for r in records)
    streams = [r for r in records if r.get("sent_at") is not None]
    span = max(r["ended_at"] for r in streams) - min(r["sent_at"] for r in streams)
    return {
        "ends": ", ".join(t["phase"] for t in trials), "restarts": sum(t["restarts"] for t in trials),
        "sent": len(streams), "ok": ends["ok"],
        "left": ends["cancelled"] + ends["gave_up"], "failed": s.failures(),
        "in_flight": sum(r["ended_at"] - r["sent_at"] for r in streams) / span,
    }  # fmt: skip


def test_no_request_is_lost_by_any_strategy(
    cluster: Any, crds: None, new_namespace: Callable[..., str], kubeconfig: Path, tmp_path: Path
) -> None:
    ways = {name: way for name, way in WAYS.items() if os.environ.get("LOST_WAYS", "") in name}
    found: dict[str, Json] = {}
    for name, (replicas, rate, sections, number) in ways.items():
        folder = tmp_path / str(len(found))
        folder.mkdir()
        tuner = manifests.tuner(
            metrics={"prometheus": None, "direct": {"intervalSeconds": 1}}, **sections,
            guardrails={"windowSeconds": 20, "maxMetricsGapSeconds": 60},
            preconditions={"stableSeconds": 5, "minRequestsPerSecond": 0.2, "visibleGainPercent": 0},
        )  # fmt: skip
        args = ("--max-num-seqs=16",) if name.startswith("hot") else STARVED
        s = Scenario(cluster.at(new_namespace()), tuner, replicas, args, load=(*LONG, f"--rate={rate}"))
        s.start()
        s.tune()
        with under_an_operator(s, kubeconfig, folder, "--wait=false"):
            found[name] = lived(s, number)
            print(name, found[name])
    nothing_lost(found, least=100)
    if len(found) == len(WAYS):
        rewrite(PAGE, COMMAND, table(found))


@contextmanager
def under_an_operator(s: Scenario, kubeconfig: Path, folder: Path, *delete: str) -> Iterator[None]:
    """An operator process for this scenario; afterwards it, the load and the target are gone. delete: how the target
    is deleted.
    """
    operator = OperatorProcess(s.kubectl.namespace, kubeconfig, folder)
    try:
        yield
    finally:
        operator.kill()
        print((folder / "operator.log").read_text()[-3000:])
        s.kubectl("delete", "pod", "load", "--wait=false")
        s.kubectl("delete", "deployment", "llm", *delete, timeout=130)


def nothing_lost(found: dict[str, Json], least: int) -> None:
    """More than `least` requests were finished in each way, none failed, and each trial came to its end."""
    assert all(seen["failed"] == {} and seen["ok"] > least for seen in found.values()), found
    assert all("Cancelled" not in seen["ends"] for seen in found.values()), found


def table(found: dict[str, Json]) -> str:
    """Markdown: a row per way."""
    head = "way | trials ended | pods restarted | requests sent | in flight, mean | finished | users left | failed"
    lines = [f"| {head} |", "|---" * 8 + "|"]
    lines += [
        f"| {name} | {r['ends']} | {r['restarts']} | {r['sent']:,} | {r['in_flight']:.1f} | {r['ok']:,} | "
        f"{r['left']:,} | {sum(r['failed'].values())} |"
        for name, r in found.items()
    ]
    return "\n".join(lines)
