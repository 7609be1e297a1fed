"""Two real vLLM pods under load go through a promoted trial, one that cannot start and (soak) one that is rolled back.

Metrics come through the real Prometheus, the operator runs in its pod as the chart installs it.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_vllm import pod_template, stream_tokens_per_second
from scenario import Scenario

import manifests

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(2000)]
ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

OUTPUT_TOKENS = 150
#: the model's own maximum length, which the command line does not say: without chunked prefill vLLM refuses a token
#: budget below it, and Trimtab cannot know
MODEL_TOKENS = 4096
IMPOSSIBLE = {"maxNumBatchedTokens": 512}
#: as starved as the baseline, but not the same: what has served as control is not tried again
ONE_SLOT = {"maxNumSeqs": 1, "maxNumBatchedTokens": 2 * MODEL_TOKENS}
LOAD = (
    "--duration=2000", "--prompt=100:0.3", f"--output={OUTPUT_TOKENS}:0.3", "--max-output-tokens=300", "--patience=10",
    "--cancel=0.1", "--prompt-unit=char", "--model=tiny", "--max-in-flight=200", "--seed=3",
    "--natural-lengths=forced",
)  # fmt: skip
#: offered load of one pod, in streams' worth of tokens: two in five users queue before 1 slot, none before 16. More
#: would leave the pod that starts no CPU: two busy engines spin on both cores of a small machine
OFFERED_STREAMS = 0.4


@pytest.fixture(scope="module")
def scenario(
    request: Any, cluster: Any, crds: None, prometheus: str, helm: Callable[..., Any],
    new_namespace: Callable[..., str], vllm: Any,
) -> Iterator[Scenario]:  # fmt: skip
    """Target, load, operator and a tuner with these candidates: a better, an impossible and, if asked for, a worse."""
    namespace, system = new_namespace(), new_namespace()
    kubectl = cluster.at(namespace)
    settings = ["--no-enable-chunked-prefill", f"--max-num-batched-tokens={MODEL_TOKENS}", "--max-num-seqs=1"]
    template = pod_template(vllm, settings)
    args = template["spec"]["containers"][0]["args"]
    args[:] = [a for a in args if not a.startswith("--max-model-len")]
    worse = [ONE_SLOT] if any(item.get_closest_marker("soak") for item in request.session.items) else []
    items = manifests.target(replicas=2)
    items[0]["spec"]["template"] = template
    items[0]["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    tuner = manifests.tuner(
        objective={"slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.5}, "maxLatencyRegressionPercent": 100},
        search={
            "maxNumSeqs": {"min": 1, "max": 64},
            "maxNumBatchedTokens": {"min": 512, "max": 2 * MODEL_TOKENS},
            "prefixCaching": "Keep",
            "candidates": [{"maxNumSeqs": 16}, IMPOSSIBLE, *worse],
            "maxTrials": 2 + len(worse),
        },
        rollout={
            "warmupSeconds": 20, "measurementSeconds": 50, "confirmationSeconds": 60, "maxMeasurementSeconds": 300,
            "verificationSeconds": 10, "progressDeadlineSeconds": 600, "cooldownSeconds": 5,
        },
        guardrails={"windowSeconds": 20, "maxMetricsGapSeconds": 60, "minRequests": 10, "maxLatencyRatio": 20},
        preconditions={"stableSeconds": 30, "minRequestsPerSecond": 0.2},
    )  # fmt: skip
    s = Scenario(kubectl, tuner)
    kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})
    image = "image.repository=localhost/trimtab,image.tag=dev,image.pullPolicy=Never"
    values = f"rbac.mode=Apply,crds.install=false,log.format=text,watchNamespaces={{{namespace}}}"
    chart = str(ROOT / "charts" / "trimtab")
    helm("install", "op", chart, "-n", system, "--set", image, "--set", values, "--wait", "--timeout=120s", timeout=150)
    kubectl("rollout", "status", "deployment/llm", "--timeout=400s", timeout=420)
    address = kubectl("get", "service", "llm", "-o", "jsonpath={.spec.clusterIP}")
    speed = stream_tokens_per_second(address)
    rate = OFFERED_STREAMS * 2 * speed / OUTPUT_TOKENS
    print(f"\nreal vLLM: one stream gets {speed:.0f} tokens/s, so the load is {rate:.2f} requests/s")
    s.load = [*LOAD, f"--rate={rate:.2f}"]
    s.tune()
    yield s
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "engine-operator.log").write_text(
        cluster.at(system)("logs", "deployment/op-trimtab", "--tail=500")
    )
    (ROOT / "build" / "engine-records.jsonl").write_text(kubectl("logs", "load"))
    helm("uninstall", "op", "-n", system, "--wait", "--timeout=300s", timeout=320)


def test_a_better_setting_is_promoted_on_real_vllm(scenario: Scenario) -> None:
    scenario.wait_phase("Promoted", "RolledBack", "Cancelled", seconds=800)
    status = scenario.trial()["status"]
    assert status["phase"] == "Promoted", json.dumps(status, indent=1)
    assert status["restarts"] == 2
    args = scenario.deployment()["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-1] == "--max-num-seqs=16"


def test_an_impossible_setting_fails_with_vllms_own_words(scenario: Scenario) -> None:
    scenario.wait_phase("RollingBack", "RolledBack", number=2, seconds=900)
    took = scenario.wait_phase("RolledBack", number=2, seconds=300)
    status = scenario.trial(2)["status"]
    assert status["verdict"]["kind"] == "Error" and status["infeasible"], json.dumps(status, indent=1)
    assert "max_num_batched_tokens" in status["verdict"]["message"]
    history = {h["phase"]: h["at"] for h in status["history"]}
    print(f"real vLLM: rolled back {took:.0f} s after the crash was seen; {history}; {status['verdict']['message']}")


@pytest.mark.soak
def test_a_worse_setting_is_rolled_back_to_the_byte(scenario: Scenario) -> None:
    scenario.wait_phase("Promoted", "RolledBack", "Cancelled", number=3, seconds=1500)
    trial = scenario.trial(3)
    assert trial["status"]["phase"] == "RolledBack" and trial["status"]["verdict"]["kind"] == "Worse", trial["status"]
    assert trial["status"]["restarts"] == 2
    assert scenario.deployment()["spec"]["template"] == json.loads(trial["spec"]["baseline"]["templateJson"])


def test_prometheus_saw_the_preemptions_of_each_pod(scenario: Scenario, prometheus: str) -> None:
    query = f'vllm:num_preemptions_total{{namespace="{scenario.kubectl.namespace}"}}'
    url = f"{prometheus}/api/v1/query?query={urllib.parse.quote(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    counts = {series["metric"]["pod"]: float(series["value"][1]) for series in found}
    print("preemptions per pod through Prometheus:", counts)
    ready = {p["metadata"]["name"] for p in scenario.kubectl.json("get", "pods", "-l", "app=llm")["items"]}
    assert counts and set(counts) & ready


def test_no_request_failed_on_a_fresh_connection(scenario: Scenario) -> None:
    """Rolling updates of real vLLM pods with streams in flight; each request opens its own connection."""
    scenario.wait("Converged", lambda: scenario.status().get("phase") == "Converged", 1900)
    records = scenario.records()
    endings: dict[str, int] = {}
    for r in records:
        endings[r["ending"]] = endings.get(r["ending"], 0) + 1
    print("requests by ending:", endings, "failures by cause:", scenario.failures())
    assert len(records) > 200
    assert scenario.failures() == {}
