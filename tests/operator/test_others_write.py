"""Others who write to the target while a trial is in flight, the whole way: their change stays, nobody is fought."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from test_whole_way import TEMPLATE, World

from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration
from trimtab.tune.apart import Answer
from trimtab.tune.writing import Proposed

Json = dict[str, Any]


def tuning(monkeypatch: pytest.MonkeyPatch) -> World:
    """A target whose trial of max_num_seqs=48 is being measured."""
    world = World(monkeypatch, 0.0, middleware="Off")
    written = rewrite(TEMPLATE, {"max_num_seqs": 48}, None, version="0.11.0")
    proposed = Proposed(Configuration.of(max_num_seqs=48), written, "test")
    search: Any = SimpleNamespace(next=lambda *_: Answer(proposed))
    world.reconciler.searching = search
    world.run(lambda: world.phase(1) == "Measuring")
    assert spec_of(world)["template"] == written
    return world


def spec_of(world: World) -> Json:
    found: Json = world.api.objects["Deployment", "llm"]["spec"]
    return found


def reason(world: World, kind: str = "Stalled") -> str:
    return str({c["type"]: c["reason"] for c in world.tuner()["status"]["conditions"]}[kind])


def verdict(world: World) -> str:
    return str(world.trials()[0]["status"]["verdict"]["reason"])


def test_an_owner_that_reverts_every_10_seconds_is_written_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Argo CD's self-heal does: the template is put back again and again, whatever is in it."""
    world = tuning(monkeypatch)
    templates = 1  # the trial's own
    for tick in range(100):  # 300 s
        if tick % 3 == 0:
            spec_of(world)["template"] = copy.deepcopy(TEMPLATE)
        world.run(lambda: True)
        templates += spec_of(world)["template"] != TEMPLATE
    assert templates <= 2 and len(world.trials()) == 1
    assert (verdict(world), reason(world)) == ("Reverted", "OwnerReverts")
    assert not spec_of(world).get("paused") and "trimtab.dev/trial" not in world.api.objects["Deployment", "llm"][
        "metadata"
    ].get("annotations", {})


@pytest.mark.parametrize("who", ["a new image", "a helm upgrade", "kubectl edit"])
def test_a_change_during_a_trial_stays(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    world = tuning(monkeypatch)
    theirs = copy.deepcopy(TEMPLATE if who == "a helm upgrade" else spec_of(world)["template"])
    container = theirs["spec"]["containers"][0]
    if who == "kubectl edit":
        container["env"] = [{"name": "A", "value": "b"}]
    else:
        container["image"] = "vllm/vllm-openai:v0.12.0"
    spec_of(world)["template"] = theirs
    if who == "a helm upgrade":  # Helm writes the strategy of its chart, too
        spec_of(world)["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    strategy = copy.deepcopy(spec_of(world).get("strategy"))
    world.run(lambda: world.phase(1) == "Cancelled", 30)
    assert verdict(world) == "ExternalChange" and spec_of(world)["template"] == theirs
    assert not spec_of(world).get("paused")
    assert who != "a helm upgrade" or spec_of(world)["strategy"] == strategy


def test_an_autoscaler_that_acts_ends_the_trial_and_its_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tuning(monkeypatch)
    spec_of(world)["replicas"] = 3
    world.run(lambda: world.phase(1) == "RollingBack", 10)
    assert verdict(world) == "ReplicasChanged" and spec_of(world)["replicas"] == 3
    assert spec_of(world)["template"] == TEMPLATE


def test_an_evicted_canary_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tuning(monkeypatch)
    canary = world.trials()[0]["status"]["canaryPod"]
    world.api.objects["Pod", canary]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    world.run(lambda: world.phase(1) == "RollingBack", 10)
    assert verdict(world) == "CanaryLost"
