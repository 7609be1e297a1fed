"""Which minutes and pods are compared, and what earlier starts and old processes mean for a trial."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import HEALTHY, NOW, evidence, observation, record, spec, view

from trimtab.engine.settings import Configuration
from trimtab.errors import SpecError
from trimtab.judge.bias import Start
from trimtab.judge.verdict import Kind, Verdict
from trimtab.judge.windows import Pair
from trimtab.observe.observation import Histogram
from trimtab.plan.looks import (
    AGED_SECONDS,
    age_remark,
    before_spans,
    compared,
    earlier_starts,
    predecessor,
    rest_seconds,
    undisturbed_since,
)
from trimtab.plan.record import Evidence, Peer, Phase, PodView, TrialKind, TrialRecord, Wish
from trimtab.plan.trial import advance, objective


def pod(name: str, place: str = "", started_at: float | None = None) -> PodView:
    return PodView(name, "10.0.0.1", HEALTHY, place, started_at)


# --- before the trial -------------------------------------------------------------------------------------------------
def test_the_pods_are_compared_over_the_warm_minutes_before_the_trial_and_no_longer_than_a_measurement() -> None:
    young = record(started_at=NOW, undisturbed_since=NOW - 20)
    assert before_spans(spec(), young) == [(NOW - 18, NOW - 12), (NOW - 12, NOW - 6), (NOW - 6, NOW)]
    old = record(started_at=NOW, undisturbed_since=NOW - 10_000)
    assert before_spans(spec(), old)[0][0] == NOW - 120  # maxMeasurementSeconds
    assert before_spans(spec(), record()) == []
    assert before_spans(spec(rollout={"baselineSeconds": 0}), old) == []


def test_a_trial_waits_until_the_pods_are_warm_and_compared() -> None:
    assert rest_seconds(spec()) == 10 + 60
    assert rest_seconds(spec(), again=True) == 10 + spec().rollout.max_measurement_seconds
    assert rest_seconds(spec(rollout={"baselineSeconds": 100})) == 110
    assert rest_seconds(spec(rollout={"baselineSeconds": 0})) == 0
    assert undisturbed_since(spec(), 34, NOW) == NOW - 24
    assert undisturbed_since(spec(), 5, NOW) == NOW


def test_a_canary_in_the_place_of_the_pod_before_it_has_its_difference_and_one_elsewhere_has_not() -> None:
    peers = (Peer("a", "n1"), Peer("b", "n2"), Peer("c", "n3"))
    control = (pod("a", "n1"), pod("b", "n2"))
    same = view(canary=(pod("x", "n3"),), control=control)
    assert predecessor(record(peers=peers), same) == (Peer("c", "n3"), True)
    elsewhere = view(canary=(pod("x", "n9"),), control=control)
    assert predecessor(record(peers=peers), elsewhere) == (Peer("c", "n3"), False)
    added = view(canary=(pod("x", "n3"),), control=(*control, pod("c", "n3")))
    assert predecessor(record(peers=peers), added) == (None, False)
    unknown = view(canary=(pod("x"),), control=(pod("a"), pod("b")))
    assert predecessor(record(peers=tuple(Peer(p.name) for p in peers)), unknown) == (Peer("c"), False)


def test_a_policy_is_tried_in_a_pod_that_stays() -> None:
    seen = view(canary=(pod("x", "n3"),), control=(pod("a", "n1"),))
    assert predecessor(record(kind=TrialKind.POLICY), seen) == (Peer("x", "n3"), True)


# --- with which pods --------------------------------------------------------------------------------------------------
def test_a_fresh_canary_is_compared_with_young_pods_where_there_are_two() -> None:
    fresh, old = NOW - 600, NOW - AGED_SECONDS - 1
    control = (pod("a", started_at=fresh), pod("b", started_at=old), pod("c", started_at=fresh))
    assert [p.name for p in compared(record(), view(control=control))] == ["a", "c"]
    assert len(compared(record(), view(control=control[:2]))) == 2
    assert len(compared(record(kind=TrialKind.POLICY), view(control=control))) == 3
    assert len(compared(record(), view(control=tuple(pod(n) for n in "abc")))) == 3


def test_a_fresh_canary_beside_old_processes_only_is_said() -> None:
    aged = view(control=(pod("a", started_at=NOW - 50 * 3600), pod("b", started_at=NOW - 52 * 3600)))
    assert "51 h" in age_remark(record(), aged)
    assert age_remark(record(), view(control=(pod("a", started_at=NOW - 60), pod("b", started_at=NOW - 9e5)))) == ""
    assert age_remark(record(kind=TrialKind.POLICY), aged) == ""
    measuring = record(Phase.MEASURING, NOW, held=True, applied=True, measure_from=NOW, metrics_seen_at=NOW + 55)
    after = advance(spec(), measuring, aged, evidence(0.4), Wish(), NOW + 60)
    assert after.verdict is not None and "the fresh start may be part of a gain" in after.verdict.message


# --- warm-up ----------------------------------------------------------------------------------------------------------
def warming(seconds: float, hits: list[float], **changes: object) -> TrialRecord:
    rec = record(Phase.WARMING_UP, NOW, held=True, applied=True, metrics_seen_at=NOW + seconds - 1, **changes)
    pairs = []
    for i, hit in enumerate(hits):
        arms = (replace(observation(), prefix_queries=100.0, prefix_hits=100 * h) for h in (hit, 0.8))
        pairs.append(Pair(NOW + 6 * i, NOW + 6 * i + 6, *arms))
    seen = Evidence(metrics_ok=True, pairs=pairs)
    slow = spec(rollout={"warmupSeconds": 24})
    return advance(slow, rec, view(), seen, Wish(), NOW + seconds)


def test_a_canary_is_measured_once_it_has_settled_and_not_before_warmup_seconds() -> None:
    assert warming(23, [0.8] * 3).phase is Phase.WARMING_UP
    assert warming(24, [0.8] * 4).phase is Phase.MEASURING
    cold = warming(24, [0.0, 0.2, 0.4, 0.6])
    assert (cold.phase, cold.evaluations) == (Phase.WARMING_UP, 4) and "hit ratio" in cold.message
    assert warming(27, [0.0, 0.2, 0.4, 0.6], evaluations=4).phase is Phase.WARMING_UP
    assert warming(48, [0.0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8], evaluations=7).phase is Phase.MEASURING


def test_a_canary_that_never_settles_is_measured_all_the_same() -> None:
    late = warming(72, [0.05 * i for i in range(12)], evaluations=11)
    assert late.phase is Phase.MEASURING and "hit ratio" in late.message


# --- several starts ---------------------------------------------------------------------------------------------------
NUMBERS = {"effect": 0.05, "effect_error": 0.01, "start_sd": 0.02, "shared_sd": 0.0, "minutes_help": 0.0}


def ended(number: int, reason: str, **changes: object) -> TrialRecord:
    verdict = Verdict(Kind.INCONCLUSIVE, reason, "", numbers=dict(NUMBERS))
    return replace(record(Phase.ROLLED_BACK), number=number, verdict=verdict, **changes)  # type: ignore[arg-type]


def test_starts_of_the_same_configuration_against_the_same_baseline_are_taken_together() -> None:
    this = record(number=9)
    trials = [
        ended(1, "AnotherStartNeeded"), ended(2, "WithinNoise"),
        ended(3, "AnotherStartNeeded", configuration=Configuration.of(max_num_seqs=64)),
        ended(4, "AnotherStartNeeded", baseline=Configuration.of(max_num_seqs=64)), this,
    ]  # fmt: skip
    assert earlier_starts(this, trials) == (Start(0.05, 0.01, 0.02, 0.0),)


def test_a_verdict_without_the_numbers_of_a_start_gives_none() -> None:
    old = ended(1, "AnotherStartNeeded")
    assert old.verdict is not None
    bare = replace(old, verdict=replace(old.verdict, numbers={"effect": 0.05}))
    assert earlier_starts(record(number=2), [bare]) == ()


def test_earlier_starts_make_a_gain_clear_that_this_one_alone_does_not() -> None:
    measuring = record(Phase.MEASURING, NOW, held=True, applied=True, measure_from=NOW, metrics_seen_at=NOW + 55)
    uneven = spec(objective={"variation": {"startPercent": 4, "podPercent": 0.1}})
    this = evidence(0.07, before=evidence(0.0).pairs, own=True)
    alone = advance(uneven, measuring, view(), this, Wish(), NOW + 60)
    assert alone.phase is Phase.ROLLING_BACK
    assert alone.verdict is not None and alone.verdict.reason == "AnotherStartNeeded"
    starts = (Start(math.log(1.07), 0.005, 0.04, 0.005),) * 8
    more = advance(uneven, measuring, view(), replace(this, earlier=starts), Wish(), NOW + 60)
    assert more.phase is Phase.CONFIRMING and more.verdict is not None and "over 9 starts" in more.verdict.message


# --- what a person wants ----------------------------------------------------------------------------------------------
def test_weights_limits_and_variation_reach_the_judge() -> None:
    wanted = spec(objective={
        "weights": {"ttft": 0.5}, "limits": {"ttftP99Seconds": 2, "errorPercent": 1, "truncatedPercent": 5},
        "variation": {"podPercent": 8},
    })  # fmt: skip
    goal = objective(wanted)
    assert (goal.ttft_weight, goal.tpot_weight, goal.ttft_p99_limit_seconds) == (0.5, 0.1, 2)
    assert (goal.max_error_percent, goal.max_truncated_percent) == (1, 5)
    assert (goal.pod_variation_percent, goal.start_variation_percent) == (8, 1)
    usual = objective(spec())
    assert usual.ttft_p99_limit_seconds is usual.max_error_percent is usual.max_truncated_percent is None


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"objective": {"weights": {"ttft": -1}}}, "spec.objective.weights.ttft"),
        ({"objective": {"limits": {"errorPercent": 101}}}, "spec.objective.limits.errorPercent"),
        ({"objective": {"variation": {"podPercent": -1}}}, "spec.objective.variation.podPercent"),
        ({"rollout": {"maxWarmupSeconds": 5}}, "spec.rollout"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(section: dict[str, dict[str, object]], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**section)
    assert field in str(caught.value)


def test_a_hard_limit_condemns_a_canary_that_gains() -> None:
    def slow(o: Histogram | None) -> Histogram:
        assert o is not None
        return Histogram(o.bounds, (*(0.0 for _ in o.counts[:-1]), o.count), 9 * o.count)

    good = evidence(0.5)
    assert good.canary is not None
    bad = replace(good, canary=replace(good.canary, ttft_seconds=slow(good.canary.ttft_seconds)))
    limited = spec(objective={"limits": {"ttftP99Seconds": 1}})
    measuring = record(Phase.MEASURING, NOW, held=True, applied=True, measure_from=NOW, metrics_seen_at=NOW + 55)
    after = advance(limited, measuring, view(), bad, Wish(), NOW + 60)
    assert after.verdict is not None and (after.verdict.kind, after.verdict.reason) == (Kind.WORSE, "LimitBroken")
