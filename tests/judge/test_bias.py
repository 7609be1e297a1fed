"""A pod is not its configuration: what is subtracted, what is left, and what more starts are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.judge.bias import Start, Variation, bias, replicated
from trimtab.judge.stats import Interval, Noise

USUAL = Variation(start=0.01, pod=0.03)
NOISE = Noise(variance=0.05**2, degrees=30.0, rho=0.0)


def test_a_pods_own_difference_before_the_trial_is_subtracted_as_far_as_it_is_known() -> None:
    little, much, none = ([0.08] * n for n in (3, 200, 0))
    some, all_of_it, nothing = (bias(b, [], NOISE, USUAL, 0.95) for b in (little, much, none))
    assert 0.05 < some.shift < all_of_it.shift < 0.08 and all_of_it.shift > 0.079
    assert USUAL.start < all_of_it.sd < some.sd < nothing.sd
    assert (some.measured, nothing.measured, nothing.shift) == (True, False, 0.0)


def test_noise_before_the_trial_is_not_taken_for_the_pods_difference() -> None:
    found = bias([0.02, -0.01, 0.02], [], Noise(0.5**2, 2.0, 0.5), USUAL, 0.95)
    assert abs(found.shift) < 0.001 and found.sd == pytest.approx(math.hypot(USUAL.start, USUAL.pod), rel=0.02)


def test_control_pods_that_lie_apart_leave_more_doubt_than_those_that_do_not() -> None:
    rng = np.random.default_rng(0)

    def controls(apart: float) -> list[list[float]]:
        return [list(rng.normal(apart * k, 0.05, 30)) for k in (-1, 0, 1, 0)]

    near, far = (bias([], controls(apart), NOISE, USUAL, 0.95) for apart in (0.0, 0.2))
    assert near.sd < bias([], [], NOISE, USUAL, 0.95).sd < far.sd
    assert near.half > 1.96 * near.sd  # a few pods: Student's t


def test_the_correction_moves_and_widens() -> None:
    corrected = bias([0.1] * 50, [], NOISE, USUAL, 0.95).corrected(Interval(0.15, 0.1, 0.2, 20.0))
    assert 0.04 < corrected.mean < 0.07 and corrected.high - corrected.low > 0.1
    still = bias([], [], NOISE, Variation(0.0, 0.0), 0.95).corrected(Interval(0.15, 0.1, 0.2, 20.0))
    assert still == Interval(0.15, pytest.approx(0.1), pytest.approx(0.2), 20.0)


def test_more_starts_see_a_smaller_effect_and_starts_that_disagree_do_not() -> None:
    halves = []
    for n in (1, 4, 16):
        found = replicated([Start(0.03, 0.01, 0.02, 0.0)] * n, 0.95)
        assert found is not None and found.mean == pytest.approx(0.03)
        halves.append(found.high - found.mean)
    assert halves[0] > 0.05 > halves[1] > 0.03 > halves[2]
    apart = replicated([Start(e, 0.01, 0.02, 0.0) for e in (0.3, -0.24, 0.03, 0.03)], 0.95)
    assert apart is not None and apart.high - apart.mean > 0.2
    assert replicated([], 0.95) is None


@pytest.mark.parametrize("starts", [2, 5])
def test_the_interval_over_starts_covers_the_truth(starts: int) -> None:
    rng, missed, runs = np.random.default_rng(3), 0, 400
    for _ in range(runs):
        seen = [Start(0.05 + rng.normal(0, 0.02) + rng.normal(0, 0.01), 0.01, 0.02, 0.0) for _ in range(starts)]
        found = replicated(seen, 0.95)
        assert found is not None
        missed += not found.low <= 0.05 <= found.high
    assert missed / runs <= 0.05


def test_a_pod_that_is_gone_tells_how_far_pods_lie_apart_but_not_how_fast_the_new_one_is() -> None:
    alike, apart = (bias([mean] * 30, [], NOISE, USUAL, 0.95, own=False) for mean in (0.0, 0.15))
    assert (alike.shift, apart.shift, apart.measured) == (0.0, 0.0, False)
    assert alike.sd < bias([], [], NOISE, USUAL, 0.95).sd < apart.sd


def test_what_another_start_does_not_draw_anew_does_not_average_out() -> None:
    alone, shared = ([Start(0.05, 0.001, own, other)] * 3 for own, other in ((0.02, 0.0), (0.0, 0.02)))
    narrow, wide = replicated(alone, 0.95), replicated(shared, 0.95)
    assert narrow is not None and wide is not None
    assert wide.high - wide.low > 1.6 * (narrow.high - narrow.low)


def test_where_pods_lie_far_further_apart_than_was_said_only_what_was_seen_counts() -> None:
    """Pods 10% apart, `podPercent` left at 3, the canary in a new place: equal ones are not promoted for it."""
    rng = np.random.default_rng(2)
    runs, promoted = 400, 0
    for _ in range(runs):
        pods = rng.normal(0, 0.10, 4)  # the canary's, two controls, the one that is gone
        middle = pods[1:3].mean()
        noisy = [list(p - middle + rng.normal(0, 0.05, 30)) for p in pods]
        bias_of = bias(noisy[3], noisy[1:3], NOISE, USUAL, 0.95, own=False)
        mean, half = float(np.mean(noisy[0])), 2 * 0.05 / math.sqrt(30)
        promoted += bias_of.corrected(Interval(mean, mean - half, mean + half, 30.0)).low > 0
    assert promoted <= 0.05 * runs


def test_noise_of_the_windows_before_averages_out_over_starts_and_the_places_own_difference_does_not() -> None:
    noise = Noise(variance=0.08**2, degrees=30.0, rho=0.0)
    rng = np.random.default_rng(3)
    runs, missed, halves = 300, 0, []
    for _ in range(runs):
        place, starts = rng.normal(0, USUAL.pod), []
        for _ in range(3):
            before = list(place + rng.normal(0, 0.08, 10))
            found = bias(before, [], noise, USUAL, 0.95)
            seen = 0.05 + place + rng.normal(0, USUAL.start) + rng.normal(0, 0.08 / math.sqrt(30))
            starts.append(Start(seen - found.shift, 0.08 / math.sqrt(30), found.own_sd, found.shared_sd))
        interval = replicated(starts, 0.95)
        assert interval is not None
        missed += not interval.low <= 0.05 <= interval.high
        halves.append(interval.high - interval.mean)
    assert missed / runs <= 0.05
    assert np.median(halves) < 0.08
