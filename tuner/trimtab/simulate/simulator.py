"""Host side of the compiled loop: arrays in, arrays out. `simulate` is the one entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.loop import run
from trimtab.simulate.outcome import Counters, Outcome
from trimtab.simulate.state import F64, I32, I64, State
from trimtab.simulate.workload import Workload, shared_contents


def simulate(
    load: Workload, config: EngineConfig, times: StepTimes | None = None, *, marks: bool = False, trace: bool = False
) -> Outcome:
    """Serve `load` to its end in virtual time.

    `marks`: keep the work done up to each request's admission, first and last token (what `fit` regresses on).
    `trace`: keep every scheduling decision. Requests that no engine would take end as `refused` or `rejected`, those
    that can never be admitted, and the ones queued behind them, as `stuck`.
    """
    times = times or StepTimes()
    state = build(load, config, times, marks=marks, trace=trace)
    while True:
        reason = run(state.m, state.c, state.f)
        if reason == st.FINISHED:
            break
        state = _GROW[reason](state)
    return _outcome(load, config, state)


def build(load: Workload, config: EngineConfig, times: StepTimes, *, marks: bool = False, trace: bool = False) -> State:
    """The state before the first step."""
    n, slots = len(load), config.active_limit
    start, count, ids, contents = _contents(load, config)
    r = _requests(load, config)
    r[:, st.PREFIX_START], r[:, st.PREFIX_COUNT] = start, count
    m, c, f = _Layout(), np.zeros(st.C_SIZE, np.int64), _Layout()
    m.add(r.reshape(-1))
    f.add(_when(load).reshape(-1))
    blocks = config.usable_blocks if config.enable_prefix_caching else 0
    width = _width(load, r, config) if blocks else 1
    rows = 2 * slots if blocks else 1
    room = 4 * (slots + n) + 1024 if trace else 0
    at, of = _timers(load)
    lists: dict[int, I32] = {
        st.RUNNING_AT: _zeros(slots),
        st.STACK_AT: _zeros((n if config.policy == "priority" else 2 * slots) + 1),
        st.BATCH_AT: _zeros(slots), st.COUNT_AT: _zeros(slots), st.READY_AT: _zeros(2 * slots),
        **_block_lists(blocks), st.BLOCK_OF_AT: _zeros(contents) - 1, st.PREFIX_IDS_AT: ids,
        st.TABLE_AT: _zeros(rows * width), st.FREE_ROWS_AT: np.arange(rows, dtype=np.int32), st.FOUND_AT: _zeros(width),
        st.EVENTS_AT: of, st.PENDING_AT: _zeros(n), st.TRACE_AT: _zeros(4 * room),
    }  # fmt: skip
    for place, values in lists.items():
        c[place] = m.add(values)
    clocks = np.zeros(st.CLOCKS)
    clocks[st.NOW], clocks[st.ABORT_DELAY] = (load.arrival[0] if n else 0.0), config.abort_delay_seconds
    for place, numbers in {
        st.CLOCKS_AT: clocks, st.COST_AT: times.coefficients(), st.DONE_AT: np.zeros(st.WORK_COLUMNS),
        st.EVENT_TIMES_AT: at, st.PENDING_TIMES_AT: np.zeros(n),
        st.MARKS_AT: np.zeros(n * 3 * st.WORK_COLUMNS if marks else 0),
    }.items():  # fmt: skip
        c[place] = f.add(numbers)
    c[: st.SETTINGS] = _settings(config, times)
    c[st.FREE], c[st.N_FREE_ROWS], c[st.IN_FLIGHT_BATCH] = config.usable_blocks, rows, -1
    c[st.N_BLOCKS], c[st.N_REQUESTS], c[st.N_EVENTS], c[st.WIDTH] = blocks, n, len(of), width
    c[st.TRACE_ROOM], c[st.MARKS_WANTED], c[st.N_ROWS] = room, marks, rows
    return State(np.concatenate(m.parts, dtype=np.int32), c, np.concatenate(f.parts, dtype=np.float64))


class _Layout:
    """Arrays one after the other."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.size = 0

    def add(self, values: Any) -> int:
        """Where `values` begin."""
        self.parts.append(values)
        self.size += len(values)
        return self.size - len(values)


