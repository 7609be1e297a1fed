"""Traces: scaling keeps shapes, everything follows the seed, limits hold."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import InputError
from trimtab.load.generate import generate
from trimtab.load.trace import (
    RateStep,
    Request,
    clipped,
    mean_rate,
    paced,
    parse_steps,
    steps_total,
    truncated,
    warp,
    with_cancellations,
    with_max_tokens,
    with_prefixes,
)

gaps = st.lists(st.floats(0, 100), min_size=2, max_size=50).filter(lambda g: sum(g[1:]) > 1e-3)
rates = st.floats(0.01, 1000)
steps_lists = st.lists(st.tuples(rates, st.floats(0.5, 50)), min_size=1, max_size=4)


def trace_of(gap_list: list[float]) -> list[Request]:
    at, out = 0.0, []
    for gap in gap_list:
        at += gap
        out.append(Request(at, 10, 5, None, 0, None, 5))
    return out


@given(gaps, rates)
def test_pacing_to_one_rate_reaches_it_and_keeps_order_and_relative_gaps(gap_list: list[float], rate: float) -> None:
    requests = trace_of(gap_list)
    out = paced(requests, (RateStep(rate),))
    assert len(out) == len(requests) and out[0].arrival_seconds == 0.0
    assert math.isclose(mean_rate(out), rate, rel_tol=1e-6)
    factor = mean_rate(requests) / rate
    for before, after in zip(requests, out, strict=True):
        assert math.isclose(
            after.arrival_seconds, (before.arrival_seconds - gap_list[0]) * factor, rel_tol=1e-6, abs_tol=1e-6
        )


@given(steps_lists, st.integers(0, 5))
def test_each_step_gets_its_share_of_evenly_spaced_units(raw: list[tuple[float, float]], extra: int) -> None:
    steps = [RateStep(rate, seconds) for rate, seconds in raw]
    end = sum(seconds for _, seconds in raw)
    expected = steps_total(steps, end)
    if expected > 5000:
        return
    arrivals = warp((float(n) for n in range(int(expected) + 1 + extra)), steps)
    assert arrivals == sorted(arrivals) and all(0 <= at <= end + 1e-6 for at in arrivals)
    assert abs(len(arrivals) - expected) <= 1.0 + 1e-6
    first = raw[0]
    assert abs(sum(at < first[1] for at in arrivals) - first[0] * first[1]) <= 1.0 + 1e-6


def test_a_step_of_rate_zero_is_a_pause() -> None:
    arrivals = warp((n + 0.5 for n in range(100)), parse_steps("1@10,0@10,1@10"))
    assert len(arrivals) == 20 and not any(10 <= at < 20 for at in arrivals)


@given(gaps, st.floats(0, 500), st.integers(1, 20), st.integers(1, 20))
def test_truncating_and_clipping_hold_their_limits(
    gap_list: list[float], duration: float, prompt: int, output: int
) -> None:
    requests = with_cancellations(with_prefixes(trace_of(gap_list), 0.5, 2, 8, 1), 0.5, 1)
    out = clipped(truncated(requests, duration), prompt, output)
    for r in out:
        assert r.arrival_seconds < duration and r.prompt_tokens <= prompt and r.output_tokens <= output
        assert r.prefix_tokens <= r.prompt_tokens and r.max_tokens <= output
        assert r.cancel_after_tokens is None or 1 <= r.cancel_after_tokens <= r.output_tokens


def test_same_seed_same_trace_and_a_longer_one_only_appends() -> None:
    short, long = generate((RateStep(5.0),), 20.0, seed=7), generate((RateStep(5.0),), 40.0, seed=7)
    assert long[: len(short)] == short and generate((RateStep(5.0),), 20.0, seed=8) != short


def test_generated_loads_have_the_asked_rate_and_medians() -> None:
    requests = generate((RateStep(50.0),), 100.0, prompt_median_tokens=300, output_median_tokens=80, seed=3)
    assert abs(len(requests) / 100 - 50) < 2
    assert abs(statistics.median(r.prompt_tokens for r in requests) / 300 - 1) < 0.05
    assert abs(statistics.median(r.output_tokens for r in requests) / 80 - 1) < 0.05
    gap = statistics.pstdev(b.arrival_seconds - a.arrival_seconds for a, b in pairwise(requests))
    assert abs(gap * 50 - 1) < 0.1  # Poisson: the gaps' deviation is their mean


def test_cancellations_are_nested_uniform_and_leave_the_rest_alone() -> None:
    requests = [replace(r, output_tokens=101, max_tokens=101) for r in generate((RateStep(100.0),), 40.0)]
    few, many = with_cancellations(requests, 0.1, 1), with_cancellations(requests, 0.3, 1)
    cancelled = [r.cancel_after_tokens for r in many if r.cancel_after_tokens is not None]
    assert abs(len(cancelled) / len(many) - 0.3) < 0.03
    assert min(cancelled) >= 1 and max(cancelled) <= 100 and abs(statistics.mean(cancelled) - 50.5) < 3
    for base, some, more in zip(requests, few, many, strict=True):
        assert some.cancel_after_tokens in (None, more.cancel_after_tokens)
        assert replace(more, cancel_after_tokens=None) == base
    single = [replace(r, output_tokens=1, max_tokens=1) for r in requests[:50]]
    assert with_cancellations(single, 1.0, 1) == single


@settings(max_examples=30)
@given(st.floats(0.2, 2), st.floats(0, 2), st.integers())
def test_max_tokens_follow_the_ratio(low: float, width: float, seed: int) -> None:
    for r in with_max_tokens(generate((RateStep(10.0),), 5.0), low, low + width, seed):
        assert max(1, math.floor(r.output_tokens * low)) <= r.max_tokens <= math.ceil(r.output_tokens * (low + width))
        assert r.planned_tokens == min(r.output_tokens, r.max_tokens)


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "nan", "inf", "2,3", "2@0,3", "2@x", "1@5,0@-1"])
def test_a_bad_rate_names_the_option_and_the_form(text: str) -> None:
    with pytest.raises(InputError, match="--rate") as raised:
        parse_steps(text)
    assert "2@30,8@60,2" in raised.value.fix


def test_a_trace_without_a_span_cannot_be_scaled() -> None:
    with pytest.raises(InputError, match="at once"):
        paced(trace_of([1.0, 0.0, 0.0]), (RateStep(1.0),))
