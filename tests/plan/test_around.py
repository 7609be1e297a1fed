"""What stands around a target: each keeps a trial from starting, alone and with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, observation, record, spec

from trimtab.diagnose.finding import Finding, Role, Severity
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.around import Around, Brakes, below, bounded, notes_of, pulled
from trimtab.plan.block import Block
from trimtab.plan.neighbours import Autoscaler, DisruptionBudget
from trimtab.plan.preconditions import FleetView, Ground, first_block
from trimtab.plan.record import NO_ROOM, Phase, TrialKind

FLEET = FleetView(exists=True, replicas=3, settled=True, stable_seconds=900.0, observation=observation())
FULL = Around(budgets=(DisruptionBudget("pdb", 0, True),))


def block(around: Around | None = None, kind: TrialKind = TrialKind.TUNE, **more: Any) -> Block | None:
    fleet, recent = replace(FLEET, **more.pop("fleet", {})), more.pop("recent", ())
    return first_block(Ground(spec(**more), fleet, (), recent, NOW, kind=kind, around=around or Around()))


def cause(name: str, confidence: float = 0.9, tunable: bool = False, **evidence: float) -> Finding:
    return Finding(name, Severity.WARNING, confidence, "seen", "do", evidence, tunable=tunable, role=Role.MAIN)


@pytest.mark.parametrize(
    ("around", "reason", "hard"),
    [
        (Around(Brakes(stop="stopped")), "KillSwitch", True),
        (Around(Brakes(freeze="frozen")), "NamespaceFrozen", True),
        (Around(Brakes(unknown="no answer")), "BrakesUnknown", False),
        (Around(rival="older"), "AnotherTuner", True),
        (Around(resizers=("vpa",)), "PodsResized", True),
    ],
)
def test_each_is_named(around: Around, reason: str, hard: bool) -> None:
    found = block(around)
    assert found is not None and (found.reason, found.hard) == (reason, hard) and found.message
    assert block(Around()) is None


def test_the_kill_switch_comes_before_everything() -> None:
    found = block(Around(Brakes(stop="stopped", freeze="frozen")), fleet={"exists": False})
    assert found is not None and found.reason == "KillSwitch"


@pytest.mark.parametrize(("text", "stops"), [
    ("true", True), ("True ", True), ("yes", True), ("1", True), ("black-friday", True),
    ("false", False), ("FALSE", False), ("no", False), ("off", False), ("0", False), ("", False), (None, False),
])  # fmt: skip
def test_what_pulls_a_brake(text: str | None, stops: bool) -> None:
    assert pulled(text) is stops


def test_a_full_disruption_budget_blocks_where_a_pod_is_taken() -> None:
    found = block(FULL, rollout={"maxSurge": 0})
    assert found is not None and found.reason == "DisruptionsNotAllowed" and "maxSurge: 1" in found.message
    assert block(FULL, rollout={"maxSurge": 1}) is None and block(FULL) is None  # a pod is added
    assert block(FULL, TrialKind.POLICY, rollout={"maxSurge": 0}) is None  # none is restarted
    no_room = Verdict(Kind.INCONCLUSIVE, NO_ROOM, "")
    ended = record(Phase.ROLLED_BACK, NOW - 900, finished_at=NOW - 600, verdict=no_room)
    found = block(FULL, recent=[ended])  # no node had room for one more a moment ago
    assert found is not None and found.reason == "DisruptionsNotAllowed"


@pytest.mark.parametrize("name", ["QueueOverCapacity", "Imbalance", "FrontendBound", "CancellationDominates"])
def test_a_cause_outside_the_engine_is_not_tuned(name: str) -> None:
    found = block(fleet={"findings": (cause(name),)})
    assert found is not None and found.reason == "TuningCannotHelp" and found.message.startswith(name)
    assert block(fleet={"findings": (cause(name, 0.6),)}) is None  # not believed
    assert block(fleet={"findings": (replace(cause(name), role=Role.CONTEXT),)}) is None
    assert block(kind=TrialKind.INSTALL, fleet={"findings": (cause(name),)}) is None  # an install is no tuning


def test_clients_that_leave_slow_answers_may_be_helped_by_settings() -> None:
    """The demo's target: too few slots, so requests wait and users give up."""
    slow = cause("CancellationDominates", ttft_p50_seconds=7.0)
    crawling = cause("CancellationDominates", tpot_mean_seconds=0.3)
    fast = cause("CancellationDominates", ttft_p50_seconds=0.4, tpot_mean_seconds=0.02)
    slots = Finding("SlotBound", Severity.WARNING, 0.9, "", "", role=Role.CONSEQUENCE)
    assert block(fleet={"findings": (slow,)}) is None and block(fleet={"findings": (crawling,)}) is None
    assert block(fleet={"findings": (fast, slots)}) is None
    found = block(fleet={"findings": (fast, replace(slots, confidence=0.4))})
    assert found is not None and found.reason == "TuningCannotHelp"


