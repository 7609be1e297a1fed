"""Step times from nothing but a target's metrics over time.

Per segment three means are exact (sums and counts of vLLM's histograms): decode seconds per token, seconds from
admission to the first token, and, where the engine never rested, seconds per step. The simulator, fed with the same
arrivals and lengths, says what was computed meanwhile; that makes each mean linear in the coefficients.

What is identifiable: from one steady segment only sums (a decode step, a prefill). Segments of different load separate
the fixed part from the part per sequence and per KV token. Never separated: attention over the prompt from the prompt's
tokens, unless prompt lengths change over time. The rest is the prior's, and the draws show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trimtab.errors import InputError
from trimtab.observe.observation import Observation
from trimtab.simulate import state as st
from trimtab.simulate.calibrate.period import Period
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.fit import (
    DRAWS,
    FITTED,
    FITTED_AT,
    STEP_SHARE,
    WEAK,
    Fitted,
    Prior,
    Rows,
    solved,
    times_of,
    work_at,
)
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.profile import requests_at
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64
from trimtab.simulate.workload import Workload

ROUNDS: Final = 8
#: arrivals within a scrape interval and the order of lengths are not known: means over so many guesses
SEEDS: Final = 2
#: a segment's mean is off by this share for what the model leaves out, beside sampling
MODEL_ERROR: Final = 0.03
#: rounds end when no predicted mean moves by more than this
SETTLED: Final = 0.003
_BY_CONCURRENCY: Final = [FITTED.index("per_decode_seq"), FITTED.index("per_kv_token")]


@dataclass(frozen=True)
class MetricsRun:
    """`fitted`: how many of the period's segments may be used; the rest is held out, but simulated."""

    period: Period
    config: EngineConfig
    fitted: int


def fit_metrics(runs: Sequence[MetricsRun], prior: Prior = WEAK, *, seed: int = 0) -> Fitted:
    """Coefficients that explain all runs. InputError when no mean can be used."""
    loads = [[replayed(run.period, seed + k) for k in range(SEEDS)] for run in runs]
    x = prior.median.copy()
    for round_ in range(ROUNDS):
        parts = [
            _rows(run, [simulate(load, run.config, times_of(x), marks=True) for load in guesses], x)
            for run, guesses in zip(runs, loads, strict=True)
        ]
        rows = _stacked(parts)
        found = solved(rows, prior, x)
        moved = float(np.max(np.abs(rows.work @ found / (rows.work @ x) - 1)))
        # not of logarithms: sums must stay
        x = found if round_ < ROUNDS // 2 else (x + found) / 2
        if moved < SETTLED:
            break
    draws = _draws(rows, prior, x, np.random.default_rng(seed))
    error = rows.work @ x / rows.seconds - 1
    return Fitted(
        times_of(x),
        dict(zip(FITTED, np.std(draws, axis=0, ddof=1).tolist(), strict=True)),
        tuple(times_of(draw) for draw in draws),
        float(np.sqrt(np.mean(error**2))),
    )


def replayed(period: Period, seed: int) -> Workload:
    """The period's requests once more. Those in flight at the start have a random part of their output left."""
    rng = np.random.default_rng([seed, 100])
    load = requests_at(period.load, period.arrivals(rng), seed, stratified=True)
    if period.begun:
        left = np.maximum(1, (load.output[: period.begun] * rng.random(period.begun)).astype(np.int32))
        load.output[: period.begun] = left
        load.cancel_tokens[: period.begun] = 0
    return load


def members(period: Period, outcome: Outcome, k: int) -> npt.NDArray[np.bool_]:
    """Which requests ended normally in segment k, as the engine counts them."""
    last = k == len(period.segments) - 1
    until = np.inf if last else period.edges[k + 1]
    within: npt.NDArray[np.bool_] = (outcome.end >= period.edges[k]) & (outcome.end < until)
    return outcome.ok & within


def _rows(run: MetricsRun, outcomes: Sequence[Outcome], x: F64) -> Rows:
    found: list[tuple[F64, float, float]] = []
    for k in range(run.fitted):
        segment = run.period.segments[k]
        more = np.ones(len(FITTED))
        more[_BY_CONCURRENCY] = _concurrency_ratio(run, outcomes, k, segment)
        rows = (
            _decode_row(run, outcomes, k, segment, x),
            _prefill_row(run, outcomes, k, segment, x),
            _step_row(run, outcomes, k, segment),
        )
        found += [(row[0] * more, row[1], row[2]) for row in rows if row is not None]
    if not found:
        raise InputError("range", "no mean of it can be used", "Take a longer range with more finished requests.")
    work, seconds, tolerance = (np.array(column) for column in zip(*found, strict=True))
    return Rows(work, seconds, tolerance, np.arange(len(seconds)))


