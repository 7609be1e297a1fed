"""Room for the canary: on a node for one more pod, on the device beside one that is still ending."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import CRASHED, HEALTHY, NOW, STARTING, evidence, pods, record, spec, view

from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase, Strategy, TargetView, Template, TrialRecord, Wish
from trimtab.plan.room import NO_POD_SECONDS, NO_ROOM_SECONDS
from trimtab.plan.switchback import advance

UNSCHEDULED = replace(STARTING, scheduled=False)
NO_SPACE = replace(CRASHED, last_log="torch.OutOfMemoryError: CUDA out of memory.")
HELD = replace(
    CRASHED, last_log="ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired"
)


def look(rec: TrialRecord, seen: TargetView, seconds: float, **rollout: Any) -> TrialRecord:
    return advance(spec(rollout=rollout), rec, seen, evidence(), Wish(), NOW + seconds)


def waiting(**changes: Any) -> TargetView:
    return view(canary=pods(UNSCHEDULED, prefix="new"), **changes)


def starting(**changes: Any) -> TrialRecord:
    return record(Phase.STARTING, applied=True, max_surge=1, **changes)


def test_a_pod_that_no_node_takes_ends_the_trial_within_seconds_and_costs_nothing() -> None:
    held = look(starting(), waiting(), 2.0)
    assert held.phase is Phase.STARTING and held.restarts == 1
    after = look(held, waiting(), NO_ROOM_SECONDS + 1)
    assert (after.phase, after.restarts) == (Phase.ROLLING_BACK, 0)
    assert after.verdict is not None and (after.verdict.kind, after.verdict.reason) == (Kind.INCONCLUSIVE, "NoRoom")
    assert not after.infeasible


def test_a_quota_that_lets_no_pod_be_made_counts_as_no_room() -> None:
    assert look(starting(), view(canary=()), NO_ROOM_SECONDS + 1).phase is Phase.STARTING
    assert look(starting(), view(canary=()), NO_POD_SECONDS + 1).phase is Phase.ROLLING_BACK


@pytest.mark.parametrize(("surge", "rollout"), [(1, {"maxSurge": 1}), (0, {})])
def test_who_asked_for_a_surge_waits_for_it_and_a_replaced_pod_waits_for_the_old_one(surge: int, rollout: Any) -> None:
    """An autoscaler's node takes minutes; the old pod's GPU is free only when that pod has ended."""
    rec = replace(starting(), max_surge=surge)
    assert look(rec, waiting(), 99.0, **rollout).phase is Phase.STARTING
    after = look(rec, waiting(), 101.0, **rollout)
    assert after.verdict is not None and after.verdict.reason == "NotScheduled"


@pytest.mark.parametrize("health", [NO_SPACE, HELD])
@pytest.mark.parametrize("strategy", list(Strategy))
def test_out_of_memory_beside_an_ending_pod_is_excused_once(health: Any, strategy: Strategy) -> None:
    rec = record(Phase.STARTING, applied=True, held=True, strategy=strategy)
    paused = strategy is Strategy.CANARY
    dying = view(canary=pods(health, prefix="new"), control=pods(HEALTHY), ending=1, paused=paused)
    after = look(rec, dying, 5.0)
    assert (after.phase, after.excused, after.infeasible) == (Phase.STARTING, 1, False)
    assert "once more" in after.message
    again = look(after, dying, 20.0)  # the view forgives one death, so this is a second one
    assert again.phase is Phase.ROLLING_BACK and again.infeasible


def test_the_old_pod_may_be_gone_when_the_crash_is_seen() -> None:
    rec = look(
        record(Phase.STARTING, applied=True, held=True), view(canary=pods(STARTING, prefix="new"), ending=1), 2.0
    )
    assert rec.overlapped
    after = look(rec, view(canary=pods(NO_SPACE, prefix="new")), 9.0)
    assert (after.phase, after.excused) == (Phase.STARTING, 1)


def test_out_of_memory_of_its_own_condemns_the_configuration() -> None:
    rec = record(Phase.STARTING, applied=True, held=True)
    for health, ending in ((NO_SPACE, 0), (CRASHED, 1)):
        after = look(rec, view(canary=pods(health, prefix="new"), ending=ending), 5.0)
        assert after.phase is Phase.ROLLING_BACK and after.infeasible


def test_a_promotion_excuses_it_too() -> None:
    rec = record(Phase.PROMOTING, applied=True, held=True, strategy=Strategy.SWITCHBACK, replicas=1)
    dying = TargetView(
        Template.CANDIDATE, paused=False, held=True, replicas=1, settled=False, canary=pods(NO_SPACE, prefix="new"),
        ending=1,
    )  # fmt: skip
    assert look(rec, dying, 5.0).excused == 1