def _zeros(shape: int | tuple[int, ...]) -> I32:
    return np.zeros(shape, np.int32)


def _settings(config: EngineConfig, times: StepTimes) -> I64:
    values = {
        st.ACTIVE_LIMIT: config.active_limit,
        st.BUDGET: config.max_num_batched_tokens,
        st.BLOCK_SIZE: config.block_size,
        st.USABLE: config.usable_blocks,
        st.WATERMARK: int(config.watermark * config.num_gpu_blocks),
        st.CACHING: config.enable_prefix_caching,
        st.FULL_PROMPT: config.reserve_full_prompt,
        st.CHUNKED: config.enable_chunked_prefill,
        st.LONG_PREFILL: config.long_prefill_token_threshold,
        st.BY_PRIORITY: config.policy == "priority",
        st.ASYNC: config.async_scheduling,
        st.RESERVE: config.admission == "reserve",
        st.QUEUE_REQUESTS: config.max_num_queued_reqs or 0,
        st.QUEUE_TOKENS: config.max_num_queued_tokens or 0,
        st.FREE_TOKENS: times.free_tokens,
    }
    return np.array([values[k] for k in range(st.SETTINGS)], dtype=np.int64)


def _requests(load: Workload, config: EngineConfig) -> I32:
    r = _zeros((len(load), st.RQ))
    limit = np.minimum(load.max_tokens, config.max_model_len - load.prompt)
    r[:, st.PROMPT] = r[:, st.KNOWN] = load.prompt
    r[:, st.LIMIT] = limit
    r[:, st.CAP] = np.minimum(load.output, limit)
    r[:, st.CANCEL] = load.cancel_tokens
    r[:, st.PRIORITY] = load.priority
    r[:, st.ROW] = -1
    r[limit < 1, st.ENDING] = st.REFUSED
    return r


def _when(load: Workload) -> F64:
    when = np.full((len(load), st.TQ), -1.0)
    when[:, st.ARRIVAL] = load.arrival
    return when


def _contents(load: Workload, config: EngineConfig) -> tuple[I64, I32, I32, int]:
    if config.enable_prefix_caching:
        return shared_contents(load, config.block_size)
    return np.zeros(len(load), np.int64), _zeros(len(load)), _zeros(0), 0


def _timers(load: Workload) -> tuple[F64, I32]:
    """When clients leave, in order; a bit marks those who only wait for a first token."""
    at = np.concatenate((load.cancel_at, load.arrival + load.patience))
    numbers = np.arange(len(load))
    of = np.concatenate((numbers * 2, numbers * 2 + 1))
    kept = np.isfinite(at)
    order = np.argsort(at[kept], kind="stable")
    return at[kept][order], of[kept][order].astype(np.int32)


def _block_lists(blocks: int) -> dict[int, I32]:
    """All blocks free, in a ring with its head, number `blocks`."""
    ring = np.arange(blocks + 1, dtype=np.int32)
    following, preceding = ring + 1, ring - 1
    following[-1], preceding[0] = 0, blocks
    none = _zeros(blocks) - 1
    return {
        st.FOLLOWING_AT: following, st.PRECEDING_AT: preceding, st.REFERENCES_AT: _zeros(blocks), st.CONTENT_AT: none,
        st.OWNER_AT: none, st.POSITION_AT: _zeros(blocks), st.TWIN_AT: none,
    }  # fmt: skip


