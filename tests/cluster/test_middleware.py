"""The middleware on a real cluster: the API server keeps what is put in; two pods get it by a trial, take
policies in seconds without a restart, try a cap on one pod, and go on when the tuner is gone. Once emulated, once vLLM.
"""

from __future__ import annotations

import copy
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_vllm import pod_template
from scenario import Scenario

import manifests
from trimtab.engine.install import installed, removed
from trimtab.observe.middleware import ask_middleware
from trimtab.plan.token_policy import digest_of
from trimtab_operator.middleware import names

pytestmark = [pytest.mark.cluster]
ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
OUTPUT_TOKENS = 30
#: short requests, some 1.2 a second: the percentile policy wants 200 finished ones within five minutes
LOAD = (
    "--duration=2000", "--rate=1.2", "--prompt=60:0.3", f"--output={OUTPUT_TOKENS}:0.3", "--max-output-tokens=60",
    "--patience=20", "--cancel=0.1", "--prompt-unit=char", "--model=tiny", "--max-in-flight=100", "--seed=4",
    "--natural-lengths=forced",
)  # fmt: skip
#: what takes the annotation some 0.5 s; the rest is the operator's look and a busy machine
MOST_SECONDS = 20.0


# --- the API server ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hook", [True, False], ids=["with a preStop hook", "without"])
def test_the_api_server_gives_back_exactly_what_was_put_in(kubectl: Any, hook: bool) -> None:
    """A default that it adds would make the candidate look foreign."""
    item = manifests.target()[0]
    if not hook:
        del item["spec"]["template"]["spec"]["containers"][0]["lifecycle"]
    dry = ("create", "--dry-run=server", "-f", "-")
    found = kubectl.json(*dry, stdin=item)["spec"]["template"]
    after = installed(found, None, names("llm", "token"))
    assert ("/trimtab/drain" in json.dumps(after)) != hook
    kept = kubectl.json(*dry, stdin={**item, "spec": {**item["spec"], "template": after}})["spec"]["template"]
    assert kept == after and removed(kept) == found


# --- an engine that does not load it ----------------------------------------------------------------------------------
def helm_operator(helm: Callable[..., Any], system: str, namespace: str) -> None:
    image = "image.repository=localhost/trimtab,image.tag=dev,image.pullPolicy=Never"
    values = f"rbac.mode=Apply,crds.install=false,log.format=text,watchNamespaces={{{namespace}}}"
    chart = str(ROOT / "charts" / "trimtab")
    helm("install", "op", chart, "-n", system, "--set", image, "--set", values, "--wait", "--timeout=120s", timeout=150)


@pytest.fixture
def emulated(
    cluster: Any, crds: None, helm: Callable[..., Any], new_namespace: Callable[..., str]
) -> Iterator[Scenario]:
    """Engines of an image that drops the flag: the canary serves, and shows no middleware."""
    namespace, system = new_namespace(), new_namespace()
    rollout = {"warmupSeconds": 5, "measurementSeconds": 30, "confirmationSeconds": 0, "maxMeasurementSeconds": 40}
    made = tuner({"tokens": {"capMaxTokens": 500}})
    made["spec"]["rollout"] |= rollout
    load = ("--rate=3", "--duration=400", "--prompt=60:0.3", "--output=40:0.4", "--patience=20", "--seed=2")
    env = {"EMULATE_IGNORE_MIDDLEWARE": "1"}
    s = Scenario(cluster.at(namespace), made, args=("--max-num-seqs=16",), env=env, load=load)
    s.start()
    helm_operator(helm, system, namespace)
    s.tune()
    yield s
    helm("uninstall", "op", "-n", system, "--wait", "--timeout=300s", timeout=320)


@pytest.mark.timeout(600)
def test_an_engine_that_does_not_load_it_gets_its_old_template_back_and_a_reason(emulated: Scenario) -> None:
    emulated.wait_phase("RolledBack", "Promoted", "Cancelled", seconds=300)
    status = emulated.trial()["status"]
    assert (status["phase"], status["verdict"]["reason"]) == ("RolledBack", "MiddlewareNotSeen"), status["verdict"]
    emulated.wait("InstallFailed", lambda: emulated.condition("Middleware").get("reason") == "InstallFailed", 60)
    assert "delete that TuningTrial" in emulated.condition("Middleware")["message"]
    emulated.assert_as_before()
    time.sleep(20)  # twice the time between two looks: it is not tried again
    assert [t["spec"]["kind"] for t in emulated.trials()].count("Install") == 1
    assert emulated.failures() == {}


# --- engines that load it: emulated, and vLLM itself ------------------------------------------------------------------
def complete(address: str, **more: Any) -> Json:
    body = {"model": "tiny", "prompt": "a" * 20, "ignore_eos": True, **more}
    request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: Json = json.load(answer)
    return found


