"""The verdict that may be asked for after every window: error rate, power, what decides and why, what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.judge_world import World, draw

from trimtab.judge.measures import goodput, saturated
from trimtab.judge.objective import Objective
from trimtab.judge.stats import always_valid
from trimtab.judge.verdict import Kind, Verdict, evaluate
from trimtab.judge.windows import Pair, join

GOAL = Objective()
SLO = replace(GOAL, ttft_seconds=1.0)
#: engines whose windows scatter by 2%, so that a few seeds show what is meant
STEADY = World(own_noise=0.02, pod_bias=0.0, start_bias=0.0, rho=0.0)


def verdict(world: World, objective: Objective, seed: int = 0, windows: int = 30) -> Verdict:
    trial = draw(world, seed)
    return evaluate(trial.pairs[:windows], *trial.totals(windows), objective, trial.before)


def ever(world: World, objective: Objective, seed: int) -> set[Kind]:
    """All kinds that were said, looking after every sixth window."""
    trial = draw(world, seed)
    looks = range(6, world.windows + 1, 6)
    return {evaluate(trial.pairs[:n], *trial.totals(n), objective, trial.before).kind for n in looks}


@pytest.mark.parametrize("is_saturated", [True, False])
def test_equal_arms_with_pods_that_differ_are_seldom_called_better_at_any_look(is_saturated: bool) -> None:
    """2,000 trials with a look after every window: benchmarks/judge.py."""
    said = [ever(World(saturated=is_saturated, rho=0.6), SLO, seed) for seed in range(16)]
    assert sum(Kind.BETTER in kinds for kinds in said) <= 2


def test_without_a_measurement_before_a_pods_own_speed_is_taken_for_a_gain_only_if_pods_are_said_to_be_equal() -> None:
    """A pod that is always 8% faster."""

    def ours(pair: Pair) -> Pair:
        return replace(pair, canary=replace(pair.canary, generated_tokens=1.08 * (pair.canary.generated_tokens or 0),
                                            useful_tokens=1.08 * (pair.canary.useful_tokens or 0)))  # fmt: skip

    trial = draw(STEADY, 0)
    pairs, before = [ours(p) for p in trial.pairs], [ours(p) for p in trial.before]
    canary, control = pairs[0].canary, pairs[0].control
    for p in pairs[1:]:
        canary, control = join(canary, p.canary), join(control, p.control)
    known = evaluate(pairs, canary, control, GOAL, before)
    unknown = evaluate([replace(p, controls=()) for p in pairs], canary, control, GOAL)
    trusting = evaluate(pairs, canary, control, replace(GOAL, start_variation_percent=0, pod_variation_percent=0))
    assert known.kind is Kind.INCONCLUSIVE and 0.07 < (known.numbers["bias"] or 0) < 0.085
    assert (unknown.kind, unknown.reason) == (Kind.INCONCLUSIVE, "AnotherStartNeeded")
    assert "another start" not in known.message and "starts of the same settings" in unknown.message
    assert trusting.kind is Kind.BETTER


@pytest.mark.parametrize(("effect", "windows", "least"), [(1.2, 10, 8), (1.1, 20, 8), (1.05, 30, 7)])
def test_a_real_gain_of_a_saturated_target_is_seen(effect: float, windows: int, least: int) -> None:
    world = replace(STEADY, effect=effect, pod_bias=0.03, start_bias=0.005)
    found = [verdict(world, GOAL, seed, windows) for seed in range(10)]
    assert sum(v.reason == "GoodputBetter" for v in found) >= least
    assert all("requests wait, so the target is saturated" in v.message for v in found)
    assert all(v.gain_low is not None and v.gain_low < effect - 1 < (v.gain_high or 0) for v in found[:5])


def test_where_nothing_waits_attainment_decides_and_the_arrivals_noise_does_not() -> None:
    better = [verdict(World(effect=1.12, saturated=False, pod_bias=0.0), SLO, seed) for seed in range(6)]
    assert sum(v.reason == "AttainmentBetter" for v in better) >= 5
    assert all("judged by SLO attainment" in v.message for v in better)
    assert all(v.gain is not None and 0.05 < v.gain < 0.2 for v in better)
    worse = [verdict(World(effect=0.85, saturated=False, pod_bias=0.0), SLO, seed) for seed in range(6)]
    assert sum(v.kind is Kind.WORSE for v in worse) >= 5


def test_where_both_arms_always_meet_the_slo_latency_decides() -> None:
    v = verdict(World(saturated=False), replace(GOAL, ttft_seconds=100.0))
    assert "so latency decides" in v.message
    assert "so goodput is what arrives" in verdict(World(saturated=False), GOAL).message


def test_a_trial_that_can_no_longer_gain_says_so() -> None:
    v = verdict(replace(STEADY, windows=60, effect=0.99), replace(GOAL, min_gain_percent=10.0), windows=60)
    assert (v.kind, v.reason) == (Kind.INCONCLUSIVE, "NoGain") and "10.0% is ruled out" in v.message


@pytest.mark.parametrize(
    ("limits", "fields", "said"),
    [
        ({"max_truncated_percent": 5.0}, {"truncated": 400.0, "finished": 1800.0}, "ended at the token limit"),
        ({"max_error_percent": 1.0}, {"http_errors": 90.0, "requests": 1800.0}, "failed"),
        ({"ttft_p99_limit_seconds": 0.5}, {}, "p99 TTFT of the canary is above 0.5 s"),
    ],
)
def test_a_hard_limit_outweighs_any_gain(limits: dict[str, float], fields: dict[str, float], said: str) -> None:
    trial = draw(replace(STEADY, effect=1.3), 0)
    canary, control = trial.totals(30)
    v = evaluate(trial.pairs, replace(canary, **fields), control, replace(GOAL, **limits), trial.before)  # type: ignore[arg-type]
    assert (v.kind, v.reason) == (Kind.WORSE, "LimitBroken") and said in v.message
    within = evaluate(trial.pairs, canary, control, replace(GOAL, max_error_percent=1.0), trial.before)
    assert within.kind is Kind.BETTER


def test_the_weights_of_latency_are_the_users() -> None:
    world = replace(STEADY, saturated=False, effect=1.1)
    plain, heavy = (verdict(world, replace(SLO, ttft_weight=w)) for w in (0.1, 1.0))
    assert plain.score is not None and heavy.score is not None and heavy.score > plain.score + 0.05


def test_a_windows_goodput_is_its_generated_tokens_unless_much_is_wasted() -> None:
    def spread(world: World) -> float:
        trial = draw(world, 1)
        found = goodput(trial.pairs, (), GOAL)
        assert found is not None
        interval = always_valid(found.values, 0.95)
        assert interval is not None
        return interval.high - interval.low

    assert spread(replace(STEADY, aborted=0.0)) < 0.4 * spread(replace(STEADY, aborted=0.3))


def test_an_unknown_queue_is_not_an_empty_one() -> None:
    pairs = draw(World(), 0).pairs
    assert saturated(pairs) is True
    blind = [replace(p, canary=replace(p.canary, waiting=None)) for p in pairs]
    assert saturated(blind) is None
    assert saturated(draw(World(saturated=False), 0).pairs) is False


def test_a_gain_that_one_start_cannot_show_is_shown_by_several() -> None:
    """The same pod, known from before, started again and again: one start leaves more open than the gain."""
    world, goal = replace(STEADY, effect=1.05), replace(GOAL, start_variation_percent=3.0)
    first = verdict(world, goal, seed=1)
    assert (first.kind, first.reason, first.final) == (Kind.INCONCLUSIVE, "AnotherStartNeeded", True)
    assert first.start is not None and first.start.effect == pytest.approx(0.05, abs=0.02)
    trial = draw(world, 2)
    found = [evaluate(trial.pairs, *trial.totals(30), goal, trial.before, earlier=[first.start] * n) for n in (0, 1, 8)]
    assert [v.kind for v in found] == [Kind.INCONCLUSIVE, Kind.INCONCLUSIVE, Kind.BETTER]
    assert "over 9 starts" in found[2].message


def test_equal_arms_end_before_the_time_is_up_where_more_minutes_cannot_help() -> None:
    """A new pod in another's place: what is not known of it is more than what the windows leave open."""
    trial = draw(STEADY, 0)
    blind = {"ttft_seconds": None, "tpot_seconds": None}
    pairs = [replace(p, canary=replace(p.canary, **blind)) for p in trial.pairs]  # type: ignore[arg-type]
    late, early = (evaluate(pairs[:n], *trial.totals(n), GOAL, trial.before, own=False) for n in (20, 6))
    assert (late.kind, late.final, early.final) == (Kind.INCONCLUSIVE, True, False)
