"""`simulate`: a whole load through the compiled loop, arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.layout import Room, Store
from trimtab.simulate.loop import run
from trimtab.simulate.outcome import Counters, Outcome
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Shared, Workload, blocks_of_chunks

#: kinds in `Outcome.trace`: all but single tokens
TRACED: Final = sum(1 << kind for kind in range(len(st.TRACE_KINDS)) if kind != st.T_TOKEN)


def simulate(
    load: Workload,
    config: EngineConfig,
    times: StepTimes | None = None,
    *,
    marks: bool = False,
    trace: bool = False,
    sample_seconds: float | None = None,
) -> Outcome:
    """Serve `load` to its end in virtual time.

    `marks`: keep the work done up to each request's admission, first and last token (what `fit` regresses on).
    `trace`: keep every scheduling decision. `sample_seconds`: keep running, waiting, used blocks and more at the first
    step end after each such interval (none while idle). Requests that no engine would take end as `refused` or
    `rejected`, those that can never be admitted, and the ones queued behind them, as `stuck`.
    """
    store = build(load, config, times or StepTimes(), marks=marks, trace=trace)
    if sample_seconds is not None:
        start_sampling(store, sample_seconds)
    drive(store)
    return _outcome(load, store)


def drive(store: Store) -> int:
    """Run to the end (FINISHED) or as far as arrivals are known (MORE_REQUESTS)."""
    while (reason := run(*store.state)) in GROW:
        store.grow(GROW[reason](store.room))
    return reason


def build(load: Workload, config: EngineConfig, times: StepTimes, *, marks: bool = False, trace: bool = False) -> Store:
    """The state before the first step, with all of `load`."""
    n = len(load)
    rows = request_rows(load, config)
    room = Room(n, marks=marks, traced=4 * (config.active_limit + n) + 1024 if trace else 0)
    shared, base = Shared(load, config.block_size), np.zeros(1, np.int64)
    if config.enable_prefix_caching:
        rows[:, st.PREFIX_START], rows[:, st.PREFIX_COUNT] = shared.start, shared.count
        base = np.concatenate((base, np.cumsum(blocks_of_chunks(load, config.block_size))))
        room = replace(room, contents=int(base[-1]), prefix_ids=shared.total)
        room = replace(room, rows=2 * config.active_limit, width=_width(load, rows, config))
    store = Store(config, times, room)
    store.requests[:] = rows
    store.moments[:] = request_moments(load)
    if config.enable_prefix_caching:
        shared.write(base, store.ints(st.PREFIX_IDS_AT))
    at, of = timers(load)
    store.floats(st.EVENT_TIMES_AT)[: len(at)], store.ints(st.EVENTS_AT)[: len(of)] = at, of
    store.floats(st.CLOCKS_AT)[st.NOW] = load.arrival[0] if n else 0.0
    c = store.state.c
    c[st.N_REQUESTS], c[st.N_EVENTS], c[st.TRACE_MASK] = n, len(of), TRACED
    return store


def start_sampling(store: Store, seconds: float) -> None:
    """InputError for an interval that is none."""
    if not 0 < seconds < float("inf"):
        raise InputError("sample_seconds", f"{seconds} is no interval", "Use seconds above 0.")
    store.grow(replace(store.room, samples=1024))
    clocks = store.floats(st.CLOCKS_AT)
    clocks[st.SAMPLE_EVERY], clocks[st.NEXT_SAMPLE] = seconds, clocks[st.NOW]


def more_rows(room: Room) -> Room:
    """Twice the rows of the block table: under priority any number of preempted requests may remember theirs."""
    return replace(room, rows=2 * room.rows)


def more_trace(room: Room) -> Room:
    return replace(room, traced=2 * room.traced)


def more_samples(room: Room) -> Room:
    return replace(room, samples=2 * room.samples)


#: what to grow when `run` returns with this
GROW: Final[dict[int, Callable[[Room], Room]]] = {
    st.MORE_ROWS: more_rows,
    st.MORE_TRACE: more_trace,
    st.MORE_SAMPLES: more_samples,
}


def request_rows(load: Workload, config: EngineConfig) -> I32:
    """(n, RQ), without their shared contents."""
    r = np.zeros((len(load), st.RQ), np.int32)
    limit = np.minimum(load.max_tokens, config.max_model_len - load.prompt)
    r[:, st.PROMPT] = r[:, st.KNOWN] = load.prompt
    r[:, st.LIMIT] = limit
    r[:, st.CAP] = np.minimum(load.output, limit)
    r[:, st.OUTPUT] = load.output
    r[:, st.CANCEL] = load.cancel_tokens
    r[:, st.PRIORITY] = load.priority
    r[:, st.ROW] = -1
    r[limit < 1, st.ENDING] = st.REFUSED
    return r


def request_moments(load: Workload) -> F64:
    """(n, TQ)."""
    when = np.full((len(load), st.TQ), -1.0)
    when[:, st.ARRIVAL] = load.arrival
    return when


def timers(load: Workload) -> tuple[F64, I32]:
    """When clients leave, in order; a bit marks those who only wait for a first token."""
    at = np.concatenate((load.cancel_at, load.arrival + load.patience))
    numbers = np.arange(len(load))
    of = np.concatenate((numbers * 2, numbers * 2 + 1))
    kept = np.isfinite(at)
    order = np.argsort(at[kept], kind="stable")
    return at[kept][order], of[kept][order].astype(np.int32)


def _width(load: Workload, r: I32, config: EngineConfig) -> int:
    """Blocks of the longest request."""
    ends = r[:, st.PROMPT] + np.maximum(r[:, st.LIMIT if config.admission == "reserve" else st.CAP], 0) + 1
    return min(config.usable_blocks, int(ends.max() // config.block_size) + 2 if len(load) else 1)


def _outcome(load: Workload, store: Store) -> Outcome:
    r, c = store.requests, store.state.c
    when: dict[str, Any] = {
        name: np.where(store.moments[:, column] < 0, np.nan, store.moments[:, column])
        for name, column in (("scheduled", st.SCHEDULED), ("first", st.FIRST), ("last", st.LAST), ("end", st.END))
    }
    marks = store.floats(st.MARKS_AT).reshape(-1, 3, st.WORK_COLUMNS)
    trace = store.ints(st.TRACE_AT)[: 4 * c[st.N_TRACE]].reshape(-1, 4)
    samples = store.floats(st.SAMPLES_AT)[: c[st.N_SAMPLES] * st.SAMPLE_COLUMNS].reshape(-1, st.SAMPLE_COLUMNS)
    return Outcome(
        load=load, ending=endings(r), tokens=r[:, st.TOKENS], preemptions=r[:, st.PREEMPTIONS], cached=r[:, st.CACHED],
        recomputed=r[:, st.RECOMPUTED], counters=totals(store), marks=marks, trace=trace,
        samples=samples, **when,
    )  # fmt: skip


def endings(rows: I32) -> I32:
    """(n, RQ) -> how each request ended, of `state.ENDINGS`."""
    ending = rows[:, st.ENDING].copy()
    ending[(ending == st.STOP) & (rows[:, st.OUTPUT] > rows[:, st.LIMIT])] = st.LENGTH
    return ending


def totals(store: Store) -> Counters:
    c, f, usable = store.state.c, store.floats(st.CLOCKS_AT), store.config.usable_blocks
    return Counters(
        steps=int(c[st.STEPS]), busy_seconds=float(f[st.BUSY]), end_seconds=float(f[st.NOW]),
        preemptions=int(c[st.N_PREEMPTIONS]), prefill_tokens=int(c[st.PREFILL_TOKENS]),
        recomputed_tokens=int(c[st.RECOMPUTED_TOKENS]), generation_tokens=int(c[st.GENERATED]),
        prefix_cache_queries=int(c[st.QUERIES]), prefix_cache_hits=int(c[st.HITS]),
        peak_running=int(c[st.PEAK_RUNNING]), peak_kv_usage=float(c[st.PEAK_USED] / usable),
        mean_kv_usage=_mean(f, st.USED_SECONDS) / usable,
        mean_unused_share=_mean(f, st.UNUSED_SECONDS) / usable,
        mean_running=_mean(f, st.RUNNING_SECONDS), swapped_out_blocks=int(c[st.SWAPPED_OUT]),
    )  # fmt: skip


def _mean(f: F64, column: int) -> float:
    """Over the time in which the engine computed."""
    return float(f[column] / f[st.BUSY]) if f[st.BUSY] > 0 else 0.0
