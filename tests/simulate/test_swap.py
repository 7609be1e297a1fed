"""vLLM v0's other preemption: the victim's KV cache waits in host memory instead of being computed again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

#: a step takes a second, a block a tenth more for each way
TICK = StepTimes(1.0, 0.0, 0.0, 0.0, 0.0, per_swapped_block=0.1)
RECOMPUTE = EngineConfig(41, enable_prefix_caching=False, async_scheduling=False)
SWAP = replace(RECOMPUTE, preemption="swap", cpu_blocks=1000)
#: twelve requests of 6 blocks at their end, 40 blocks
LOAD = Workload.of(np.zeros(12), [32] * 12, [64] * 12)


def _run(config: EngineConfig, load: Workload = LOAD, times: StepTimes = TICK) -> Outcome:
    outcome = simulate(load, config, times)
    assert outcome.ok.all()
    return outcome


def test_a_swapped_request_computes_nothing_twice() -> None:
    recompute, swap = _run(RECOMPUTE), _run(SWAP)
    assert recompute.counters.preemptions > 0 < swap.counters.preemptions
    assert recompute.counters.recomputed_tokens > 0 == swap.counters.recomputed_tokens
    assert swap.counters.prefill_tokens == 12 * 32


def test_the_copies_take_their_time_out_and_in() -> None:
    swap = _run(SWAP)
    free = _run(SWAP, times=replace(TICK, per_swapped_block=0.0))
    assert free.counters.busy_seconds == free.counters.steps
    copied = 2 * swap.counters.swapped_out_blocks * 0.1
    assert copied > 0 and np.isclose(swap.counters.busy_seconds - swap.counters.steps, copied)


def test_a_victim_that_finds_no_room_on_the_host_is_computed_again() -> None:
    none = _run(replace(SWAP, cpu_blocks=0))
    recompute = _run(RECOMPUTE)
    assert none.counters == recompute.counters and none.counters.swapped_out_blocks == 0
    some = _run(replace(SWAP, cpu_blocks=6)).counters
    assert 0 < some.recomputed_tokens < recompute.counters.recomputed_tokens


def test_whoever_is_swapped_out_comes_back_before_those_who_never_ran() -> None:
    load = Workload.of(np.zeros(24), [32] * 24, [64] * 24)
    outcome = _run(replace(SWAP, max_num_seqs=12), load)
    swapped = outcome.preemptions > 0
    assert swapped[:12].any() and not swapped[:12].all()
    assert outcome.end[:12][swapped[:12]].max() < outcome.end[23]
    assert (np.diff(outcome.first) >= 0).all()
