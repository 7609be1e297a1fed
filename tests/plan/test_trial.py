"""The trial's state machine, phase by phase, and what must hold whatever happens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import CRASHED, HEALTHY, NOW, STARTING, evidence, observation, pods, record, spec, view
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.judge.verdict import Kind
from trimtab.observe.observation import Observation
from trimtab.plan.looks import evaluation_start, windows
from trimtab.plan.record import ENDED, SERVING, Desired, Evidence, Phase, Template, Wish
from trimtab.plan.trial import PHASES, advance, desired

NOTHING, NO_WISH = Evidence(), Wish()


def step(rec, seen, ev=NOTHING, now=NOW, wish=NO_WISH, sp=None):  # type: ignore[no-untyped-def]
    return advance(sp or spec(), rec, seen, ev, wish, now)


# --- the usual way ----------------------------------------------------------------------------------------------------
def test_waits_for_the_canary_then_warms_up() -> None:
    before = step(record(), view(template=Template.BASELINE, paused=False, held=False, canary=()))
    assert before == record()
    starting = step(record(), view(canary=pods(STARTING, prefix="new")))
    assert starting.phase is Phase.STARTING and starting.held and starting.applied and starting.restarts == 1
    ready = step(starting, view())
    assert ready.phase is Phase.WARMING_UP and ready.restarts == 1


def test_not_paused_yet_is_not_yet_a_canary() -> None:
    assert step(record(), view(paused=False)).phase is Phase.STARTING


def test_measures_after_warm_up_from_that_moment() -> None:
    warm = record(Phase.WARMING_UP, NOW, held=True, applied=True)
    assert step(warm, view(), evidence(), NOW + 9).phase is Phase.WARMING_UP
    measuring = step(warm, view(), evidence(), NOW + 10)
    assert measuring.phase is Phase.MEASURING and measuring.measure_from == NOW + 10


def measuring(**changes):  # type: ignore[no-untyped-def]
    return record(Phase.MEASURING, NOW, held=True, applied=True, measure_from=NOW, metrics_seen_at=NOW + 55, **changes)


def test_a_better_canary_must_be_confirmed_on_new_data_before_promotion() -> None:
    confirming = step(measuring(), view(), evidence(0.2), NOW + 60)
    assert confirming.phase is Phase.CONFIRMING and confirming.confirm_from == NOW + 60
    assert step(confirming, view(), evidence(0.2, windows=14), NOW + 89).phase is Phase.CONFIRMING
    promoting = step(confirming, view(), evidence(0.2, windows=15), NOW + 90)
    assert promoting.phase is Phase.PROMOTING and promoting.restarts == 2
    assert promoting.verdict is not None and promoting.verdict.kind is Kind.BETTER


def test_a_lucky_first_measurement_is_not_promoted() -> None:
    confirming = record(Phase.CONFIRMING, NOW + 60, held=True, applied=True, measure_from=NOW, confirm_from=NOW + 60)
    lucky, plain = evidence(0.5), evidence(-0.3, start=NOW + 60, windows=5)
    mixed = evidence(0.5, pairs=(*lucky.pairs, *plain.pairs))
    after = step(confirming, view(), mixed, NOW + 90)
    assert after.phase is Phase.ROLLING_BACK
    assert after.verdict is not None and after.verdict.kind is not Kind.BETTER


def test_a_short_confirmation_waits_for_its_first_whole_window() -> None:
    """Windows begin with the measurement: a confirmation shorter than one may lie across two of them."""
    short = spec(rollout={"confirmationSeconds": 5})
    began = record(Phase.CONFIRMING, NOW + 63, held=True, applied=True, measure_from=NOW, confirm_from=NOW + 63)
    began = replace(began, metrics_seen_at=NOW + 63)
    assert step(began, view(), evidence(0.2, windows=11), NOW + 68, sp=short) == began
    assert step(began, view(), evidence(0.2, windows=12), NOW + 72, sp=short).phase is Phase.PROMOTING
    without = step(began, view(), evidence(0.2, windows=11), NOW + 80, sp=short)
    assert without.phase is Phase.ROLLING_BACK
    assert without.verdict is not None and without.verdict.reason == "NotConfirmed"


def test_a_worse_canary_goes_back_at_once() -> None:
    after = step(measuring(), view(), evidence(-0.3), NOW + 60)
    assert after.phase is Phase.ROLLING_BACK and after.verdict is not None and after.verdict.kind is Kind.WORSE
    assert after.restarts == 1  # the canary pod must be started anew with the baseline


def test_an_unclear_result_is_measured_longer_but_not_for_ever() -> None:
    unclear = evidence(0.0, scatter=0.2)
    longer = step(measuring(), view(), unclear, NOW + 60)
    assert longer.phase is Phase.MEASURING and longer.evaluations == 10
    assert step(longer, view(), unclear, NOW + 61) == longer
    assert step(longer, view(), unclear, NOW + 66).evaluations == 11
    end = step(measuring(evaluations=19), view(), evidence(0.0, windows=20, scatter=0.2), NOW + 120)
    assert end.phase is Phase.ROLLING_BACK and end.verdict is not None and end.verdict.kind is Kind.INCONCLUSIVE


def test_promotion_is_watched_before_it_counts() -> None:
    promoting = record(Phase.PROMOTING, NOW, held=True, applied=True)
    whole = view(paused=False, held=False, settled=True, canary=pods(HEALTHY, HEALTHY, HEALTHY), control=())
    assert step(promoting, view(paused=False)).phase is Phase.PROMOTING
    assert (
        step(promoting, view(paused=False, settled=True, control=())).phase is Phase.PROMOTING
    )  # still marked as held
    verifying = step(promoting, whole)
    assert verifying.phase is Phase.VERIFYING
    assert step(verifying, whole, evidence(), NOW + 19).phase is Phase.VERIFYING
    done = step(verifying, whole, evidence(), NOW + 20)
    assert done.phase is Phase.PROMOTED and done.finished_at == NOW + 20


def test_a_promoted_pod_that_crashes_takes_the_fleet_back() -> None:
    verifying = record(Phase.VERIFYING, NOW, held=True, applied=True)
    seen = view(paused=False, held=False, canary=pods(HEALTHY, CRASHED), control=())
    after = step(verifying, seen, evidence())
    assert after.phase is Phase.ROLLING_BACK and after.infeasible and after.restarts == 2


def test_rollback_ends_only_when_the_baseline_is_whole_and_unmarked() -> None:
    back = record(Phase.ROLLING_BACK, NOW)
    assert step(back, view(template=Template.BASELINE, paused=False, settled=False)).phase is Phase.ROLLING_BACK
    assert step(back, view(template=Template.BASELINE, paused=False, settled=True)).phase is Phase.ROLLING_BACK
    end = step(back, view(template=Template.BASELINE, paused=False, settled=True, held=False))
    assert end.phase is Phase.ROLLED_BACK


# --- trouble ----------------------------------------------------------------------------------------------------------
def test_a_crash_at_start_is_infeasible_and_goes_back_at_once() -> None:
    after = step(record(held=True, applied=True), view(canary=pods(CRASHED, prefix="new")))
    assert after.phase is Phase.ROLLING_BACK and after.infeasible
    assert after.verdict is not None and after.verdict.kind is Kind.ERROR


def test_no_canary_within_the_deadline() -> None:
    after = step(record(), view(canary=(), paused=False), now=NOW + 101)
    assert after.verdict is not None and after.verdict.reason == "NoCanary" and not after.infeasible


def test_lost_metrics_end_the_trial() -> None:
    rec = record(Phase.MEASURING, NOW, held=True, applied=True, measure_from=NOW, metrics_seen_at=NOW)
    assert step(rec, view(), Evidence(problem="connection refused"), NOW + 40).phase is Phase.MEASURING
    after = step(rec, view(), Evidence(problem="connection refused"), NOW + 41)
    assert after.verdict is not None and after.verdict.reason == "MetricsLost"
    assert "connection refused" in after.verdict.message


def test_samples_lost_by_a_restart_begin_the_measurement_anew_but_not_for_ever() -> None:
    thin = evidence(0.2, canary=observation(100, 10.0))
    again = step(measuring(), view(), thin, NOW + 60)
    assert again.phase is Phase.MEASURING and again.measure_from == NOW + 60 and again.remeasured == 1
    end = step(measuring(remeasured=2), view(), thin, NOW + 60)
    assert end.verdict is not None and end.verdict.reason == "MetricsMissing"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (view(paused=False), "ExternalChange"),
        (view(control=()), "ControlLost"),
        (view(canary=()), "CanaryLost"),
        (view(replicas=5), "ReplicasChanged"),
        (view(template=Template.BASELINE), "Reverted"),
    ],
)
def test_lost_footing_while_serving_goes_back_without_blame(seen, reason) -> None:  # type: ignore[no-untyped-def]
    after = step(measuring(), seen, evidence(), NOW + 30)
    assert after.phase is Phase.ROLLING_BACK
    assert after.verdict is not None and (after.verdict.kind, after.verdict.reason) == (Kind.INCONCLUSIVE, reason)


def test_a_foreign_template_is_released_not_overwritten() -> None:
    foreign = view(template=Template.FOREIGN)
    assert desired(Phase.MEASURING, Template.FOREIGN) is Desired.RELEASE
    after = step(measuring(), foreign, evidence(), NOW + 30)
    assert after.phase is Phase.ROLLING_BACK and desired(after.phase, Template.FOREIGN) is Desired.RELEASE
    end = step(after, view(template=Template.FOREIGN, held=False, paused=False))
    assert end.phase is Phase.CANCELLED and end.verdict is not None and end.verdict.reason == "ExternalChange"


def test_a_deleted_target_ends_the_trial() -> None:
    assert step(measuring(), view(template=Template.MISSING), evidence(), NOW + 30).phase is Phase.CANCELLED


def test_a_revert_before_the_pause_is_not_fought() -> None:
    applied = record(applied=True)
    after = step(applied, view(template=Template.BASELINE, paused=False, canary=()))
    assert after.verdict is not None and after.verdict.reason == "Reverted"


# --- approval ---------------------------------------------------------------------------------------------------------
def test_approval() -> None:
    waiting = record(Phase.AWAITING_APPROVAL)
    untouched = view(template=Template.BASELINE, paused=False, held=False)
    assert step(waiting, untouched) == waiting
    assert desired(Phase.AWAITING_APPROVAL, Template.BASELINE) is Desired.KEEP
    assert step(waiting, untouched, wish=Wish(approved=True)).phase is Phase.STARTING
    assert step(waiting, untouched, wish=Wish(rejected=True, approved=True)).phase is Phase.CANCELLED
    assert step(waiting, untouched, wish=Wish(stop="suspended")).phase is Phase.CANCELLED


# --- what always holds ------------------------------------------------------------------------------------------------
healths = st.sampled_from([HEALTHY, STARTING, CRASHED])
views = st.builds(
    view,
    template=st.sampled_from(list(Template)),
    paused=st.booleans(),
    held=st.booleans(),
    replicas=st.sampled_from([3, 3, 3, 4]),
    settled=st.booleans(),
    canary=st.lists(healths, max_size=3).map(lambda h: pods(*h, prefix="new")),
    control=st.lists(healths, max_size=3).map(lambda h: pods(*h)),
)
evidences = st.one_of(st.just(NOTHING), st.sampled_from([-0.3, 0.0, 0.01, 0.3]).map(lambda g: evidence(g, windows=15)))
wishes = st.sampled_from([NO_WISH, NO_WISH, Wish(stop="suspended"), Wish(approved=True)])
walks = st.lists(st.tuples(views, evidences, wishes, st.sampled_from([1.0, 15.0, 70.0])), min_size=1, max_size=30)


@settings(max_examples=300, deadline=None)
@given(walks, st.sampled_from([Phase.STARTING, Phase.AWAITING_APPROVAL]))
def test_no_walk_promotes_without_a_better_verdict_or_touches_a_foreign_template(walk, first) -> None:  # type: ignore[no-untyped-def]
    rec, now = record(first), NOW
    for seen, ev, wish, dt in walk:
        now += dt
        after = advance(spec(), rec, seen, ev, wish, now)
        if rec.phase in ENDED:
            assert after == rec
        if after.phase is Phase.PROMOTING and rec.phase is not Phase.PROMOTING:
            assert rec.phase in (Phase.MEASURING, Phase.CONFIRMING)
            assert after.verdict is not None and after.verdict.kind is Kind.BETTER
        if wish.stop and rec.phase not in ENDED:
            assert after.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.CANCELLED)
        if after.phase is Phase.ROLLED_BACK and rec.phase is not Phase.ROLLED_BACK:
            assert seen.template is Template.BASELINE and seen.settled and not seen.held
        if after.phase in ENDED:
            assert after.finished_at is not None and (after.phase is Phase.PROMOTED or after.verdict is not None)
        assert after.restarts >= rec.restarts
        wanted = desired(after.phase, seen.template)
        if seen.template in (Template.FOREIGN, Template.MISSING):
            assert wanted in (Desired.KEEP, Desired.RELEASE)
        if after.phase in SERVING and seen.template is not Template.FOREIGN:
            assert wanted is Desired.KEEP
        rec = after


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(PHASES)))
def test_every_phase_ends_when_the_target_is_healthy_and_time_passes(phase) -> None:  # type: ignore[no-untyped-def]
    """No phase waits for ever: with a target that does what is desired, each one ends."""
    rec, now = record(phase, held=True, applied=True, measure_from=NOW), NOW
    for _ in range(400):
        now += 5
        wanted = desired(rec.phase, Template.CANDIDATE)
        seen = {
            Desired.RESTORE: view(template=Template.BASELINE, paused=False, held=False, settled=True, canary=()),
            Desired.PROMOTE: view(paused=False, held=False, settled=True, canary=pods(*[HEALTHY] * 3), control=()),
        }.get(wanted, view())
        if rec.phase is Phase.AWAITING_APPROVAL:
            seen = view(template=Template.BASELINE, paused=False, held=False, canary=())
        rec = advance(spec(), rec, seen, evidence(0.2, windows=15), Wish(approved=True), now)
        if rec.ended:
            return
    raise AssertionError(f"{phase} never ended, stuck in {rec.phase}: {rec.message}")


def test_windows_tile_the_measurement() -> None:
    spans = windows(spec(), 100.0, 161.0)
    assert len(spans) == 10 and spans[0] == (100.0, 106.0) and spans[-1] == (154.0, 160.0)


def test_a_measurement_is_looked_at_whenever_a_window_is_full_from_the_fifth_on_and_at_its_end() -> None:
    rec = measuring()
    assert evaluation_start(spec(), rec, NOW + 29) is None
    assert evaluation_start(spec(), rec, NOW + 30) == NOW
    assert evaluation_start(spec(), measuring(evaluations=5), NOW + 35) is None
    assert evaluation_start(spec(), measuring(evaluations=5), NOW + 36) == NOW
    short = spec(rollout={"maxMeasurementSeconds": 60, "measurementSeconds": 60})
    assert evaluation_start(short, measuring(evaluations=10), NOW + 60) == NOW


def test_what_is_clear_ends_the_measurement_at_the_first_look() -> None:
    better = step(measuring(), view(), evidence(0.4, windows=5, canary=wide(8400), control=wide(6000)), NOW + 30)
    assert better.phase is Phase.CONFIRMING
    nothing = step(measuring(), view(), evidence(0.0, windows=9, canary=wide(6000), control=wide(6000)), NOW + 54)
    assert nothing.phase is Phase.ROLLING_BACK
    assert nothing.verdict is not None and (nothing.verdict.kind, nothing.verdict.final) == (Kind.INCONCLUSIVE, True)


def wide(tokens: float) -> Observation:
    return observation(tokens, 60.0, finished=200)
