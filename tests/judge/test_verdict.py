"""The verdict by simulation. Seeds are fixed; the shares asserted here are those of docstrings and reports."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trimtab.judge.verdict import Kind, Objective, Verdict, evaluate
from trimtab.judge.windows import Pair
from trimtab.observe.observation import Histogram, Observation, combine

#: pods and starts that differ in nothing: what the windows alone say
OBJECTIVE = Objective(start_variation_percent=0, pod_variation_percent=0)
SLO = replace(OBJECTIVE, ttft_seconds=1.0, tpot_seconds=0.06)
Experiments = Callable[[Any, int], Any]


def verdict(e: Any, objective: Objective = OBJECTIVE) -> Verdict:
    return evaluate(e.pairs, e.canary, e.control, objective)


def kinds(experiment: Experiments, load: Any, runs: int, objective: Objective = OBJECTIVE) -> Counter[Kind]:
    return Counter(verdict(experiment(load, seed), objective).kind for seed in range(runs))


@pytest.mark.parametrize("objective", [OBJECTIVE, SLO])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_equal_arms_are_rarely_called_better(
    experiment: Experiments, load: Any, rho: float, objective: Objective
) -> None:
    """Strong autocorrelation cannot be told from chance in 6 windows: there the rate is a little above 5%."""
    loads = [load(windows=w, rho=rho, controls=1) for w in (6, 10, 20)]
    better = sum(kinds(experiment, each, 80, objective)[Kind.BETTER] for each in loads)
    assert better / 240 <= (0.05 if rho < 0.5 else 0.07)


@pytest.mark.parametrize(
    ("change", "windows", "least"),
    [
        ({"effect": 1.2}, 30, 0.8),
        ({"effect": 1.3}, 30, 0.9),
        ({"effect": 1.1}, 60, 0.55),
        ({"ttft": 0.6}, 20, 0.85),
        ({"tpot": 0.8}, 20, 0.85),
    ],
)
def test_a_real_gain_is_seen(
    experiment: Experiments, load: Any, change: dict[str, float], windows: int, least: float
) -> None:
    seen = kinds(experiment, load(windows=windows, **change), 40)
    assert seen[Kind.BETTER] / 40 >= least
    assert seen[Kind.WORSE] / 40 <= 0.05


def test_a_gain_on_an_unsaturated_target_is_one_of_latency(experiment: Experiments, load: Any) -> None:
    v = verdict(experiment(load(windows=30, ttft=0.5), 1))
    assert (v.kind, v.reason) == (Kind.BETTER, "LatencyBetter")
    assert v.score is not None and v.score > 0


@pytest.mark.parametrize(("effect", "kind"), [(0.4, Kind.WORSE), (1.5, Kind.BETTER)])
def test_in_a_queue_where_all_are_late_faster_tokens_do_not_make_up_for_fewer(
    experiment: Experiments, load: Any, effect: float, kind: Kind
) -> None:
    """Found in a dry run: 4 sequences instead of 16 halved TPOT and took 70% of the throughput; goodput was 0 and 0."""
    late = replace(OBJECTIVE, ttft_seconds=0.0005, tpot_seconds=None)
    e = experiment(load(windows=20, effect=effect, tpot=0.8), 1)
    pairs = [
        replace(p, canary=replace(p.canary, waiting=40.0), control=replace(p.control, waiting=40.0)) for p in e.pairs
    ]
    found = evaluate(pairs, e.canary, e.control, late)
    assert found.kind is kind and "useful tokens/s" in found.message


def test_the_score_follows_goodput_and_latency(experiment: Experiments, load: Any) -> None:
    def mean(**change: float) -> float:
        scores = [verdict(experiment(load(windows=20, **change), s)).score for s in range(20)]
        return sum(s for s in scores if s is not None) / len(scores)

    assert mean(effect=0.8) < mean(ttft=2.0) < mean() < mean(ttft=0.5) < mean(effect=1.2)


def test_order_does_not_matter_and_a_window_counts_once(experiment: Experiments, load: Any) -> None:
    e = experiment(load(windows=12, effect=1.15), 3)
    expected = verdict(e)
    shuffled = [*e.pairs, e.pairs[4]]
    random.Random(0).shuffle(shuffled)
    assert evaluate(shuffled, e.canary, e.control, OBJECTIVE) == expected


@pytest.mark.parametrize("change", [{"effect": 1.4}, {"effect": 0.6}, {"ttft": 0.4}, {"tpot": 1.8}, {}])
def test_swapped_arms_give_the_opposite(experiment: Experiments, load: Any, change: dict[str, float]) -> None:
    opposite = {Kind.BETTER: Kind.WORSE, Kind.WORSE: Kind.BETTER, Kind.INCONCLUSIVE: Kind.INCONCLUSIVE}
    for seed in range(5):
        e = experiment(load(windows=30, controls=1, **change), seed)
        there, back = verdict(e), verdict(e.swapped())
        assert there.score is not None and back.score == pytest.approx(-there.score)
        if change:
            assert back.kind is opposite[there.kind], (there, back)


def test_worse_latency_is_not_bought_by_goodput(experiment: Experiments, load: Any) -> None:
    v = verdict(experiment(load(windows=30, effect=1.3, ttft=3.0), 0))
    assert (v.kind, v.reason) == (Kind.WORSE, "LatencyWorse")


def test_a_small_sure_gain_is_not_worth_a_rollout(experiment: Experiments, load: Any) -> None:
    e = experiment(load(windows=30, rate=20, noise=0.02, effect=1.13), 0)
    v = verdict(e, replace(OBJECTIVE, min_gain_percent=15))
    assert (v.kind, v.reason) == (Kind.INCONCLUSIVE, "GainTooSmall")
    assert verdict(e, replace(OBJECTIVE, min_gain_percent=50)).reason == "NoGain"


def test_thin_windows_are_joined_not_dropped(experiment: Experiments, load: Any) -> None:
    v = verdict(experiment(load(windows=60, rate=0.1, effect=1.0), 2))
    assert 5 <= (v.numbers["windows"] or 0) < 30


def test_too_little_is_inconclusive_with_its_reason(experiment: Experiments, load: Any) -> None:
    assert verdict(experiment(load(windows=4), 0)).reason == "NotEnoughWindows"
    assert verdict(experiment(load(windows=10, rate=0.02), 0)).reason == "NotEnoughRequests"
    e = experiment(load(windows=10, effect=1.5), 0)
    assert evaluate(e.pairs, None, e.control, OBJECTIVE).reason == "MetricsMissing"


def test_unknown_is_never_a_pass(experiment: Experiments, load: Any) -> None:
    e = experiment(load(windows=10, effect=2.0), 0)
    blind = [replace(p, canary=replace(p.canary, useful_tokens=None, finished=None)) for p in e.pairs]
    assert evaluate(blind, e.canary, e.control, OBJECTIVE).reason == "MetricsMissing"
    no_latency = [replace(p, canary=replace(p.canary, ttft_seconds=None)) for p in e.pairs]
    v = evaluate(no_latency, e.canary, e.control, SLO)
    assert (v.kind, v.reason) == (Kind.INCONCLUSIVE, "MetricsMissing")
    assert evaluate([], e.canary, e.control, OBJECTIVE).kind is Kind.INCONCLUSIVE


def stalled(e: Any, *, generated: float) -> Any:
    """The canary finishes nothing any more."""
    dead = {"finished": 0.0, "useful_tokens": 0.0, "generated_tokens": generated, "ttft_seconds": None,
            "tpot_seconds": None}  # fmt: skip
    pairs = [Pair(p.start, p.end, replace(p.canary, **dead), p.control) for p in e.pairs]
    return type(e)(pairs, replace(e.canary, **dead), e.control)


@pytest.mark.parametrize("objective", [OBJECTIVE, SLO])
def test_a_canary_that_finishes_nothing_is_worse(experiment: Experiments, load: Any, objective: Objective) -> None:
    v = verdict(stalled(experiment(load(), 0), generated=500.0), objective)
    assert v.kind is Kind.WORSE
    assert v.gain is not None and v.gain < -0.9


def test_a_canary_that_does_nothing_is_an_error_not_worse(experiment: Experiments, load: Any) -> None:
    v = verdict(stalled(experiment(load(), 0), generated=0.0))
    assert (v.kind, v.reason) == (Kind.ERROR, "CanaryServedNothing")


def test_numbers_are_per_pod_and_named(experiment: Experiments, load: Any) -> None:
    v = verdict(experiment(load(windows=20, controls=4), 0))
    ours, theirs = v.numbers["canary_goodput"], v.numbers["control_goodput"]
    assert ours is not None and theirs is not None and 0.7 < ours / theirs < 1.4
    for arm in ("canary", "control"):
        for name in ("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", "finished",
                     "useful_token_ratio", "useful_tokens_per_second", "preemptions_per_second"):  # fmt: skip
            assert v.numbers[f"{arm}_{name}"] is not None


def test_a_control_that_now_and_then_meets_the_slo_does_not_hide_a_canary_that_always_does() -> None:
    """Seen on a starved target: the control's goodput went 0, 240, 3, 0, ... by window, the canary's stayed at 240."""

    def arm(tokens: float, ttft: float) -> Observation:
        latency = Histogram(
            (1.0, 2.0, 10.0, float("inf")), tuple(20.0 * (ttft <= b) for b in (1.0, 2.0, 10.0, 99.0)), 20 * ttft
        )
        tpot = Histogram((0.1, float("inf")), (20.0, 20.0), 20 * 0.05)
        return Observation(
            pods=1, window_seconds=6.0, requests=20.0, finished=20.0, generated_tokens=tokens, useful_tokens=tokens,
            ttft_seconds=latency, tpot_seconds=tpot,
        )  # fmt: skip

    control = [arm(1400 + 20 * i, 0.5 if i in (2, 5) else 5.0) for i in range(9)]
    canary = [arm(1440 + 10 * i, 0.05) for i in range(9)]
    pairs = [Pair(6.0 * i, 6.0 * i + 6, a, b) for i, (a, b) in enumerate(zip(canary, control, strict=True))]
    totals = (combine(canary), combine(control))
    v = evaluate(pairs, *totals, Objective(ttft_seconds=2.0, tpot_seconds=0.2))
    assert v.kind is Kind.BETTER and v.gain is not None and v.gain > 1
