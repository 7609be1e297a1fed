"""A latency without an SLO beside one that has one may be worse by the factor by which goodput is better, no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trimtab.judge.guardrail import Breach, GuardrailLimits, PodHealth, serving_breach
from trimtab.judge.objective import Objective, left_open
from trimtab.judge.verdict import Kind, evaluate
from trimtab.observe.observation import Histogram, Observation

Experiments = Callable[[Any, int], Any]
INF = float("inf")
EDGES = (0.01, 0.1, 1.0, 10.0, 100.0, INF)
SERVING = PodHealth(True, 0, None, None, None, age_seconds=100)
#: TPOT has to be 0.1 s or less, nothing is said of TTFT
LIMITS = GuardrailLimits(2.0, 3.0, 0, 50, tpot_seconds=0.1)


def at(seconds: float, n: float = 200.0) -> Histogram:
    """n values in the bucket that ends at or above `seconds`."""
    return Histogram(EDGES, tuple(n if edge >= seconds else 0.0 for edge in EDGES), n * seconds)


def arm(ttft: float, tpot: Histogram, tokens: float = 20_000.0) -> Observation:
    return Observation(
        pods=1, window_seconds=60, requests=200.0, finished=200.0, useful_tokens=tokens, generated_tokens=tokens,
        http_errors=0.0, running=5.0, ttft_seconds=at(ttft), tpot_seconds=tpot,
    )  # fmt: skip


def in_time(share: float) -> Histogram:
    """TPOT of 200 requests, `share` of which meet the SLO."""
    return Histogram(EDGES, (0.0, 200 * share, 200.0, 200.0, 200.0, 200.0), 50.0)


def breach(canary: Observation, control: Observation, limits: GuardrailLimits = LIMITS) -> Breach | None:
    return serving_breach(SERVING, canary, control, limits)


def test_only_one_limited_latency_leaves_the_other_open() -> None:
    assert left_open(None, 0.1) == {"TTFT"} and left_open(1.0, None) == {"TPOT"}
    assert not left_open(None, None) and not left_open(1.0, 0.1)


def test_waiting_is_paid_by_goodput() -> None:
    """TTFT ten times as long: 19 times the goodput pays for it, twice does not, and neither does less."""
    for share, ended in ((0.95, False), (0.10, True), (0.03, True)):
        found = breach(arm(5.0, in_time(share)), arm(0.5, in_time(0.05)))
        assert (found is not None) == ended
    assert found is not None and found.reason == "LatencyTooHigh" and "limit 3 x" in found.message


def test_a_hundred_times_the_wait_is_not_paid_by_nineteen_times_the_goodput() -> None:
    found = breach(arm(50.0, in_time(0.95)), arm(0.05, in_time(0.05)))
    assert found is not None and found.reason == "LatencyTooHigh"


@pytest.mark.parametrize("slo", [{}, {"ttft_seconds": 5.0, "tpot_seconds": 0.1}])
def test_without_or_with_both_limits_nothing_is_paid(slo: dict[str, float]) -> None:
    limits = replace(LIMITS, **{"tpot_seconds": None, **slo})
    assert breach(arm(5.0, in_time(0.95)), arm(0.5, in_time(0.05)), limits) is not None


def test_the_limited_latency_is_watched_as_ever() -> None:
    """TPOT has the limit: goodput that is better by longer answers does not pay for it."""
    found = breach(arm(0.5, at(10.0), 200_000.0), arm(0.5, at(0.05)))
    assert found is not None and "TPOT" in found.message


def test_what_is_not_known_pays_nothing() -> None:
    slow = arm(5.0, in_time(0.95))
    for unknown in ({"useful_tokens": None}, {"tpot_seconds": None}, {"finished": 10.0}):
        assert breach(replace(slow, **unknown), arm(0.5, in_time(0.05))) is not None
    assert breach(slow, replace(arm(0.5, in_time(0.05)), finished=10.0)) is not None


def test_a_control_that_never_meets_the_slo_counts_as_one_request_that_did() -> None:
    assert breach(arm(5.0, in_time(0.95)), arm(0.5, in_time(0.0))) is None
    assert breach(arm(5.0, in_time(0.02)), arm(0.5, in_time(0.0))) is not None


def test_the_verdict_follows_the_same_rule(experiment: Experiments, load: Any) -> None:
    """Twice the goodput, TTFT half as long again: better where only TPOT has a limit, worse elsewhere."""
    seen = experiment(load(windows=20, effect=2.0, ttft=1.5), 1)
    usual = Objective(start_variation_percent=0, pod_variation_percent=0)

    def kind(objective: Objective) -> Kind:
        return evaluate(seen.pairs, seen.canary, seen.control, objective).kind

    assert kind(replace(usual, tpot_seconds=0.06)) is Kind.BETTER
    assert kind(usual) is Kind.WORSE
    assert kind(replace(usual, tpot_seconds=0.06, ttft_seconds=5.0)) is Kind.WORSE
    slow = experiment(load(windows=20, effect=1.3, ttft=3.0), 1)
    assert evaluate(slow.pairs, slow.canary, slow.control, replace(usual, tpot_seconds=0.06)).kind is Kind.WORSE
