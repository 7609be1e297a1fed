"""What a verdict means by kind of trial, alone and through the state machine."""

from __future__ import annotations

import pytest
from builders import NOW, evidence, record, spec, view

from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.accept import Step, accept
from trimtab.plan.record import Evidence, Phase, TrialKind, Wish
from trimtab.plan.summary import tally
from trimtab.plan.trial import advance

BETTER = Verdict(Kind.BETTER, "GoodputBetter", "better")
NOISE = Verdict(Kind.INCONCLUSIVE, "WithinNoise", "the same")
FEW = Verdict(Kind.INCONCLUSIVE, "NotEnoughRequests", "few")
MISSING = Verdict(Kind.INCONCLUSIVE, "MetricsMissing", "none")
WORSE = Verdict(Kind.WORSE, "GoodputWorse", "worse")
ERROR = Verdict(Kind.ERROR, "CanaryServedNothing", "nothing")


@pytest.mark.parametrize("kind", [TrialKind.TUNE, TrialKind.POLICY])
@pytest.mark.parametrize(
    ("verdict", "last", "confirm", "step"),
    [
        (BETTER, False, True, Step.CONFIRM),
        (BETTER, True, False, Step.PROMOTE),
        (NOISE, False, True, Step.WAIT),
        (NOISE, True, True, Step.ROLL_BACK),
        (WORSE, False, True, Step.ROLL_BACK),
        (ERROR, False, True, Step.ROLL_BACK),
    ],
)
def test_a_change_needs_a_gain(kind: TrialKind, verdict: Verdict, last: bool, confirm: bool, step: Step) -> None:
    assert accept(kind, verdict, last=last, confirm=confirm) == (step, verdict)


@pytest.mark.parametrize(
    ("verdict", "last", "seen", "step", "reason"),
    [
        (BETTER, False, True, Step.PROMOTE, "NothingWorse"),
        (NOISE, False, True, Step.PROMOTE, "NothingWorse"),
        (NOISE, False, False, Step.WAIT, "WithinNoise"),
        (NOISE, True, False, Step.ROLL_BACK, "MiddlewareNotSeen"),
        (FEW, False, True, Step.WAIT, "NotEnoughRequests"),
        (FEW, True, True, Step.PROMOTE, "NothingWorse"),
        (MISSING, False, True, Step.WAIT, "MetricsMissing"),
        (MISSING, True, True, Step.ROLL_BACK, "MetricsMissing"),
        (WORSE, False, True, Step.ROLL_BACK, "GoodputWorse"),
        (ERROR, False, True, Step.ROLL_BACK, "CanaryServedNothing"),
    ],
)
def test_an_install_needs_to_be_seen_and_nothing_worse(
    verdict: Verdict, last: bool, seen: bool, step: Step, reason: str
) -> None:
    found, kept = accept(TrialKind.INSTALL, verdict, last=last, confirm=True, seen=seen)
    assert (found, kept.reason) == (step, reason)


def after_measuring(kind: TrialKind, gain: float, seen: bool, seconds: float = 60):  # type: ignore[no-untyped-def]
    measuring = record(
        Phase.MEASURING,
        NOW,
        held=True,
        applied=True,
        measure_from=NOW,
        metrics_seen_at=NOW + seconds - 5,
        kind=kind,
        restarts=1,
    )
    found: Evidence = evidence(gain, windows=int(seconds / 6), middleware_seen=seen)
    return advance(spec(), measuring, view(), found, Wish(), NOW + seconds)


def test_an_install_without_a_gain_is_promoted_without_a_second_measurement() -> None:
    promoting = after_measuring(TrialKind.INSTALL, 0.0, seen=True)
    assert promoting.phase is Phase.PROMOTING and promoting.restarts == 3
    assert promoting.verdict.reason == "NothingWorse"


def test_an_install_that_makes_it_worse_or_is_not_seen_is_rolled_back() -> None:
    assert after_measuring(TrialKind.INSTALL, -0.4, seen=True).phase is Phase.ROLLING_BACK
    assert after_measuring(TrialKind.INSTALL, 0.0, seen=False).phase is Phase.MEASURING
    unseen = after_measuring(TrialKind.INSTALL, 0.0, seen=False, seconds=120)
    assert unseen.phase is Phase.ROLLING_BACK and unseen.verdict.kind is Kind.ERROR


def test_a_policy_restarts_nothing() -> None:
    confirming = after_measuring(TrialKind.POLICY, 0.3, seen=False)
    assert confirming.phase is Phase.CONFIRMING
    promoting = advance(spec(), confirming, view(), evidence(0.3, windows=15), Wish(), NOW + 90)
    assert promoting.phase is Phase.PROMOTING and promoting.restarts == 1
    stopped = advance(spec(), promoting, view(), evidence(), Wish(stop="stop"), NOW + 91)
    assert stopped.phase is Phase.ROLLING_BACK and stopped.restarts == 1


def test_an_install_is_no_gain_of_the_tuner() -> None:
    won = record(
        Phase.PROMOTED, kind=TrialKind.INSTALL, verdict=Verdict(Kind.INCONCLUSIVE, "NothingWorse", "", gain=0.2)
    )
    counts = tally([won])
    assert (counts.promoted, counts.inconclusive, counts.best_gain, counts.best) == (1, 0, None, "")
