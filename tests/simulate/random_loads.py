"""Random loads and configurations of every kind that the scheduler model knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as hs

from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Workload

TIMES = StepTimes(0.011, 0.00023, 1e-9, 0.0007, 3e-7, 0.00001, 8, 0.001, 0.0005)
BLOCK = 16


def whole(rng: np.random.Generator, low: int, high: int, n: int) -> I32:
    return rng.integers(low, high, n, dtype=np.int32)


@hs.composite
def loads(draw: hs.DrawFn, *, timers: bool) -> Workload:
    """`timers`: clients that leave at a time too."""
    rng = np.random.default_rng(draw(hs.integers(0, 2**32)))
    n = draw(hs.integers(1, 80))
    shared = whole(rng, 0, 5, n) * draw(hs.integers(0, 1))
    arrival = np.cumsum(rng.exponential(draw(hs.sampled_from([0.001, 0.02, 0.2])), n))
    seldom = draw(hs.sampled_from([0.0, 0.3])) if timers else 0.0
    return Workload.of(
        arrival,
        whole(rng, 1, 150, n) + shared * BLOCK,
        whole(rng, 1, 120, n),
        max_tokens=whole(rng, 1, 150, n),
        cancel_tokens=whole(rng, 0, 2, n) * whole(rng, 0, 50, n),
        cancel_at=some(rng, n, seldom, arrival + rng.exponential(1.0, n)),
        patience=some(rng, n, seldom, rng.exponential(0.5, n)),
        priority=whole(rng, 0, 3, n),
        chunks=[[int(k) * 10**12 for k in range(s)] for s in shared],
        chunk_tokens=[BLOCK] * n,
    )


def some(rng: np.random.Generator, n: int, share: float, values: F64) -> F64:
    return np.where(rng.random(n) < share, values, np.inf)


@hs.composite
def configs(draw: hs.DrawFn, /, **fixed: Any) -> EngineConfig:
    drawn: dict[str, Any] = {
        "num_gpu_blocks": draw(hs.integers(25, 120)),
        "max_num_seqs": draw(hs.integers(1, 24)),
        "max_num_batched_tokens": draw(hs.sampled_from([32, 128, 512])),
        "block_size": BLOCK,
        "enable_prefix_caching": draw(hs.booleans()),
        "watermark": draw(hs.sampled_from([0.0, 0.05])),
        "reserve_full_prompt": draw(hs.sampled_from([True, True, False])),
        "enable_chunked_prefill": draw(hs.sampled_from([True, True, False])),
        "long_prefill_token_threshold": draw(hs.sampled_from([0, 0, 0, 40])),
        "long_prefill_token_threshold_adaptive": draw(hs.booleans()),
        "policy": draw(hs.sampled_from(["fcfs", "fcfs", "priority"])),
        "async_scheduling": draw(hs.booleans()),
        "admission": draw(hs.sampled_from(["on-demand", "on-demand", "reserve"])),
        "max_num_queued_reqs": draw(hs.sampled_from([None, None, 20])),
        "max_num_queued_tokens": draw(hs.sampled_from([None, None, 500])),
        "abort_delay_seconds": draw(hs.sampled_from([0.0, 0.0, 0.05])),
        "preemption": draw(hs.sampled_from(["recompute", "recompute", "swap"])),
        "cpu_blocks": draw(hs.sampled_from([10, 1000])),
    }
    try:
        return EngineConfig(**(drawn | fixed))
    except InputError:
        assume(False)
        raise