def tuner(policy: Json) -> Json:
    made = manifests.tuner(
        objective={"maxLatencyRegressionPercent": 500},
        search={"maxNumSeqs": {"min": 16, "max": 16}, "prefixCaching": "Keep"},
        tokenPolicy={"middleware": "Install", "policy": policy},
        rollout={
            "warmupSeconds": 10, "measurementSeconds": 40, "confirmationSeconds": 10, "maxMeasurementSeconds": 60,
            "verificationSeconds": 5, "progressDeadlineSeconds": 600, "cooldownSeconds": 2,
        },
        guardrails={"windowSeconds": 20, "maxMetricsGapSeconds": 60, "minRequests": 10, "maxLatencyRatio": 50},
        preconditions={"stableSeconds": 10, "minRequestsPerSecond": 0.2},
    )  # fmt: skip
    made["spec"]["metrics"] = {"direct": {"intervalSeconds": 3}}
    return made


@pytest.fixture(
    scope="module",
    params=["emulated", pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def scenario(
    request: pytest.FixtureRequest,
    cluster: Any,
    crds: None,
    helm: Callable[..., Any],
    new_namespace: Callable[..., str],
) -> Iterator[Scenario]:
    """Two pods, the operator for their namespace, a load and a tuner that asks for the middleware."""
    namespace, system = new_namespace(), new_namespace()
    kubectl = cluster.at(namespace)
    items, load = manifests.target(replicas=2), LOAD
    if request.param == "vllm":
        items[0]["spec"]["template"] = pod_template(request.getfixturevalue("vllm"), ["--max-num-seqs=16"])
    else:
        items[0]["spec"]["template"] = manifests.target(args=("--max-num-seqs=16",))[0]["spec"]["template"]
        load = ("--rate=3", "--duration=900", "--prompt=60:0.3", "--output=40:0.4", "--patience=20", "--seed=2")
    deployment = next(i for i in items if i["kind"] == "Deployment")
    deployment["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    s = Scenario(kubectl, tuner({"tokens": {"defaultMaxTokens": 24}}), load=load)
    kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})
    helm_operator(helm, system, namespace)
    kubectl("rollout", "status", "deployment/llm", "--timeout=500s", timeout=520)
    s.tune()
    yield s
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "middleware-operator.log").write_text(
        cluster.at(system)("logs", "deployment/op-trimtab", "--tail=2000")
    )
    (ROOT / "build" / "middleware-records.jsonl").write_text(kubectl("logs", "load"))
    helm("uninstall", "op", "-n", system, "--wait", "--timeout=300s", timeout=320)


def pods(s: Scenario) -> list[Json]:
    found = s.kubectl.json("get", "pods", "-l", "app=llm")["items"]
    return [p for p in found if not p["metadata"].get("deletionTimestamp")]


def policy(s: Scenario) -> str:
    text: str = s.kubectl.json("get", "configmap", "llm-token-policy")["data"]["policy.json"]
    return text


def all_have(s: Scenario, text: str, seconds: float = 120) -> None:
    """Until every pod's own metrics show this file."""
    until, wanted = time.monotonic() + seconds, digest_of(text)
    ips = [p["status"]["podIP"] for p in pods(s)]
    while time.monotonic() < until:
        seen = [ask_middleware(ip, 8000) for ip in ips]
        if all(v is not None and v.digest == wanted for v in seen):
            return
        time.sleep(0.2)
    raise AssertionError(f"after {seconds:.0f} s the pods have {seen}, not {wanted}")


def change(s: Scenario, section: Json) -> float:
    """Patch spec.tokenPolicy; seconds until all pods have a new file in effect."""
    before, started = policy(s), time.monotonic()
    patch = json.dumps({"spec": {"tokenPolicy": section}})
    s.kubectl("patch", "vt", "llm", "--type=merge", "-p", patch)
    while (now := policy(s)) == before:
        assert time.monotonic() - started < 60, "the ConfigMap was not written"
        time.sleep(0.2)
    written = time.monotonic() - started
    all_have(s, now)
    took = time.monotonic() - started
    print(f"\npolicy: {written:.1f} s to the ConfigMap, {took:.1f} s to all pods")
    return took


def tokens(s: Scenario) -> list[int]:
    """What a request that names no limit gets, per pod."""
    return [complete(f"{p['status']['podIP']}:8000")["usage"]["completion_tokens"] for p in pods(s)]


