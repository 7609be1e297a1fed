"""Rollout mechanics as pure functions: each desired state is reached in steps, from any state a kill may leave."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from trimtab.plan.record import Desired, Template
from trimtab_operator import rollout
from trimtab_operator.rollout import TRIAL_ANNOTATION, Baseline, narrowed, next_patch, settled, whose

Json = dict[str, Any]


def template(seqs: int) -> Json:
    return {
        "metadata": {"labels": {"app": "llm"}},
        "spec": {"containers": [{"name": "vllm", "args": [f"--max-num-seqs={seqs}"]}]},
    }


def deployment(**spec: Any) -> Json:
    return {
        "metadata": {"name": "llm", "namespace": "ns", "uid": "u1", "generation": 3, "resourceVersion": "7"},
        "spec": {
            "replicas": 3,
            "template": template(128),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}},
            "progressDeadlineSeconds": 600,
            **spec,
        },
        "status": _whole(),
    }


def _whole(replicas: int = 3) -> Json:
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), replicas)
    return {"observedGeneration": 99, **counts}


def replica_set(seqs: int, replicas: int) -> Json:
    made = template(seqs)
    made["metadata"]["labels"]["pod-template-hash"] = f"h{seqs}"
    return {"metadata": {"uid": f"rs{seqs}"}, "spec": {"replicas": replicas, "template": made}}


def apply(target: Json, operations: list[Json]) -> Json:
    """The few JSON patch operations that rollout writes."""
    out = copy.deepcopy(target)
    for op in operations:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in op["path"].split("/")[1:]]
        place = out
        for part in path:
            place = place[part]
        if op["op"] == "remove":
            del place[last]
        else:
            assert op["op"] == "add" or last in place, op
            place[last] = op["value"]
    return out


@pytest.fixture
def baseline() -> Baseline:
    return Baseline.of(deployment(), template(32))


@pytest.mark.parametrize("surge", [0, 1])
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"minReadySeconds": 5},
        {"strategy": {"type": "Recreate"}},
        {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}},
        {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}},
        {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
        {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
        {"progressDeadlineSeconds": 10},
        {"progressDeadlineSeconds": 10, "minReadySeconds": 9},
        {"progressDeadlineSeconds": 1},
        {"replicas": 1},
        {"replicas": 1, "progressDeadlineSeconds": 10, "minReadySeconds": 9},
    ],
)
@pytest.mark.parametrize("way", [Desired.PROMOTE, Desired.RESTORE])
def test_there_and_back_leaves_only_the_template_changed_or_nothing(spec: Json, surge: int, way: Desired) -> None:
    start = deployment(**spec)
    base = Baseline.of(start, template(32), surge)
    held = apply(start, next_patch(Desired.HOLD, start, [], base, "llm-1"))
    assert held["spec"]["strategy"] == narrowed(surge) and held["spec"]["template"] == template(32)
    assert held["spec"]["minReadySeconds"] < held["spec"]["progressDeadlineSeconds"]
    assert next_patch(Desired.HOLD, held, [replica_set(32, 0)], base, "llm-1") == []  # too early to pause
    paused = apply(held, next_patch(Desired.HOLD, held, [replica_set(32, 1)], base, "llm-1"))
    assert paused["spec"]["paused"]
    assert next_patch(Desired.HOLD, paused, [replica_set(32, 1)], base, "llm-1") == []
    paused["status"]["updatedReplicas"] = 1
    going = apply(paused, next_patch(way, paused, [], base, "llm-1"))
    assert not going["spec"].get("paused") and going["spec"]["strategy"] == narrowed(surge)
    assert next_patch(way, going, [], base, "llm-1") == []  # not all pods are there yet
    going["status"] = _whole(start["spec"]["replicas"])
    end = apply(going, next_patch(way, going, [], base, "llm-1"))
    wanted = start["spec"] if way is Desired.RESTORE else {**start["spec"], "template": template(32)}
    assert end["spec"] == wanted
    assert TRIAL_ANNOTATION not in end["metadata"]["annotations"]
    assert next_patch(way, end, [], base, "llm-1") == []


def test_a_canary_beside_the_only_pod_is_never_taken_for_the_whole_rollout() -> None:
    """A paused Deployment whose new ReplicaSet is complete and available loses its old pods all the same."""
    start = deployment(replicas=1)
    base = Baseline.of(start, template(32), 1)
    held = apply(start, next_patch(Desired.HOLD, start, [], base, "llm-1"))
    assert held["spec"]["minReadySeconds"] >= 86400 and held["spec"]["progressDeadlineSeconds"] >= 86401


def test_a_killed_operator_gives_the_times_back_before_it_waits_for_pods() -> None:
    """A month of minReadySeconds on the restored ReplicaSet, and it would never count as available."""
    start = deployment(replicas=1)
    base = Baseline.of(start, template(32), 1)
    held = apply(start, next_patch(Desired.HOLD, start, [], base, "llm-1"))  # killed before the pause
    back = apply(held, next_patch(Desired.RESTORE, held, [], base, "llm-1"))
    on = apply(held, next_patch(Desired.PROMOTE, held, [], base, "llm-1"))
    for spec in (back["spec"], on["spec"]):
        assert "minReadySeconds" not in spec and spec["progressDeadlineSeconds"] == 600


def test_a_deadline_that_someone_else_set_meanwhile_stays() -> None:
    start = deployment(replicas=1)
    base = Baseline.of(start, template(32), 1)
    held = apply(start, next_patch(Desired.HOLD, start, [], base, "llm-1"))
    held["spec"]["progressDeadlineSeconds"] = 900
    held["spec"]["minReadySeconds"] = 0
    back = apply(held, next_patch(Desired.RESTORE, held, [], base, "llm-1"))
    assert back["spec"]["progressDeadlineSeconds"] == 900


@pytest.mark.parametrize("surge", [0, 1])
@pytest.mark.parametrize("strategy", ["100%", "Recreate"])
def test_a_switchback_spreads_and_returns_to_the_byte(strategy: str, surge: int) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": strategy, "maxUnavailable": 0}}
    start = deployment(strategy=rolling if strategy != "Recreate" else {"type": "Recreate"}, minReadySeconds=5)
    base = Baseline.of(start, template(32), surge)
    spread = apply(start, next_patch(Desired.SPREAD, start, [], base, "llm-1"))
    assert spread["spec"]["template"] == template(32) and spread["spec"]["strategy"] == narrowed(surge)
    assert spread["metadata"]["annotations"] == {TRIAL_ANNOTATION: "llm-1"} and "paused" not in spread["spec"]
    assert next_patch(Desired.SPREAD, spread, [], base, "llm-1") == []
    back = apply(spread, next_patch(Desired.RESTORE, spread, [], base, "llm-1"))
    assert back["spec"]["strategy"] == narrowed(surge)  # one pod at a time also on the way back
    end = apply(back, next_patch(Desired.RESTORE, back, [], base, "llm-1"))
    assert end["spec"] == start["spec"] and not end["metadata"]["annotations"]


def test_a_spread_lifts_no_pause_and_overwrites_no_template(baseline: Baseline) -> None:
    for state in (deployment(paused=True), deployment(template=template(77))):
        assert next_patch(Desired.SPREAD, state, [], baseline, "llm-1") == []


def test_replicas_are_never_written(baseline: Baseline) -> None:
    for way in Desired:
        for state in (deployment(), deployment(template=template(32), paused=True)):
            operations = next_patch(way, state, [replica_set(32, 1)], baseline, "llm-1")
            assert not [o for o in operations if "replicas" in o["path"]]


def test_a_promotion_is_taken_back_one_pod_at_a_time(baseline: Baseline) -> None:
    """After the promotion the owner's surge of 100% is back: it is narrowed again for the way home."""
    promoted = deployment(template=template(32))
    promoted["metadata"]["annotations"] = {}
    back = apply(promoted, next_patch(Desired.RESTORE, promoted, [], baseline, "llm-1"))
    assert back["spec"]["template"] == template(128) and back["spec"]["strategy"] == narrowed(0)
    end = apply(back, next_patch(Desired.RESTORE, back, [], baseline, "llm-1"))
    assert end["spec"] == deployment()["spec"]


