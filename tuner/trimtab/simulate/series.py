"""A run over time: KV use, requests running and waiting, tokens and preemptions, at equal steps of virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64
from trimtab.simulate.workload import Workload

#: points of a series: enough for a picture, few enough for a JSON that is read
POINTS = 240


@dataclass(frozen=True)
class Series:
    """Arrays of equal length. `at_seconds` after the first arrival; an idle engine has no points in between.

    `kv_usage`: 0 to 1, blocks in use. `tokens_per_second`, `preemptions_per_second`: since the point before.
    """

    at_seconds: F64
    kv_usage: F64
    running: F64
    waiting: F64
    tokens_per_second: F64
    preemptions_per_second: F64

    def to_dict(self) -> dict[str, list[float]]:
        return {name: [round(float(v), 6) for v in getattr(self, name)] for name in self.__dataclass_fields__}


def series(load: Workload, config: EngineConfig, times: StepTimes, points: int = POINTS) -> Series:
    """About `points` samples of the whole run, its drain included."""
    end = simulate(load, config, times).counters.end_seconds
    start = float(load.arrival[0]) if len(load) else 0.0
    every = max((end - start) / points, 1e-6)
    rows = simulate(load, config, times, sample_seconds=every).samples
    at = rows[:, 0] - start
    apart = np.maximum(np.diff(at, prepend=0.0), 1e-9)
    return Series(
        at_seconds=at,
        kv_usage=rows[:, 3] / config.usable_blocks,
        running=rows[:, 1].copy(),
        waiting=rows[:, 2].copy(),
        tokens_per_second=np.diff(rows[:, 5], prepend=0.0) / apart,
        preemptions_per_second=np.diff(rows[:, 4], prepend=0.0) / apart,
    )
