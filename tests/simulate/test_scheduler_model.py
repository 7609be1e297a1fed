"""What the reference does not know: asynchronous scheduling, priorities, reservation, queue limits, late aborts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

#: each step takes one second, whatever it computes
TICK = StepTimes(fixed=1.0, per_prefill_token=0.0, per_decode_seq=0.0, per_kv_token=0.0)


def endings(outcome: Outcome) -> list[str]:
    return [st.ENDINGS[e] for e in outcome.ending]


def test_asynchronous_scheduling_lets_an_arrival_wait_for_the_batch_already_decided() -> None:
    load = Workload.of([0.0, 0.5], [8, 8], [6, 2])
    first = {
        mode: simulate(load, EngineConfig(num_gpu_blocks=50, async_scheduling=mode), TICK).first[1]
        for mode in (False, True)
    }
    assert first == {False: 2.0, True: 3.0}


def test_asynchronous_scheduling_leaves_a_freed_slot_empty_for_one_step_while_others_run() -> None:
    load = Workload.of([0.0, 0.0, 0.0], [8, 8, 8], [20, 3, 3])
    first = {
        mode: simulate(load, EngineConfig(num_gpu_blocks=50, max_num_seqs=2, async_scheduling=mode), TICK).first[2]
        for mode in (False, True)
    }
    assert first == {False: 4.0, True: 5.0}


def test_a_natural_stop_costs_one_wasted_computation_when_scheduling_is_asynchronous() -> None:
    load = Workload.of([0.0], [8], [3], max_tokens=[10])
    steps = {
        mode: simulate(load, EngineConfig(num_gpu_blocks=50, async_scheduling=mode), TICK).counters.steps
        for mode in (False, True)
    }
    assert steps[True] == steps[False] + 1


def test_priority_serves_the_lower_number_first_and_preempts_the_higher() -> None:
    config = EngineConfig(num_gpu_blocks=9, max_num_seqs=4, policy="priority", async_scheduling=False)
    load = Workload.of([0.0, 0.0, 0.0], [40, 40, 8], [40, 40, 4], priority=[1, 2, 0])
    outcome = simulate(load, config, TICK)
    assert outcome.ok.all()
    assert outcome.preemptions[1] > 0 and outcome.preemptions[0] == 0 == outcome.preemptions[2]
    assert outcome.first[2] <= outcome.first[0] <= outcome.first[1]


def test_reservation_admits_fewer_and_never_preempts() -> None:
    load = Workload.of(np.zeros(20), [32] * 20, [64] * 20, max_tokens=[256] * 20)
    on_demand = simulate(load, EngineConfig(num_gpu_blocks=41, enable_prefix_caching=False), TICK)
    reserve = simulate(load, EngineConfig(num_gpu_blocks=41, enable_prefix_caching=False, admission="reserve"), TICK)
    assert on_demand.counters.preemptions > 0 == reserve.counters.preemptions
    assert reserve.counters.peak_running == 40 // 18 < on_demand.counters.peak_running
    assert reserve.counters.mean_unused_share > 0.5 and on_demand.counters.mean_unused_share == 0.0


@pytest.mark.parametrize("caching", [False, True])
def test_an_abort_acts_at_the_next_step_and_after_its_delay(caching: bool) -> None:
    def last_step(delay: float) -> int:
        config = EngineConfig(
            num_gpu_blocks=50, async_scheduling=False, abort_delay_seconds=delay, enable_prefix_caching=caching
        )
        outcome = simulate(Workload.of([0.0], [8], [30], cancel_tokens=[5]), config, TICK)
        assert endings(outcome) == ["cancelled"] and outcome.tokens[0] == 5
        return outcome.counters.generation_tokens

    # 2.5 s after the fifth token the eighth is being computed: it is not handed out
    assert (last_step(0.0), last_step(2.5)) == (5, 7)


def test_a_client_leaves_at_a_time_even_while_it_waits() -> None:
    config = EngineConfig(num_gpu_blocks=50, max_num_seqs=1, async_scheduling=False)
    load = Workload.of([0.0, 0.1], [8, 8], [10, 10], cancel_at=[np.inf, 3.5])
    outcome = simulate(load, config, TICK)
    assert endings(outcome) == ["stop", "cancelled"]
    assert outcome.end[1] == 3.5 and outcome.counters.generation_tokens == 10


def test_queue_limits_turn_requests_away() -> None:
    load = Workload.of(np.zeros(6), [8] * 6, [4] * 6)
    by_requests = simulate(load, EngineConfig(num_gpu_blocks=50, max_num_queued_reqs=4), TICK)
    by_tokens = simulate(load, EngineConfig(num_gpu_blocks=50, max_num_queued_tokens=17), TICK)
    assert endings(by_requests).count("rejected") == 2
    assert endings(by_tokens).count("rejected") == 3


def test_a_prompt_beyond_the_pool_blocks_the_queue_and_one_beyond_the_model_is_refused() -> None:
    config = EngineConfig(num_gpu_blocks=5, max_model_len=1000)
    outcome = simulate(Workload.of([0.0, 0.1, 0.2], [1200, 100, 8], [4, 4, 4]), config, TICK)
    assert endings(outcome) == ["refused", "stuck", "stuck"]


def test_without_the_gate_a_prompt_beyond_the_pool_ends_the_run_instead_of_turning_forever() -> None:
    config = EngineConfig(num_gpu_blocks=5, max_model_len=1000, reserve_full_prompt=False, max_num_batched_tokens=256)
    assert endings(simulate(Workload.of([0.0], [100], [4]), config, TICK)) == ["stuck"]


def test_a_long_prefill_is_cut_only_while_others_are_there() -> None:
    config = EngineConfig(num_gpu_blocks=200, long_prefill_token_threshold=50, async_scheduling=False)
    alone = simulate(Workload.of([0.0], [200], [1]), config, TICK)
    together = simulate(Workload.of([0.0, 0.0], [200, 8], [1, 30]), config, TICK)
    assert alone.first[0] == 1.0 and together.first[0] == 4.0


@pytest.mark.parametrize(
    "config", [EngineConfig(num_gpu_blocks=40, max_num_seqs=16, policy=p) for p in ("fcfs", "priority")]
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_under_pressure_nothing_is_lost_and_a_run_repeats_bit_for_bit(config: EngineConfig, asynchronous: bool) -> None:
    rng = np.random.default_rng(5)
    n = 400
    load = Workload.of(
        np.cumsum(rng.exponential(0.5, n)), rng.integers(1, 200, n), rng.integers(1, 150, n),
        priority=rng.integers(0, 3, n), cancel_tokens=rng.integers(0, 2, n) * rng.integers(0, 60, n),
    )  # fmt: skip
    config = replace(config, async_scheduling=asynchronous)
    one, two = simulate(load, config, TICK), simulate(load, config, TICK)
    assert np.array_equal(one.end, two.end) and one.counters == two.counters
    assert one.counters.preemptions > 20
    assert set(endings(one)) <= {"stop", "cancelled"}
    assert (one.tokens[one.ok] == load.output[one.ok]).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_gpu_blocks", 1), ("max_num_batched_tokens", 10), ("watermark", 1.0), ("policy", "lifo"), ("block_size", 0)],
)
def test_impossible_settings_are_named(field: str, value: object) -> None:
    settings: dict[str, object] = {"num_gpu_blocks": 100, field: value}
    with pytest.raises(InputError) as caught:
        EngineConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_times_that_never_pass_are_refused() -> None:
    with pytest.raises(InputError):
        StepTimes(fixed=0.0, per_prefill_token=0.0, per_decode_seq=0.0, per_kv_token=0.0)