def test_a_foreign_template_gets_its_deployment_back_as_the_owner_had_it(baseline: Baseline) -> None:
    foreign = deployment(template=template(77), paused=True, strategy=narrowed(0), minReadySeconds=30)
    foreign["metadata"]["annotations"] = {TRIAL_ANNOTATION: "llm-1", "team": "search"}
    released = apply(foreign, next_patch(Desired.RELEASE, foreign, [], baseline, "llm-1"))
    assert released["spec"] == deployment(template=template(77))["spec"]
    assert released["metadata"]["annotations"] == {"team": "search"}
    own = apply(foreign, [{"op": "add", "path": "/spec/strategy", "value": {"type": "Recreate"}}])
    assert apply(own, next_patch(Desired.RELEASE, own, [], baseline, "x"))["spec"]["strategy"] == {"type": "Recreate"}


def test_an_owners_pause_without_our_mark_is_left_alone(baseline: Baseline) -> None:
    paused = deployment(paused=True)
    for way in (Desired.PROMOTE, Desired.RESTORE, Desired.RELEASE, Desired.KEEP):
        assert next_patch(way, paused, [], baseline, "llm-1") == []


def test_whose_template() -> None:
    base = Baseline.of(deployment(), template(32))
    assert whose(None, base) is Template.MISSING
    assert whose(deployment(), base) is Template.BASELINE
    assert whose(deployment(template=template(32)), base) is Template.CANDIDATE
    assert whose(deployment(template=template(33)), base) is Template.FOREIGN
    other = deployment()
    other["metadata"]["uid"] = "u2"  # deleted and made again: not the one whose baseline we know
    assert whose(other, base) is Template.FOREIGN
    going = deployment()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert whose(going, base) is Template.MISSING


