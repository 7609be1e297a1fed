"""A trial that an earlier release began is finished by this one: its stored objects, as that release wrote them.

data/stored_by_0_1_0.json: the whole state of test_whole_way's API server in each phase, written by the code of
CRD version 2 (trials of settings, of the middleware's install and of a policy).
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from test_kill_everywhere import TuneWorld

from trimtab.plan.spec import TunerSpec
from trimtab_operator.records import record_of, status_of

Json = dict[str, Any]
STORED: dict[str, Json] = json.loads((Path(__file__).parent / "data" / "stored_by_0_1_0.json").read_text())
TUNE = {"Starting", "WarmingUp", "Measuring", "Confirming", "Promoting", "Verifying", "Promoted"}


def resumed(monkeypatch: pytest.MonkeyPatch, name: str, *, surge: int | None, better: bool) -> TuneWorld:
    """This release's process in the world that the earlier one left."""
    world, state = TuneWorld(monkeypatch, surge=surge, better=better, kill=(0, "")), copy.deepcopy(STORED[name])
    world.api.objects = {(o["kind"], o["name"]): o["object"] for o in state["objects"]}
    world.api.templates, world.api.files, world.api.pods = state["templates"], state["files"], state["pods"]
    world.api.now = state["now"]
    owners = json.loads(world.trials()[-1]["spec"]["baseline"]["strategyJson"])
    world.before = {**world.api.objects["Deployment", "llm"]["spec"], "strategy": owners}
    for ours in ("paused", "minReadySeconds"):
        world.before.pop(ours, None)
    return world


@pytest.mark.parametrize("name", STORED)
def test_what_was_stored_is_read_and_written_again_without_loss(name: str) -> None:
    for found in STORED[name]["objects"]:
        if found["kind"] == "VLLMTuner":
            TunerSpec.parse(found["object"]["spec"])
        if found["kind"] == "TuningTrial":
            stored = found["object"]["status"]
            again = status_of(record_of(found["object"]), stored, "", 1)
            assert {k: again.get(k) for k in stored} == stored


@pytest.mark.parametrize("name", [n for n in STORED if n.startswith("tune")])
def test_a_trial_of_settings_is_finished(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    better = name.split(", ")[1] in TUNE
    world = resumed(monkeypatch, name, surge=0, better=better)
    world.run(world.rested)
    assert world.problem(better) == ""
    assert len(world.trials()) == 1


@pytest.mark.parametrize("name", ["policy, measuring", "policy, promoted"])
def test_a_trial_of_the_policy_is_finished(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    world = resumed(monkeypatch, name, surge=None, better=True)
    world.run(world.rested)
    assert world.problem(better=True) == ""