def _concurrency_ratio(run: MetricsRun, outcomes: Sequence[Outcome], k: int, segment: Observation) -> float:
    """How many more requests ran at once than in the simulation: who came when, and how long it was, is guessed there.

    By the gauge; time in the engine of the requests that ended (Little's law) is biased where load rises or falls. The
    fewer scrapes, the less it counts.
    """
    since, until = run.period.edges[k : k + 2]
    ours = []
    for outcome in outcomes:
        end = np.where(np.isnan(outcome.end), np.inf, outcome.end)
        inside = np.minimum(end, until) - np.maximum(outcome.scheduled, since)
        ours.append(float(np.nansum(np.maximum(0.0, inside))) / (until - since))
    mean = float(np.mean(ours))
    if not segment.running or mean <= 0:
        return 1.0
    return float(np.clip(segment.running / mean, 0.5, 2.0) ** _trust(run.period.scrapes[k], until - since, segment))


def _trust(scrapes: int, seconds: float, segment: Observation) -> float:
    """Share of the gauge mean's variance that is real, for requests that come at random and stay some time.

    The true mean over the segment varies with stay / length; a mean of samples further apart than a stay, with 1 / n.
    """
    e2e, queue = segment.e2e_seconds, segment.queue_seconds
    stay = ((e2e.mean or 0.0) if e2e else 0.0) - ((queue.mean or 0.0) if queue else 0.0)
    if stay <= 0 or scrapes < 1:
        return 0.5
    real = min(1.0, 2 * stay / seconds)
    sampling = min(1.0, seconds / scrapes / (2 * stay)) / scrapes
    return real / (real + sampling)


def _decode_row(
    run: MetricsRun, outcomes: Sequence[Outcome], k: int, segment: Observation, x: F64
) -> tuple[F64, float, float] | None:
    """Per token after the first: all decode time over all such tokens."""
    spent, useful = segment.decode_seconds, segment.useful_tokens
    if spent is None or useful is None or useful - spent.count < 1 or spent.sum <= 0:
        return None
    parts, gaps = [], []
    for outcome in outcomes:
        mine = members(run.period, outcome, k) & (outcome.tokens > 1)
        parts.append((outcome.marks[:, 2] - outcome.marks[:, 1])[mine][:, list(FITTED_AT)])
        gaps.append(outcome.tokens[mine] - 1)
    work, tokens = np.concatenate(parts), np.concatenate(gaps)
    if not len(tokens):
        return None
    target = spent.sum / (useful - spent.count)
    spread = np.std(work @ x / tokens) / np.sqrt(max(1.0, spent.count))
    return work.sum(axis=0) / tokens.sum(), target, float(np.hypot(MODEL_ERROR * target, spread))


def _prefill_row(
    run: MetricsRun, outcomes: Sequence[Outcome], k: int, segment: Observation, x: F64
) -> tuple[F64, float, float] | None:
    """From admission to the first token; from the arrival where the engine does not show it."""
    shown = segment.prefill_seconds or segment.ttft_seconds
    if shown is None or shown.mean is None or shown.sum <= 0:
        return None
    parts, steps = [], []
    for outcome in outcomes:
        mine = members(run.period, outcome, k)
        marks = outcome.marks
        begin = marks[:, 0] if segment.prefill_seconds else work_at(outcome, outcome.load.arrival)
        parts.append((marks[:, 1] - begin)[mine][:, list(FITTED_AT)])
        steps.append(outcome.counters.busy_seconds / max(1, outcome.counters.steps))
    work = np.concatenate(parts)
    if not len(work) or not work[:, 0].sum() > 0:
        return None
    spread = np.std(work @ x) / np.sqrt(max(1.0, shown.count))
    chance = STEP_SHARE * float(np.mean(steps)) / 2
    return work.mean(axis=0), shown.mean, float(np.hypot(MODEL_ERROR * shown.mean + chance, spread))


def _step_row(
    run: MetricsRun, outcomes: Sequence[Outcome], k: int, segment: Observation
) -> tuple[F64, float, float] | None:
    """Seconds per step, where the engine computed all the time."""
    if not segment.engine_steps or not run.period.always_busy[k]:
        return None
    edges = run.period.edges[k : k + 2]
    done = np.mean([np.diff(work_at(outcome, edges), axis=0)[0] for outcome in outcomes], axis=0)
    if done[st.W_STEPS] < 1:
        return None
    target = segment.window_seconds / segment.engine_steps
    return (done / done[st.W_STEPS])[list(FITTED_AT)], target, MODEL_ERROR * target


def _stacked(parts: Sequence[Rows]) -> Rows:
    work = np.concatenate([p.work for p in parts])
    return Rows(
        work,
        np.concatenate([p.seconds for p in parts]),
        np.concatenate([p.tolerance for p in parts]),
        np.arange(len(work)),
    )


def _draws(rows: Rows, prior: Prior, x: F64, rng: np.random.Generator) -> F64:
    """Means moved within their tolerance, or by as much as the fit misses them; the prior's centre drawn from it."""
    missed = float(np.sqrt(np.mean(((rows.work @ x - rows.seconds) / rows.tolerance) ** 2)))
    moves = rows.tolerance * max(1.0, missed)
    found = []
    for _ in range(DRAWS):
        seconds = np.maximum(rows.seconds + rng.normal(size=len(rows.seconds)) * moves, 0.2 * rows.seconds)
        centre = prior.median * np.exp(rng.normal(size=len(x)) * prior.spread)
        moved = Rows(rows.work, seconds, rows.tolerance, rows.block)
        found.append(solved(moved, Prior(centre, prior.spread), x))
    return np.array(found)
