"""What must hold before a trial: each check alone, and that all together let a healthy target through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, observation, record, spec

from trimtab.diagnose.finding import Finding, Severity
from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.block import Block
from trimtab.plan.preconditions import FleetView, Ground, first_block, restarts_within_day
from trimtab.plan.record import Phase, Strategy, TrialKind
from trimtab.plan.room import FULL_SECONDS
from trimtab.plan.summary import TunerPhase, gain_text, tally, tuner_phase
from trimtab.plan.way import way

FLEET = FleetView(
    exists=True,
    replicas=3,
    settled=True,
    stable_seconds=900.0,
    observation=observation(),
    configuration=Configuration.of(max_num_seqs=128),
)
ENDED = record(Phase.ROLLED_BACK, NOW - 5000, finished_at=NOW - 4000, restarts=2)
ALARM = Finding("Hang", Severity.CRITICAL, 0.9, "no tokens", "restart")


def ground(
    fleet: FleetView = FLEET, history: Any = (), now: float = NOW, exhausted: bool = False, **sections: Any
) -> Ground:
    return Ground(spec(**sections), fleet, tuple(history), tuple(history), now, exhausted)


def test_a_healthy_target_with_traffic_may_be_tried() -> None:
    assert first_block(ground()) is None
    assert first_block(ground(history=[ENDED])) is None


@pytest.mark.parametrize(
    ("fleet", "reason", "hard"),
    [
        (FleetView(exists=False), "TargetNotFound", True),
        (replace(FLEET, engine_problem="a script"), "EngineUnreadable", True),
        (replace(FLEET, metrics_problem="refused"), "MetricsUnavailable", True),
        (replace(FLEET, owner="Argo CD"), "OwnedByOther", True),
        (replace(FLEET, may_write=False), "NotPermitted", True),
        (replace(FLEET, drain_problem="no preStop"), "DrainUnsafe", True),
        (replace(FLEET, replicas=0), "ScaledToZero", False),
        (replace(FLEET, paused=True), "TargetPaused", True),
        (replace(FLEET, settled=False), "TargetNotSettled", False),
        (replace(FLEET, stable_seconds=3.0), "TargetNotStable", False),
        (replace(FLEET, findings=(ALARM,)), "Hang", True),
        (replace(FLEET, observation=None), "NoData", False),
        (replace(FLEET, observation=observation(finished=0.5)), "TooLittleTraffic", False),
        (replace(FLEET, replicas=80), "RestartBudgetTooSmall", True),
    ],
)
def test_each_obstacle_is_named(fleet: FleetView, reason: str, hard: bool) -> None:
    block = first_block(ground(fleet))
    assert block is not None and (block.reason, block.hard) == (reason, hard)
    assert block.message


def test_unknown_traffic_is_not_enough_traffic() -> None:
    unknown = replace(observation(), requests=None)
    block = first_block(ground(replace(FLEET, observation=unknown)))
    assert block is not None and block.reason == "NoData"


def test_one_replica_is_enough_with_a_surge_pod() -> None:
    assert first_block(ground(replace(FLEET, replicas=1), rollout={"maxSurge": 1})) is None


@pytest.mark.parametrize(
    ("rollout", "full", "found"),
    [
        ({}, False, (Strategy.CANARY, 1)),
        ({}, True, "NoSpareCapacity"),
        ({"maxSurge": 0}, False, "TooFewReplicas"),
        ({"maxSurge": 1}, True, (Strategy.CANARY, 1)),  # someone waits for an autoscaler's node
        ({"strategy": "Switchback"}, False, (Strategy.SWITCHBACK, 1)),
        ({"strategy": "Switchback"}, True, "NoSpareCapacity"),
        ({"strategy": "Switchback", "maxSurge": 0}, False, "DowntimeNotAllowed"),
        ({"strategy": "Switchback", "allowDowntime": True}, False, (Strategy.SWITCHBACK, 1)),
        ({"strategy": "Switchback", "allowDowntime": True}, True, (Strategy.SWITCHBACK, 0)),
        ({"strategy": "Switchback", "allowDowntime": True, "maxSurge": 0}, False, (Strategy.SWITCHBACK, 0)),
    ],
)
def test_the_way_of_one_replica(rollout: dict[str, Any], full: bool, found: object) -> None:
    """A target that had no room says so in the last trials; only the words allowDowntime take the only pod down."""
    no_room = replace(ENDED, verdict=Verdict(Kind.INCONCLUSIVE, "NoRoom", ""), finished_at=NOW - 3600)
    chosen = way(spec(rollout=rollout).rollout, 1, TrialKind.TUNE, [no_room] if full else [], NOW)
    if isinstance(chosen, Block):
        assert (chosen.reason, chosen.hard) == (found, True) and "spec.rollout." in chosen.message
    else:
        assert (chosen.strategy, chosen.max_surge) == found
    assert isinstance(way(spec(rollout=rollout).rollout, 1, TrialKind.POLICY, [], NOW), Block)


def test_with_more_replicas_a_full_target_replaces_a_pod_until_it_is_worth_another_look() -> None:
    no_room = replace(ENDED, verdict=Verdict(Kind.INCONCLUSIVE, "NoRoom", ""), finished_at=NOW - 3600)
    rollout = spec(rollout={"strategy": "Switchback"}).rollout
    assert way(rollout, 3, TrialKind.TUNE, [no_room], NOW) == (Strategy.CANARY, 0, 4)
    assert way(rollout, 3, TrialKind.TUNE, [no_room], NOW + FULL_SECONDS) == (Strategy.CANARY, 1, 4)
    assert first_block(ground(history=[no_room] * 9)) is None  # it tried nothing, so it does not use up patience


def test_a_revert_stops_the_search_until_its_question_changes() -> None:
    reverted = replace(ENDED, verdict=Verdict(Kind.INCONCLUSIVE, "Reverted", ""))
    block = first_block(ground(history=[reverted]))
    assert block is not None and block.reason == "OwnerReverts" and block.hard


def test_convergence() -> None:
    many = [replace(ENDED, number=i) for i in range(spec().search.patience)]
    for g in (ground(exhausted=True), ground(history=many), ground(history=many[:2], search={"maxTrials": 2})):
        block = first_block(g)
        assert block is not None and block.reason == "Converged"
    fresh = [*many[1:], replace(ENDED, phase=Phase.PROMOTED), *many[1:]]
    assert first_block(ground(history=fresh)) is None  # a promotion starts patience anew


def test_the_restart_budget_counts_a_day() -> None:
    spent = [replace(ENDED, restarts=48)]
    block = first_block(ground(history=spent))
    assert block is not None and block.reason == "RestartBudgetSpent"
    assert first_block(ground(history=spent, now=NOW + 90_000)) is None
    assert restarts_within_day(spent, NOW) == 48 and restarts_within_day(spent, NOW + 90_000) == 0


def test_windows_and_cooldown() -> None:
    # NOW is Friday, 15 January 2027, 08:00 UTC
    night = {"windows": [{"start": "22:00", "end": "06:00", "timeZone": "UTC"}]}
    block = first_block(ground(rollout=night))
    assert block is not None and block.reason == "WindowClosed"
    assert (
        first_block(ground(rollout={"windows": [{"start": "22:00", "end": "06:00", "timeZone": "Asia/Tokyo"}]}))
        is not None
    )
    assert (
        first_block(ground(rollout={"windows": [{"start": "16:00", "end": "18:00", "timeZone": "Asia/Seoul"}]})) is None
    )
    block = first_block(ground(history=[replace(ENDED, finished_at=NOW - 10)], rollout={"cooldownSeconds": 60}))
    assert block is not None and block.reason == "CoolingDown"


def test_an_overnight_window_belongs_to_the_day_it_starts() -> None:
    friday = {"windows": [{"days": ["Fri"], "start": "22:00", "end": "06:00"}]}
    hour = 3600.0
    assert first_block(ground(rollout=friday, now=NOW + 15 * hour)) is None  # Friday 23:00
    assert first_block(ground(rollout=friday, now=NOW + 20 * hour)) is None  # Saturday 04:00
    assert first_block(ground(rollout=friday, now=NOW - 4 * hour)) is not None  # Friday 04:00 is Thursday's night


def test_the_tally_chains_gains_and_leaves_latency_out() -> None:
    better = Verdict(Kind.BETTER, "GoodputBetter", "", gain=0.2)
    latency = Verdict(
        Kind.BETTER, "LatencyBetter", "", gain=-0.05,
        numbers={"canary_ttft_p50_seconds": 0.5, "control_ttft_p50_seconds": 1.0},
    )  # fmt: skip
    promoted = replace(ENDED, phase=Phase.PROMOTED)
    counts = tally(
        [replace(promoted, verdict=better), replace(promoted, verdict=better), replace(promoted, verdict=latency)]
    )
    assert counts.best_gain == pytest.approx(0.44) and counts.best == "+44.0%"
    assert gain_text(latency) == "TTFT -50.0%"
    only = tally([replace(promoted, verdict=latency)])
    assert only.best_gain is None and only.best == "TTFT -50.0%"


def test_phases_of_a_tuner() -> None:
    hard, soft = first_block(ground(FleetView(exists=False))), first_block(ground(replace(FLEET, settled=False)))
    assert tuner_phase(spec(), None, hard, recommended=False) is TunerPhase.PENDING
    helpless = Block("TuningCannotHelp", "clients leave")
    assert tuner_phase(spec(), None, helpless, recommended=False) is TunerPhase.CONVERGED
    assert tuner_phase(spec(), None, soft, recommended=True) is TunerPhase.OBSERVING
    assert tuner_phase(spec(mode="Recommend"), None, soft, recommended=True) is TunerPhase.RECOMMENDED
    assert tuner_phase(spec(suspend=True), None, hard, recommended=True) is TunerPhase.SUSPENDED
    assert tuner_phase(spec(), record(), None, recommended=False) is TunerPhase.TUNING
    waiting = record(Phase.AWAITING_APPROVAL)
    assert tuner_phase(spec(), waiting, None, recommended=False) is TunerPhase.AWAITING_APPROVAL
