"""A canary that still warms up is told from one that has settled, and from one that gets worse."""

from __future__ import annotations

import math
from dataclasses import replace

from builders import observation

from trimtab.judge.settle import unsettled
from trimtab.judge.windows import Pair
from trimtab.observe.observation import Histogram, Observation

Values = list[float]


def latency(mean: float) -> Histogram:
    return Histogram((1.0, math.inf), (50.0, 50.0), 50 * mean)


def pairs(hits: Values, ttft: Values) -> list[Pair]:
    """Windows of a canary with these hit ratios and mean TTFTs, beside a control that hits 0.8 in 0.3 s."""

    def arm(hit: float, first: float) -> Observation:
        plain = replace(observation(), prefix_queries=1000.0, prefix_hits=1000 * hit)
        return replace(plain, ttft_seconds=latency(first), tpot_seconds=latency(0.03))

    steady = arm(0.8, 0.3)
    return [Pair(10.0 * i, 10.0 * i + 10, arm(h, t), steady) for i, (h, t) in enumerate(zip(hits, ttft, strict=True))]


def test_a_cold_prefix_cache_is_waited_for() -> None:
    said = unsettled(pairs([0.0, 0.2, 0.4, 0.6], [0.3] * 4))
    assert said is not None and "hit ratio" in said


def test_a_latency_that_falls_is_waited_for_and_one_that_rises_is_measured() -> None:
    falling = [0.9, 0.7, 0.5, 0.35]
    said = unsettled(pairs([0.8] * 4, falling))
    assert said is not None and "TTFT" in said
    assert unsettled(pairs([0.8] * 4, falling[::-1])) is None
    assert unsettled(pairs([0.8, 0.7, 0.5, 0.2], [0.3] * 4)) is None


def test_what_was_long_ago_does_not_count() -> None:
    settled = [0.8, 0.79, 0.81, 0.8, 0.8, 0.79]
    assert unsettled(pairs([0.0, 0.3, 0.6, *settled], [0.3] * 9)) is None
    assert unsettled(pairs([0.0, 0.3, 0.6, *settled[:3]], [0.3] * 6)) is not None


def test_noise_is_no_warming_up() -> None:
    assert unsettled(pairs([0.8, 0.79, 0.81, 0.8], [0.2, 0.45, 0.3, 0.25])) is None


def test_too_few_or_unknown_windows_say_nothing() -> None:
    assert unsettled(pairs([0.0, 0.4, 0.8], [0.9, 0.5, 0.3])) is None
    nothing = {"prefix_hits": None, "ttft_seconds": None, "tpot_seconds": None, "generated_tokens": None}
    cold = pairs([0.0, 0.2, 0.4, 0.6], [0.3] * 4)
    blind = [replace(p, canary=replace(p.canary, **nothing)) for p in cold]  # type: ignore[arg-type]
    assert unsettled(blind) is None


def test_an_engine_without_a_prefix_cache_is_judged_by_its_latency_alone() -> None:
    plain = [replace(p, canary=replace(p.canary, prefix_queries=0.0)) for p in pairs([0.0] * 4, [0.3] * 4)]
    assert unsettled(plain) is None