def test_too_little_traffic_says_how_long_it_would_take_and_counts_nothing_down() -> None:
    quiet = {"observation": observation(finished=12.0), "replicas": 3}  # 0.13 requests/s per pod
    found = block(fleet=quiet)
    assert found is not None and found.reason == "TooLittleTraffic" and "takes 15 min to show" in found.message
    slower = block(fleet={**quiet, "observation": observation(finished=11.0)})
    assert slower == found  # the text stays while little changes
    assert block(fleet=quiet, rollout={"maxMeasurementSeconds": 3600}) is None
    assert block(kind=TrialKind.INSTALL, fleet=quiet) is None  # nothing must be gained
    assert block(fleet=quiet, preconditions={"visibleGainPercent": 0}) is None  # not asked
    strict = block(preconditions={"visibleGainPercent": 3})
    assert strict is not None and "hours" in strict.message


def test_a_rest_after_a_rollback_is_longer() -> None:
    ended = record(Phase.ROLLED_BACK, NOW - 500, finished_at=NOW - 100)
    promoted = replace(ended, phase=Phase.PROMOTED)
    rest = {"cooldownSeconds": 60}
    assert block(recent=[promoted], rollout=rest) is None
    found = block(recent=[ended], rollout=rest)
    assert found is not None and (found.reason, found.message) == ("CoolingDown", "pausing 120 s after a rollback")
    assert block(recent=[ended], rollout={**rest, "rollbackCooldownSeconds": 90}) is None
    unmoved = replace(ended, verdict=Verdict(Kind.INCONCLUSIVE, NO_ROOM, ""))
    assert block(recent=[unmoved], rollout=rest) is None  # no pod was restarted
    older = replace(ended, finished_at=NOW - 4000)
    assert block(recent=[promoted, older], rollout=rest) is None  # the last one counts


def test_notes_say_what_an_autoscaler_means() -> None:
    on_running, fixed = Autoscaler("hpa", 1, 4, running=22.0), Autoscaler("fixed", 2, 2)
    (note,) = notes_of([on_running, fixed], 16)
    assert note.reason == "Autoscaled" and "below 23" in note.message and "now 16" in note.message
    assert "now" not in notes_of([on_running], 64)[0].message
    assert "KEDA" in notes_of([Autoscaler("keda", 1, 4, hidden=True)], None)[0].message


def test_an_autoscaler_bounds_the_search_and_the_persons_own_candidates() -> None:
    """max_num_seqs caps the gauge of running requests: at its target the autoscaler could never add a pod."""
    candidates = [{"maxNumSeqs": 8}, {"maxNumSeqs": 32}, {"enablePrefixCaching": True}]
    asked = spec(search={"maxNumSeqs": {"min": 4, "max": 64}, "candidates": candidates})
    least = Around(scalers=(Autoscaler("hpa", 1, 4, running=22.0),)).least_num_seqs
    found = bounded(asked, least).search
    assert found.max_num_seqs is not None and (found.max_num_seqs.min, found.max_num_seqs.max) == (23, 64)
    assert found.candidates == ({"maxNumSeqs": 32}, {"enablePrefixCaching": True})
    (problem,) = below(asked, least)
    assert "candidates[0]" in problem and "below 23" in problem
    assert bounded(asked, 100).search.max_num_seqs is None  # nothing in the range is allowed
    assert bounded(asked, None) is asked and below(asked, None) == []
    keep = spec(search={"maxNumSeqs": None})
    assert bounded(keep, 23).search.max_num_seqs is None