def test_the_baseline_survives_storage_to_the_byte() -> None:
    odd = deployment(strategy=None)
    odd["spec"]["template"]["spec"]["futureField"] = {"x": [1, None, "ü\n"]}
    base = Baseline.of(odd, template(32))
    stored = json.loads(json.dumps(base.to_spec()))
    assert Baseline.from_spec(stored) == base


def test_settled_needs_every_count_and_the_latest_generation() -> None:
    assert settled(deployment())
    for key in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"):
        broken = deployment()
        broken["status"][key] = 2
        assert not settled(broken)
    stale = deployment()
    stale["status"]["observedGeneration"] = 2
    assert not settled(stale)


def pod(name: str, owner: str, *, ready: bool = True, **container: Any) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": owner, "controller": True}]},
        "status": {
            "podIP": "10.0.0.1",
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [{"name": "vllm", "restartCount": 0, "state": {"running": {}}, **container}],
        },
    }


def test_the_view_sorts_pods_into_canary_and_control(baseline: Baseline) -> None:
    gone = pod("old-3", "rs128")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods = [pod("new", "rs32"), pod("old-1", "rs128"), pod("old-2", "rs128"), gone, pod("stranger", "rs9")]
    seen = rollout.view(
        deployment(template=template(32), paused=True),
        [replica_set(32, 1), replica_set(128, 2)],
        pods,
        baseline,
        "vllm",
    )
    assert [p.name for p in seen.canary] == ["new"] and [p.name for p in seen.control] == ["old-1", "old-2"]
    assert seen.paused and not seen.held and seen.template is Template.CANDIDATE


def test_a_crash_is_seen_while_the_container_waits_to_start_again_and_not_after_it_recovered() -> None:
    died = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    waiting = pod(
        "a", "rs", ready=False, restartCount=2, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=died
    )
    health = rollout.pod_health(waiting, "vllm")
    assert (health.waiting_reason, health.terminated_reason, health.exit_code) == ("CrashLoopBackOff", "OOMKilled", 137)
    recovered = rollout.pod_health(pod("a", "rs", restartCount=1, lastState=died), "vllm")
    assert recovered.exit_code is None and recovered.restarts == 1


@pytest.mark.parametrize(
    ("state", "restarts", "deaths"),
    [
        ({"terminated": {"reason": "Error", "exitCode": 1}}, 0, 1),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, 0, 1),
        ({"running": {}}, 1, 1),
        ({"terminated": {"reason": "Error", "exitCode": 1}}, 1, 2),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, 1, 2),
        ({"running": {}}, 2, 2),
    ],
)
def test_one_excused_death_is_not_seen_and_a_second_is(state: Json, restarts: int, deaths: int) -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 1}}
    seen = rollout.pod_health(
        pod("a", "rs", ready=False, restartCount=restarts, state=state, lastState=last), "vllm", 1
    )
    assert (seen.restarts == 0 and seen.exit_code is None and seen.waiting_reason is None) == (deaths == 1)


def test_pods_of_the_baseline_that_are_ending_are_counted(baseline: Baseline) -> None:
    gone = pod("old", "rs128")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    new_gone = pod("new-0", "rs32")
    new_gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    sets = [replica_set(32, 1), replica_set(128, 0)]
    seen = rollout.view(deployment(template=template(32)), sets, [gone, new_gone, pod("new", "rs32")], baseline, "vllm")
    assert seen.ending == 1 and seen.control == () and [p.name for p in seen.canary] == ["new"]


@pytest.mark.parametrize(
    ("meta", "owner"),
    [
        ({}, ""),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, ""),
        ({"annotations": {"argocd.argoproj.io/tracking-id": "x"}}, "Argo CD"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}}, "Flux"),
        ({"ownerReferences": [{"kind": "InferenceService", "name": "x", "controller": True}]}, "InferenceService x"),
    ],
)
def test_owners_that_would_undo_a_change_are_named(meta: Json, owner: str) -> None:
    found = deployment()
    found["metadata"].update(meta)
    assert rollout.owner(found) == owner
