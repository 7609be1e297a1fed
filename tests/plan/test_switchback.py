"""The switchback's way through its phases: what is measured, what is written when, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import CRASHED, HEALTHY, NOW, STARTING, evidence, observation, record, spec

from trimtab.judge.guardrail import PodHealth
from trimtab.judge.verdict import Kind, Objective, Pair, Verdict
from trimtab.plan.drift import less_drift
from trimtab.plan.record import (
    Desired,
    Evidence,
    Phase,
    PodView,
    Strategy,
    TargetView,
    Template,
    TrialKind,
    TrialRecord,
    Wish,
)
from trimtab.plan.switchback import MOST_RESTARTS, advance, desired

SPEC = spec(rollout={"strategy": "Switchback", "allowDowntime": True})
WATCHED = replace(evidence(), pairs=())


def pod(name: str, health: PodHealth = HEALTHY) -> tuple[PodView, ...]:
    return (PodView(name, "10.0.0.1", health),)


def baseline(name: str = "a1", **changes: Any) -> TargetView:
    held = TargetView(Template.BASELINE, paused=False, held=False, replicas=1, settled=True, control=pod(name))
    return replace(held, **changes)


def candidate(name: str = "b", **changes: Any) -> TargetView:
    held = TargetView(Template.CANDIDATE, paused=False, held=True, replicas=1, settled=True, canary=pod(name))
    return replace(held, **changes)


def drift(share: float) -> tuple[Pair, ...]:
    after, before = observation(600 * (1 + share), 6.0, finished=20), observation(600, 6.0, finished=20)
    return tuple(Pair(NOW + i, NOW + i + 1, after, before) for i in range(10))


def begin(**changes: Any) -> TrialRecord:
    return record(Phase.MEASURING_BEFORE, replicas=1, strategy=Strategy.SWITCHBACK, **changes)


class Walk:
    """A trial and its clock; each look may take `seconds`."""

    def __init__(self, rec: TrialRecord | None = None) -> None:
        self.rec, self.now = rec or begin(), NOW

    def look(self, view: TargetView, seen: Evidence = WATCHED, seconds: float = 5.0, wish: Wish | None = None) -> Phase:
        self.now += seconds
        self.rec = advance(SPEC, self.rec, view, seen, wish or Wish(), self.now)
        return self.rec.phase

    def until(self, phase: Phase, view: TargetView, seen: Evidence = WATCHED) -> None:
        for _ in range(40):
            if self.look(view, seen) is phase:
                return
        raise AssertionError(f"{phase} not reached, still in {self.rec.phase}: {self.rec.message}")

    def to_measuring(self) -> None:
        self.until(Phase.STARTING, baseline())
        self.look(baseline("a1", template=Template.CANDIDATE, held=True, settled=False), seconds=2)
        self.until(Phase.MEASURING, candidate())

    def to_after(self) -> None:
        self.to_measuring()
        self.until(Phase.RETURNING, candidate())
        self.until(Phase.MEASURING_AFTER, baseline("a2"))


@pytest.mark.parametrize(("gain", "restarts"), [(0.4, 3), (0.0, 2), (-0.4, 2)])
def test_baseline_candidate_baseline_and_the_candidate_again_only_where_it_is_better(
    gain: float, restarts: int
) -> None:
    walk = Walk()
    walk.to_after()
    judged = replace(evidence(gain), drift=drift(0.0))
    assert [s.pod for s in walk.rec.spans] == ["a1", "b"] and walk.rec.spans[1].end is not None
    walk.until(Phase.PROMOTING if gain > 0 else Phase.ROLLING_BACK, baseline("a2"), judged)
    assert walk.rec.restarts == restarts and [s.pod for s in walk.rec.spans] == ["a1", "b", "a2"]
    if gain > 0:
        assert desired(walk.rec, Template.BASELINE) is Desired.SPREAD and not walk.rec.applied
        assert walk.look(candidate("b2", settled=False)) is Phase.PROMOTING and walk.rec.applied
        assert desired(walk.rec, Template.CANDIDATE) is Desired.PROMOTE
        walk.until(Phase.PROMOTED, candidate("b2", held=False))
    else:
        walk.until(Phase.ROLLED_BACK, baseline("a2"))
    assert walk.rec.restarts <= MOST_RESTARTS


def test_what_the_target_carries_follows_from_the_phase() -> None:
    table = {
        Phase.AWAITING_APPROVAL: Desired.KEEP, Phase.MEASURING_BEFORE: Desired.KEEP, Phase.STARTING: Desired.SPREAD,
        Phase.WARMING_UP: Desired.KEEP, Phase.MEASURING: Desired.KEEP, Phase.RETURNING: Desired.RESTORE,
        Phase.MEASURING_AFTER: Desired.KEEP, Phase.PROMOTING: Desired.PROMOTE, Phase.VERIFYING: Desired.PROMOTE,
        Phase.ROLLING_BACK: Desired.RESTORE, Phase.PROMOTED: Desired.KEEP,
    }  # fmt: skip
    for phase, wanted in table.items():
        assert desired(begin().to(phase, NOW, ""), Template.CANDIDATE) is wanted, phase
        foreign = desired(begin().to(phase, NOW, ""), Template.FOREIGN)
        assert foreign in (Desired.KEEP, Desired.RELEASE), phase


def test_the_take_back_of_a_promotion_is_the_fourth_restart() -> None:
    walk = Walk(begin(restarts=3, applied=True).to(Phase.VERIFYING, NOW, ""))
    assert walk.look(candidate("b2", canary=pod("b2", CRASHED), held=False)) is Phase.ROLLING_BACK
    assert walk.rec.restarts == MOST_RESTARTS


def test_nothing_is_restarted_before_the_baseline_was_really_seen() -> None:
    walk = Walk()
    thin = replace(evidence(), control=observation(seconds=5.0))
    walk.until(Phase.ROLLING_BACK, baseline(), thin)
    assert walk.rec.verdict is not None and walk.rec.verdict.reason == "MetricsMissing"
    assert walk.rec.remeasured == 2 and walk.rec.restarts == 0
    assert desired(walk.rec, Template.BASELINE) is Desired.RESTORE
    assert walk.look(baseline()) is Phase.ROLLED_BACK


def test_samples_of_the_first_period_that_are_lost_make_no_verdict() -> None:
    """Direct scrapes are gone with the process that made them."""
    walk = Walk()
    walk.to_after()
    walk.until(Phase.ROLLING_BACK, baseline("a2"), replace(evidence(0.4), pairs=(), drift=()))
    assert walk.rec.verdict is not None and walk.rec.verdict.kind is Kind.INCONCLUSIVE


@pytest.mark.parametrize(
    ("view", "reason", "kind"),
    [
        (candidate(canary=pod("b", CRASHED)), "CrashedUnderLoad", Kind.ERROR),
        (candidate("another"), "CanaryLost", Kind.INCONCLUSIVE),
        (candidate(canary=()), "CanaryLost", Kind.INCONCLUSIVE),
        (candidate(paused=True), "ExternalChange", Kind.INCONCLUSIVE),
        (candidate(replicas=2), "ReplicasChanged", Kind.INCONCLUSIVE),
        (baseline("a1"), "Reverted", Kind.INCONCLUSIVE),
    ],
)
def test_trouble_with_the_candidate_goes_back_at_once(view: TargetView, reason: str, kind: Kind) -> None:
    walk = Walk()
    walk.to_measuring()
    assert walk.look(view) is Phase.ROLLING_BACK
    assert walk.rec.verdict is not None and (walk.rec.verdict.reason, walk.rec.verdict.kind) == (reason, kind)


def test_the_guardrails_compare_with_the_baselines_last_minutes() -> None:
    walk = Walk()
    walk.to_measuring()
    slow = replace(WATCHED, recent_canary=observation(ttft=5.0, finished=200), recent_control=observation(ttft=0.1))
    assert walk.look(candidate(), slow) is Phase.ROLLING_BACK
    assert walk.rec.verdict is not None and walk.rec.verdict.reason == "LatencyTooHigh"


@pytest.mark.parametrize("after", [False, True])
def test_trouble_with_the_baseline_writes_nothing(after: bool) -> None:
    for view, phase in (
        (baseline("a9"), Phase.ROLLING_BACK),
        (baseline(control=pod("a1", STARTING)), Phase.ROLLING_BACK),
        (baseline("a1", paused=True), Phase.CANCELLED),
        (candidate(held=False), Phase.CANCELLED),
    ):
        walk = Walk()
        if after:
            walk.to_after()
        walk.look(baseline("a2" if after else "a1"), seconds=12)
        assert walk.look(view) is phase, view
        assert desired(walk.rec, view.template) in (Desired.KEEP, Desired.RESTORE)


def test_no_metrics_end_it_in_every_period() -> None:
    for reach, view in (
        (lambda w: w.look(baseline()), baseline()),
        (Walk.to_measuring, candidate()),
        (Walk.to_after, baseline("a2")),
    ):
        walk = Walk()
        reach(walk)
        walk.until(Phase.ROLLING_BACK, view, Evidence(problem="refused"))
        assert walk.rec.verdict is not None and walk.rec.verdict.reason == "MetricsLost"


def test_a_baseline_that_does_not_come_back_is_still_waited_for() -> None:
    walk = Walk()
    walk.to_measuring()
    walk.until(Phase.RETURNING, candidate())
    walk.until(Phase.ROLLING_BACK, baseline("a2", settled=False, control=pod("a2", STARTING), held=True))
    assert walk.rec.verdict is not None and walk.rec.verdict.reason == "ReturnTimedOut"
    assert walk.look(baseline("a2")) is Phase.ROLLED_BACK


def test_what_needs_no_gain_stays_where_it_is_not_worse() -> None:
    """The drain settings and the middleware cost one restart, not three."""
    for kind, seen, end in (
        (TrialKind.DRAIN, False, Phase.PROMOTING),
        (TrialKind.INSTALL, True, Phase.PROMOTING),
        (TrialKind.INSTALL, False, Phase.ROLLING_BACK),
    ):
        walk = Walk(begin(kind=kind))
        walk.to_measuring()
        walk.until(end, candidate(), replace(evidence(0.0), middleware_seen=seen))
        assert walk.rec.restarts == (1 if end is Phase.PROMOTING else 2)
        if end is Phase.PROMOTING:
            assert walk.rec.applied and desired(walk.rec, Template.CANDIDATE) is Desired.PROMOTE


@pytest.mark.parametrize(
    ("gain", "moved", "kind", "reason"),
    [
        (0.4, 0.1, Kind.BETTER, "GoodputBetter"),
        (0.1, 0.4, Kind.INCONCLUSIVE, "Drifted"),
        (0.1, -0.4, Kind.INCONCLUSIVE, "Drifted"),
        (-0.1, -0.4, Kind.INCONCLUSIVE, "Drifted"),
        (-0.4, 0.1, Kind.WORSE, "GoodputWorse"),
        (0.4, None, Kind.INCONCLUSIVE, "MetricsMissing"),
    ],
)
def test_half_of_the_drift_must_not_explain_the_verdict(
    gain: float, moved: float | None, kind: Kind, reason: str
) -> None:
    base = Verdict(
        Kind.BETTER if gain > 0 else Kind.WORSE, "GoodputBetter" if gain > 0 else "GoodputWorse", "", gain,
        gain - 0.03, gain + 0.03,
    )  # fmt: skip
    found = less_drift(base, () if moved is None else drift(moved), Objective(None, None, 3.0, 10.0))
    assert (found.kind, found.reason) == (kind, reason)
    if moved is not None:
        assert found.gain_low is not None and found.gain_low < gain - 0.03
        assert found.numbers["drift"] == pytest.approx(moved)


def test_a_latency_verdict_falls_with_the_latency_that_moved() -> None:
    numbers: dict[str, float | None] = {
        "canary_ttft_p50_seconds": 0.2, "control_ttft_p50_seconds": 0.3,
        "canary_tpot_p50_seconds": 0.3, "control_tpot_p50_seconds": 0.3,
    }  # fmt: skip
    better = Verdict(Kind.BETTER, "LatencyBetter", "", 0.0, -0.01, 0.01, numbers=numbers)
    goal = Objective(None, None, 3.0, 10.0)
    assert less_drift(better, drift(0.0), goal).kind is Kind.BETTER
    slower = tuple(replace(p, canary=observation(600, 6.0, ttft=1.0, finished=20)) for p in drift(0.0))
    assert less_drift(better, slower, goal).reason == "Drifted"
