"""What came out of a simulation: per request and in total."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.simulate import state as st
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class Counters:
    """Engine-side totals. Means are over the time in which the engine computed; shares are of the usable blocks.

    `generation_tokens` includes those nobody read. `mean_unused_share`: blocks held beyond what is computed, which only
    the reserve model does.
    """

    steps: int
    busy_seconds: float
    end_seconds: float
    preemptions: int
    prefill_tokens: int
    recomputed_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    peak_running: int
    peak_kv_usage: float
    mean_kv_usage: float
    mean_unused_share: float
    mean_running: float
    swapped_out_blocks: int = 0


@dataclass(frozen=True)
class Outcome:
    """Arrays of one value per request in the order of `load`; times in seconds, nan where it never happened.

    `tokens` are those the client read. `marks`: (n, 3, WORK_COLUMNS), work done up to admission, first and last token.
    `trace`: rows (kind, step, request, value), see `state.TRACE_KINDS`. `samples`: rows (seconds, running, waiting,
    used blocks, preemptions so far, tokens generated so far).
    """

    load: Workload
    scheduled: F64
    first: F64
    last: F64
    end: F64
    ending: I32
    tokens: I32
    preemptions: I32
    cached: I32
    recomputed: I32
    counters: Counters
    marks: F64
    trace: I32
    samples: F64

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """Requests that ended normally."""
        return np.isin(self.ending, (st.STOP, st.LENGTH))

    @property
    def ttft(self) -> F64:
        return self.first - self.load.arrival

    @property
    def e2e(self) -> F64:
        return self.end - self.load.arrival

    @property
    def tpot(self) -> F64:
        """Mean seconds per token after the first; nan below two tokens."""
        return np.where(self.tokens > 1, (self.last - self.first) / np.maximum(self.tokens - 1, 1), np.nan)