def _width(load: Workload, r: I32, config: EngineConfig) -> int:
    """Blocks of the longest request."""
    ends = r[:, st.PROMPT] + np.maximum(r[:, st.LIMIT if config.admission == "reserve" else st.CAP], 0) + 1
    return min(config.usable_blocks, int(ends.max() // config.block_size) + 2 if len(load) else 1)


def _moved(state: State, place: int, used: int, room: int) -> State:
    """The list at `place` with its first `used` entries, at the end of `m` with `room` entries in all."""
    begin = int(state.c[place])
    state.c[place] = len(state.m)
    return state._replace(m=np.concatenate((state.m, state.m[begin : begin + used], _zeros(room - used))))


def _with_more_rows(state: State) -> State:
    """Twice the rows of the block table: under priority any number of preempted requests may remember theirs."""
    c = state.c
    width, free = int(c[st.WIDTH]), int(c[st.N_FREE_ROWS])
    rows = int(c[st.N_ROWS])
    c[st.N_ROWS] = 2 * rows
    state = _moved(state, st.TABLE_AT, rows * width, 2 * rows * width)
    state = _moved(state, st.FREE_ROWS_AT, free, 2 * rows)
    begin = int(c[st.FREE_ROWS_AT])
    state.m[begin + free : begin + free + rows] = np.arange(rows, 2 * rows)
    c[st.N_FREE_ROWS] += rows
    return state


def _with_more_trace(state: State) -> State:
    room = int(state.c[st.TRACE_ROOM])
    state.c[st.TRACE_ROOM] = 2 * room
    return _moved(state, st.TRACE_AT, 4 * room, 8 * room)


_GROW: dict[int, Callable[[State], State]] = {st.MORE_ROWS: _with_more_rows, st.MORE_TRACE: _with_more_trace}


def _outcome(load: Workload, config: EngineConfig, s: State) -> Outcome:
    n, c = len(load), s.c
    r, seen_at = s.m[: n * st.RQ].reshape(n, st.RQ), s.f[: n * st.TQ].reshape(n, st.TQ)
    ending = r[:, st.ENDING].copy()
    ending[(ending == st.STOP) & (load.output > r[:, st.LIMIT])] = st.LENGTH
    when: dict[str, Any] = {
        name: np.where(seen_at[:, column] < 0, np.nan, seen_at[:, column])
        for name, column in (("scheduled", st.SCHEDULED), ("first", st.FIRST), ("last", st.LAST), ("end", st.END))
    }
    f = s.f[c[st.CLOCKS_AT] : c[st.CLOCKS_AT] + st.CLOCKS]
    counters = Counters(
        steps=int(c[st.STEPS]), busy_seconds=float(f[st.BUSY]), end_seconds=float(f[st.NOW]),
        preemptions=int(c[st.N_PREEMPTIONS]), prefill_tokens=int(c[st.PREFILL_TOKENS]),
        recomputed_tokens=int(c[st.RECOMPUTED_TOKENS]), generation_tokens=int(c[st.GENERATED]),
        prefix_cache_queries=int(c[st.QUERIES]), prefix_cache_hits=int(c[st.HITS]),
        peak_running=int(c[st.PEAK_RUNNING]), peak_kv_usage=float(c[st.PEAK_USED] / config.usable_blocks),
        mean_kv_usage=_mean(f, st.USED_SECONDS) / config.usable_blocks,
        mean_unused_share=_mean(f, st.UNUSED_SECONDS) / config.usable_blocks,
        mean_running=_mean(f, st.RUNNING_SECONDS),
    )  # fmt: skip
    marks = s.f[c[st.MARKS_AT] :].reshape(-1, 3, st.WORK_COLUMNS)
    trace = s.m[c[st.TRACE_AT] : c[st.TRACE_AT] + 4 * c[st.N_TRACE]].reshape(-1, 4)
    return Outcome(
        load=load, ending=ending, tokens=r[:, st.TOKENS], preemptions=r[:, st.PREEMPTIONS], cached=r[:, st.CACHED],
        recomputed=r[:, st.RECOMPUTED], counters=counters, marks=marks, trace=trace, **when,
    )  # fmt: skip


def _mean(f: F64, column: int) -> float:
    """Over the time in which the engine computed."""
    return float(f[column] / f[st.BUSY]) if f[st.BUSY] > 0 else 0.0