class TestTheWholeWay:
    def test_it_is_installed_by_a_trial(self, scenario: Scenario) -> None:
        took = scenario.wait(
            "Middleware True", lambda: scenario.condition("Middleware").get("status") == "True", seconds=1200
        )
        trial = scenario.trial(1)
        status = trial["status"]
        print(f"\ninstalled after {took:.0f} s; {[(h['phase'], h['at']) for h in status['history']]}")
        assert (trial["spec"]["kind"], status["phase"], status["restarts"]) == ("Install", "Promoted", 2)
        assert status["verdict"]["reason"] == "NothingWorse", status["verdict"]
        template = scenario.deployment()["spec"]["template"]
        assert removed(template) == scenario.before["spec"]["template"]
        assert scenario.condition("Middleware")["reason"] == "Installed"

    def test_the_policy_is_in_effect_in_all_pods(self, scenario: Scenario) -> None:
        def told() -> bool:
            seen = scenario.status().get("middleware") or {}
            return (seen.get("pods"), seen.get("podsWithPolicy"), seen.get("generation")) == (2, 2, 1)

        scenario.wait("both pods have the policy", told, 60)
        assert tokens(scenario) == [24, 24]

    def test_a_change_is_there_in_seconds_without_a_restart(self, scenario: Scenario) -> None:
        before = {p["metadata"]["uid"] for p in pods(scenario)}
        took = [change(scenario, {"policy": {"tokens": {"defaultMaxTokens": n}}}) for n in (40, 36, 32)]
        assert tokens(scenario) == [32, 32] and max(took) < MOST_SECONDS
        assert {p["metadata"]["uid"] for p in pods(scenario)} == before
        scenario.wait("status", lambda: scenario.status()["middleware"].get("podsWithPolicy") == 2, 60)
        assert scenario.status()["middleware"]["generation"] == 4

    def test_a_file_that_someone_breaks_is_written_again(self, scenario: Scenario) -> None:
        broken = json.dumps({"data": {"policy.json": '{"version": 1, "tok'}})
        scenario.kubectl("patch", "configmap", "llm-token-policy", "--type=merge", "-p", broken)
        scenario.wait("the policy is whole", lambda: "default_max_tokens" in policy(scenario), 60)
        all_have(scenario, policy(scenario))
        assert tokens(scenario) == [32, 32] and json.loads(policy(scenario))["generation"] == 5

    def test_a_cap_is_tried_on_one_pod_without_a_restart(self, scenario: Scenario) -> None:
        before = {p["metadata"]["uid"] for p in pods(scenario)}
        section = {"method": "Percentile", "maxNewTokens": {"min": 16, "max": 60}}
        scenario.kubectl("patch", "vt", "llm", "--type=merge", "-p", json.dumps({"spec": {"tokenPolicy": section}}))
        scenario.wait_phase("Measuring", number=2, seconds=400)
        trial, body = scenario.trial(2), json.loads(policy(scenario))
        assert trial["spec"]["kind"] == "Policy"
        canary = trial["spec"]["policy"]["pod"]
        assert body["experiment"]["arms"][1]["pods"] == [canary]
        cap = json.loads(trial["spec"]["policy"]["candidateJson"])["tokens"]["default_max_tokens"]
        by_pod = dict(zip([p["metadata"]["name"] for p in pods(scenario)], tokens(scenario), strict=True))
        assert by_pod.pop(canary) == cap and list(by_pod.values()) == [32]
        scenario.wait_phase("Promoted", "RolledBack", number=2, seconds=400)
        status = scenario.trial(2)["status"]
        print(f"\ncap {cap}: {status['phase']}, {status['verdict']['reason']}: {status['verdict']['message']}")
        assert status["restarts"] == 0 and {p["metadata"]["uid"] for p in pods(scenario)} == before
        after = json.loads(policy(scenario))
        assert "experiment" not in after
        wanted = 32 if status["phase"] == "RolledBack" else cap
        assert after["tokens"]["default_max_tokens"] == wanted and tokens(scenario) == [wanted, wanted]

    def test_without_the_tuner_the_pods_keep_what_they_have(self, scenario: Scenario) -> None:
        template = copy.deepcopy(scenario.deployment()["spec"]["template"])
        scenario.kubectl("delete", "vt", "llm", "--timeout=120s", timeout=130)
        assert scenario.deployment()["spec"]["template"] == template
        assert scenario.kubectl.json("get", "configmap", names("llm").code)["immutable"]
        assert len(tokens(scenario)) == 2

    def test_no_request_failed_on_a_fresh_connection(self, scenario: Scenario) -> None:
        records = scenario.records()
        endings: dict[str, int] = {}
        for r in records:
            endings[r["ending"]] = endings.get(r["ending"], 0) + 1
        print(f"\nrequests by ending: {endings}, failures by cause: {scenario.failures()}")
        assert len(records) > 200 and scenario.failures() == {}
