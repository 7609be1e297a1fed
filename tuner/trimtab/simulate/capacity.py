"""How much more of what would meet the SLO where no setting does: replicas, KV blocks or speed. By simulation only.

Each is found alone, with the others as they are. Hazard: one engine is simulated; N times the replicas means that each
sees a random 1/N of its requests, as behind a router that knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trimtab.simulate.config import EngineConfig
from trimtab.simulate.measure import measure
from trimtab.simulate.simulator import simulate
from trimtab.simulate.situation import Situation
from trimtab.simulate.workload import Workload

#: share of the requests that must be within the limits
ATTAINMENT: Final = 0.95
#: factors beyond this are reported as "not with any"
MOST: Final = 32.0
#: the answer is at most this factor too large
_PRECISION: Final = 1.05


@dataclass(frozen=True)
class Capacity:
    """Factors that meet the goal, None where not even `MOST` does. `attainment`: the goal, a share of the requests."""

    attainment: float
    replicas: float | None
    kv_blocks: float | None
    speed: float | None


def capacity_needed(situation: Situation, config: EngineConfig, attainment: float = ATTAINMENT) -> Capacity | None:
    """None where `config` meets the goal as it is."""

    def enough(found: float) -> bool:
        return found >= attainment

    if enough(situation.measure(config).attainment):
        return None
    load, times = situation.loads[0], situation.times[0]

    def replicas(factor: float) -> bool:
        return enough(measure(simulate(thinned(load, factor), config, times), situation.limits).attainment)

    def blocks(factor: float) -> bool:
        return enough(situation.measure(replace(config, num_gpu_blocks=_times(config, factor))).attainment)

    def speed(factor: float) -> bool:
        return enough(situation.measure(config, speed=factor).attainment)

    return Capacity(attainment, least_factor(replicas), least_factor(blocks), least_factor(speed))


def least_factor(meets: Callable[[float], bool]) -> float | None:
    """The least factor above 1 that meets the goal, taken as monotone; None when `MOST` does not."""
    low, high = 1.0, 2.0
    while not meets(high):
        if high >= MOST:
            return None
        low, high = high, min(MOST, 2 * high)
    while high / low > _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def thinned(load: Workload, factor: float, seed: int = 0) -> Workload:
    """A random 1/`factor` of the requests, at least one: what one of `factor` times as many replicas sees."""
    mark = np.random.default_rng([seed, 23]).random(len(load))
    kept = np.flatnonzero(mark <= max(1 / factor, float(mark.min())))
    chunks = [load.chunk_ids[load.chunk_start[i] : load.chunk_start[i + 1]].tolist() for i in kept]
    return Workload.of(
        load.arrival[kept], load.prompt[kept], load.output[kept], max_tokens=load.max_tokens[kept],
        cancel_tokens=load.cancel_tokens[kept], cancel_at=load.cancel_at[kept], patience=load.patience[kept],
        priority=load.priority[kept], chunks=chunks, chunk_tokens=load.chunk_tokens[kept],
    )  # fmt: skip


def _times(config: EngineConfig, factor: float) -> int:
    return int(config.usable_blocks * factor) + 1
