"""What binds, what a setting would change and what would be needed, where the truth is known by construction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulated_worlds import TIMES, WORLDS, profile, situation
from trimtab.simulate.binding import binding, relieved
from trimtab.simulate.capacity import capacity_needed, least_factor, thinned
from trimtab.simulate.explain import Ask, explain, options
from trimtab.simulate.profile import HeldOut
from trimtab.simulate.situation import Interval, Situation, possible_times, speed_error
from trimtab.simulate.summary import Limits


@pytest.mark.parametrize("name", WORLDS)
def test_the_resource_that_binds_is_named(name: str) -> None:
    world = situation(name)
    found = binding(world, world.config)
    assert found.resource == name, found
    assert found.evidence


def test_two_resources_that_bind_together_are_both_seen() -> None:
    """As many slots as the blocks hold: twice of either alone changes little."""
    world = situation("slots")
    tight = replace(world.config, num_gpu_blocks=500)
    found = binding(world, tight)
    assert found.resource in ("slots", "kv")
    assert min(found.gains["slots"], found.gains["kv"]) > 0.1, found.gains


def test_a_resource_without_a_limit_is_not_relieved() -> None:
    world = situation("slots")
    assert "queue" not in binding(world, world.config).gains
    assert relieved(world.config, ("queue",)) == world.config


def test_the_setting_that_helps_is_found_and_what_binds_then() -> None:
    found = explain(situation("slots", seconds=40.0, pairs=2), Ask(workers=2))
    effects = {e.setting: e for e in found.effects}
    assert found.binds.resource == "slots"
    assert effects["max_num_seqs"].helps in ("goodput", "throughput") and effects["max_num_seqs"].value > 16  # type: ignore[operator]
    assert {e.helps for e in found.effects if e.setting in ("watermark", "enable_prefix_caching")} == {"no"}
    assert set(found.best) == {"max_num_seqs"} and not found.nothing_helps


def test_no_setting_helps_where_arrivals_bind() -> None:
    found = explain(situation("arrivals"))
    assert found.nothing_helps and found.best == {} and found.capacity is None
    assert found.best_goodput == Interval(0.0, 0.0, 0.0)


def test_where_no_setting_meets_the_slo_the_capacity_is_named_and_is_enough() -> None:
    world = situation("compute")
    needed = capacity_needed(world, world.config, 0.95)
    assert needed is not None and needed.kv_blocks is None, "more blocks do not make a GPU faster"
    assert needed.replicas is not None and needed.replicas > 2
    one = Situation.of_load(world.config, world.limits, thinned(world.loads[0], needed.replicas), world.times[0])
    assert one.measure(one.config).attainment >= 0.95
    less = thinned(world.loads[0], needed.replicas / 1.3)
    one = Situation.of_load(world.config, world.limits, less, world.times[0])
    assert one.measure(one.config).attainment < 0.95


def test_a_queue_limit_is_shedding_and_never_advice() -> None:
    found = explain(situation("compute", seconds=30.0, pairs=2))
    limit = next(e for e in found.effects if e.setting == "max_num_queued_reqs")
    assert limit.helps in ("shedding", "no") and "max_num_queued_reqs" not in found.best


def test_lifting_a_queue_limit_is_advice() -> None:
    found = explain(situation("queue"))
    assert found.best.get("max_num_queued_reqs", "") is None


def test_the_interval_grows_with_what_the_profile_leaves_open() -> None:
    sure = profile("slots", heldout={"tpot_mean_seconds": HeldOut(measured=1.0, predicted=1.0)})
    unsure = sure.model_copy(update={"times_stderr": {"fixed": 0.008, "per_prefill_token": 5e-5}})
    widths = []
    for known in (sure, unsure):
        world = Situation.of_profile(known, Limits(), seconds=60, pairs=6)
        change = world.change(replace(world.config, max_num_seqs=64), lambda a, b: a.goodput / b.goodput - 1)
        widths.append(change.high - change.low)
    assert widths[1] > 1.5 * widths[0]


def test_the_profile_s_own_draws_are_preferred_and_the_first_pair_is_the_estimate() -> None:
    drawn = replace(TIMES, fixed=0.03)
    exact = {"tpot_mean_seconds": HeldOut(measured=2.0, predicted=2.0)}
    times = possible_times(profile("slots", times_draws=(drawn,), heldout=exact), 3)
    assert times == (TIMES, drawn, drawn)
    assert speed_error(profile("slots", heldout={"tpot_mean_seconds": HeldOut(measured=1.0, predicted=1.2)})) == (
        pytest.approx(0.2)
    )


def test_the_answer_is_the_same_for_any_number_of_threads() -> None:
    one, two = (explain(situation("queue", seconds=20.0, pairs=2), Ask(workers=n)) for n in (1, 2))
    assert one == two


def test_options_leave_out_what_vllm_would_refuse() -> None:
    config = replace(situation("slots").config, max_num_seqs=1024, max_num_batched_tokens=1024)
    assert all(v <= 1024 for v in options(config)["max_num_seqs"])  # type: ignore[operator]
    assert all(v >= 1024 for v in options(config)["max_num_batched_tokens"])  # type: ignore[operator]


def test_the_least_factor_is_found_within_five_percent() -> None:
    found = least_factor(lambda factor: factor >= 3.3)
    assert found is not None and 3.3 <= found <= 3.3 * 1.05
    assert least_factor(lambda factor: False) is None
