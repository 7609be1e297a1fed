"""Step times from request logs, by robust regression on the work that the simulator says was done, with uncertainty.

A request's decode lasted as long as the steps between its first and last token; the simulator says what those steps
computed, so durations are linear in the coefficients. Which steps they were depends on the coefficients: simulate,
regress, repeat. A prior on each coefficient's order of magnitude decides what a log does not separate: while a server
fills, sequences and their KV grow together, and a fit without prior gives all of it to one of them, which then is wrong
where the server empties.

Hazard: logs of one load at one prompt length separate little; `Fitted.stderr` and `draws` say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64, I64
from trimtab.simulate.workload import Workload

ROUNDS: Final = 10
#: a duration is off by about 2% (soft_l1's scale), and by half a step: when in a step a request came is chance
RELATIVE_ERROR: Final = 0.02
STEP_SHARE: Final = 0.5
MINIMUM_REQUESTS: Final = 20
#: what is fitted. Not `per_over_token`: from where on weights no longer hide prefill (`free_tokens`) is a second
#: unknown that no run at hand separates
FITTED: Final = ("fixed", "per_prefill_token", "per_pair", "per_decode_seq", "per_kv_token", "per_prefill_step")
#: their work columns
FITTED_AT: Final = (st.W_STEPS, st.W_PREFILL, st.W_PAIRS, st.W_DECODE, st.W_KV, st.W_PREFILL_STEP)
#: bootstrap: requests of neighbouring arrival share their steps and are drawn together
BLOCK_REQUESTS: Final = 10
DRAWS: Final = 24
#: beside the engine, per request of a client's log: network, tokenisation, the API server. Median and spread
API_SECONDS: Final = (0.005, 2.0)
_LEAST: Final = 1e-14
_ZERO: Final = {field.name: 0 for field in fields(StepTimes)}


@dataclass(frozen=True)
class RequestLog:
    """Measured times in seconds on the clock of `load.arrival`, in its order: admission, first token, last token.

    `scheduled` nan: not known (a client's log); the first token is then counted from the arrival. Other nan: never.
    """

    load: Workload
    scheduled: F64
    first: F64
    last: F64


@dataclass(frozen=True)
class Run:
    """One log, the engine it came from, and the requests that may be used; all are simulated, for they share steps."""

    log: RequestLog
    config: EngineConfig
    use: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Prior:
    """Per coefficient of FITTED: median in seconds, above 0, and the standard deviation of its natural logarithm."""

    median: F64
    spread: F64


#: says nothing: three powers of e either way, around a mid-size model on a data-centre GPU. Attention over the prompt
#: begins low: at short prompts it is lost in `per_prefill_token`
WEAK: Final = Prior(np.array([0.01, 3e-5, 1e-10, 5e-5, 1e-7, 1e-3]), np.full(6, 3.0))


@dataclass(frozen=True)
class Fitted:
    """`stderr`: per coefficient, seconds. `draws`: coefficient sets from resampled requests and priors.

    `residual`: root mean square of the relative error of the durations, outliers cut at 10%. `api_seconds`: between a
    client and the engine, per request; 0 where it was not asked for.
    """

    times: StepTimes
    stderr: dict[str, float]
    draws: tuple[StepTimes, ...]
    residual: float
    api_seconds: float = 0.0


@dataclass(frozen=True)
class Rows:
    """A row per duration: its work, its seconds, what it may be off by, and which block of requests it belongs to."""

    work: F64
    seconds: F64
    tolerance: F64
    block: I64


def fit_step_times(runs: Sequence[Run], prior: Prior = WEAK, *, seed: int = 0, api: bool = False) -> Fitted:
    """Coefficients that explain all runs at once; InputError when fewer than 20 requests can be used.

    `api`: also the seconds beside the engine that a client's log has in each first token. Without it they count as
    prefill.
    """
    usable = sum(int(run.use.sum()) for run in runs)
    if usable < MINIMUM_REQUESTS:
        problem = f"{usable} usable requests are too few for {len(FITTED)} coefficients"
        raise InputError("log", problem, f"Give at least {MINIMUM_REQUESTS}.")
    n = len(FITTED)
    if api:
        prior = Prior(np.append(prior.median, API_SECONDS[0]), np.append(prior.spread, API_SECONDS[1]))
    x = prior.median.copy()
    for round_ in range(ROUNDS):
        times = times_of(x[:n])
        rows = _joined([_rows(run, simulate(run.log.load, run.config, times, marks=True), api) for run in runs])
        found = solved(rows, prior, x)
        # half steps at the end settle what would swing between two schedules; not of logarithms: sums must stay
        x = found if round_ < ROUNDS // 2 else (x + found) / 2
    draws = _draws(rows, prior, x, np.random.default_rng(seed))[:, :n]
    error = np.clip(rows.work @ x / rows.seconds - 1, -0.1, 0.1)
    return Fitted(
        times_of(x[:n]),
        dict(zip(FITTED, np.std(draws, axis=0, ddof=1).tolist(), strict=True)),
        tuple(times_of(draw) for draw in draws),
        float(np.sqrt(np.mean(error**2))),
        float(x[n]) if api else 0.0,
    )


def times_of(x: F64) -> StepTimes:
    """StepTimes of coefficients in the order of FITTED."""
    return StepTimes(**{**_ZERO, **dict(zip(FITTED, x.tolist(), strict=True))})


def coefficients_of(times: StepTimes) -> F64:
    return np.array([getattr(times, name) for name in FITTED])


def _rows(run: Run, outcome: Outcome, api: bool) -> Rows:
    """One row per decode and one per way to the first token."""
    log, marks = run.log, outcome.marks
    known = ~np.isnan(log.scheduled)
    begin = np.where(known, log.scheduled, log.load.arrival)
    at_begin = np.where(known[:, None], marks[:, 0], work_at(outcome, log.load.arrival))
    rows = []
    for since, until, work, enough, beside in (
        (log.first, log.last, marks[:, 2] - marks[:, 1], log.load.output > 1, np.zeros(len(known))),
        (begin, log.first, marks[:, 1] - at_begin, np.True_, np.where(known, 0.0, 1.0)),
    ):
        # nan compares as False
        kept = run.use & enough & (until > since) & (work[:, st.W_STEPS] > 0)
        columns = np.column_stack((work[:, list(FITTED_AT)], beside)) if api else work[:, list(FITTED_AT)]
        rows.append((columns[kept], (until - since)[kept], np.flatnonzero(kept) // BLOCK_REQUESTS))
    work, seconds, block = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    step = outcome.counters.busy_seconds / max(1, outcome.counters.steps)
    return Rows(work, seconds, RELATIVE_ERROR * seconds + STEP_SHARE * step, block)


def work_at(outcome: Outcome, when: F64) -> F64:
    """The work done up to these times: between the known points (admissions and tokens of all requests) linear."""
    at = np.concatenate((outcome.scheduled, outcome.first, outcome.last))
    done = outcome.marks.transpose(1, 0, 2).reshape(len(at), -1)
    seen = ~np.isnan(at)
    order = np.argsort(at[seen], kind="stable")
    at, done = at[seen][order], done[seen][order]
    return np.stack([np.interp(when, at, np.maximum.accumulate(column), left=0.0) for column in done.T], axis=1)


def _joined(parts: Sequence[Rows]) -> Rows:
    blocks, first = [], 0
    for part in parts:
        blocks.append(part.block + first)
        first += int(part.block.max(initial=0)) + 1
    return Rows(
        np.concatenate([p.work for p in parts]),
        np.concatenate([p.seconds for p in parts]),
        np.concatenate([p.tolerance for p in parts]),
        np.concatenate(blocks),
    )


def solved(rows: Rows, prior: Prior, start: F64) -> F64:
    """Most likely logarithms of the coefficients: data with soft outliers (soft_l1), prior as it is."""
    matrix, target = rows.work / rows.tolerance[:, None], rows.seconds / rows.tolerance
    centre = np.log(prior.median)

    def residuals(u: F64) -> F64:
        r = matrix @ np.exp(u) - target
        return np.concatenate((np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r * r) - 1)), (u - centre) / prior.spread))

    found = least_squares(residuals, np.log(np.maximum(start, _LEAST)))
    return np.asarray(np.maximum(np.exp(found.x), _LEAST), dtype=np.float64)


def _draws(rows: Rows, prior: Prior, x: F64, rng: np.random.Generator) -> F64:
    """(DRAWS, coefficients): blocks of requests resampled, the prior's centre drawn from the prior."""
    members = [np.flatnonzero(rows.block == b) for b in np.unique(rows.block)]
    found = []
    for _ in range(DRAWS):
        index = np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])
        sample = Rows(rows.work[index], rows.seconds[index], rows.tolerance[index], rows.block[index])
        centre = prior.median * np.exp(rng.normal(size=len(x)) * prior.spread)
        found.append(solved(sample, Prior(centre, prior.spread), x))
    return np.array(found)
