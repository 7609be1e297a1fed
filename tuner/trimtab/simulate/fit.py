"""Step times from a request log, by robust regression on the work that the simulator says was done.

A request's decode lasted as long as the steps between its first and last token; the simulator says what those steps
computed, so durations are linear in the coefficients. Which steps they were depends on the coefficients: simulate,
regress, repeat. Hazard: coefficients that the log does not separate (prefill against attention at one prompt length)
share their sum arbitrarily; the predictions for such loads do not care.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64
from trimtab.simulate.workload import Workload

ROUNDS: Final = 12
#: relative error beyond which a request counts as an outlier (soft_l1's scale)
OUTLIER_SHARE: Final = 0.02
MINIMUM_REQUESTS: Final = 20
#: the columns fitted: fixed, prefill tokens, pairs, decode sequences, KV tokens
FITTED: Final = (st.W_STEPS, st.W_PREFILL, st.W_PAIRS, st.W_DECODE, st.W_KV)


@dataclass(frozen=True)
class RequestLog:
    """Measured times in seconds on the clock of `load.arrival`, in its order: admission, first token, last token."""

    load: Workload
    scheduled: F64
    first: F64
    last: F64


def fit_step_times(log: RequestLog, config: EngineConfig, use: npt.NDArray[np.bool_], start: StepTimes) -> StepTimes:
    """Coefficients from the requests marked in `use`; all of `log.load` is simulated, for they share the steps.

    InputError when fewer than 20 requests can be used.
    """
    if int(use.sum()) < MINIMUM_REQUESTS:
        problem = f"{int(use.sum())} usable requests are too few for {len(FITTED)} coefficients"
        raise InputError("log", problem, f"Give at least {MINIMUM_REQUESTS}.")
    x = start.coefficients()[list(FITTED)]
    for round_ in range(ROUNDS):
        marks = simulate(log.load, config, _times(x), marks=True).marks
        rows, seconds = _regression(log, marks, use)
        found = _solve(rows, seconds, x)
        # half steps at the end settle what would swing between two schedules
        x = found if round_ < ROUNDS // 2 else (x + found) / 2
    return _times(x)


def _regression(log: RequestLog, marks: F64, use: npt.NDArray[np.bool_]) -> tuple[F64, F64]:
    """One row per decode and one per prefill: work, and the seconds it took."""
    decode = use & (log.load.output > 1) & (log.last > log.first) & (marks[:, 2, 0] > marks[:, 1, 0])
    prefill = use & (log.first > log.scheduled) & (marks[:, 1, 0] > marks[:, 0, 0])
    work = np.concatenate(((marks[:, 2] - marks[:, 1])[decode], (marks[:, 1] - marks[:, 0])[prefill]))
    seconds = np.concatenate(((log.last - log.first)[decode], (log.first - log.scheduled)[prefill]))
    return work[:, list(FITTED)], seconds


def _solve(rows: F64, seconds: F64, x: F64) -> F64:
    """Least relative error, outliers counted softly, no coefficient below 0."""
    scale = np.maximum(rows.max(axis=0), 1.0) / np.median(seconds)
    matrix = rows / seconds[:, None] / scale
    result = least_squares(
        lambda v: matrix @ v - 1.0,
        np.maximum(x * scale, 1e-6),
        jac=lambda v: matrix,
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=OUTLIER_SHARE,
    )
    return np.asarray(result.x / scale, dtype=np.float64)


def _times(x: F64) -> StepTimes:
    fixed, prefill, pair, decode, kv = (float(v) for v in np.maximum(x, 0.0))
    return StepTimes(fixed, prefill, pair, decode, kv)
