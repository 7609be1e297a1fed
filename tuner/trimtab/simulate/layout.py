"""Where everything lies in the arrays of a `State`: building them, making room, reading a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.state import F64, I32, I64, State

M_LISTS: Final = (
    st.RUNNING_AT, st.STACK_AT, st.BATCH_AT, st.COUNT_AT, st.READY_AT,
    st.FOLLOWING_AT, st.PRECEDING_AT, st.REFERENCES_AT, st.CONTENT_AT, st.TWIN_AT, st.BLOCK_OF_AT,
    st.PREFIX_IDS_AT, st.TABLE_AT, st.FREE_ROWS_AT, st.FOUND_AT, st.EVENTS_AT, st.PENDING_AT,
    st.TRACE_AT, st.EXPLICIT_AT, st.DUE_AT, st.DUE_COUNT_AT,
)  # fmt: skip
F_LISTS: Final = (
    st.CLOCKS_AT,
    st.COST_AT,
    st.DONE_AT,
    st.EVENT_TIMES_AT,
    st.PENDING_TIMES_AT,
    st.MARKS_AT,
    st.SAMPLES_AT,
)


@dataclass(frozen=True, slots=True)
class Room:
    """How many of each kind fit. `width`: blocks of the longest request; `traced`: lines of the trace."""

    requests: int
    contents: int = 0
    prefix_ids: int = 0
    rows: int = 1
    width: int = 1
    traced: int = 0
    samples: int = 0
    marks: bool = False

    def sizes(self, config: EngineConfig) -> dict[int, int]:
        """Length of each list, by its place in `State.c`."""
        n, slots = self.requests, config.active_limit
        blocks = config.usable_blocks if config.enable_prefix_caching else 0
        return {
            st.FOLLOWING_AT: blocks + 1, st.PRECEDING_AT: blocks + 1,
            st.REFERENCES_AT: blocks, st.CONTENT_AT: blocks, st.TWIN_AT: blocks,
            st.RUNNING_AT: slots, st.BATCH_AT: slots, st.COUNT_AT: slots, st.READY_AT: 2 * slots,
            st.STACK_AT: (n if config.policy == "priority" else 2 * slots) + 1,
            st.BLOCK_OF_AT: self.contents, st.PREFIX_IDS_AT: self.prefix_ids,
            st.TABLE_AT: self.rows * self.width, st.FREE_ROWS_AT: self.rows, st.FOUND_AT: self.width,
            st.EVENTS_AT: 2 * n, st.PENDING_AT: n, st.TRACE_AT: 4 * self.traced,
            st.CLOCKS_AT: st.CLOCKS, st.COST_AT: st.WORK_COLUMNS, st.DONE_AT: st.WORK_COLUMNS,
            st.EVENT_TIMES_AT: 2 * n, st.PENDING_TIMES_AT: n,
            st.EXPLICIT_AT: 2 * slots, st.DUE_AT: config.block_size + 1, st.DUE_COUNT_AT: config.block_size + 1,
            st.SAMPLES_AT: self.samples * st.SAMPLE_COLUMNS,
            st.MARKS_AT: 3 * st.WORK_COLUMNS * n if self.marks else 0,
        }  # fmt: skip


class Store:
    """A `State` and the room in it. `ints` and `floats` are views of its lists, valid until `grow`."""

    def __init__(self, config: EngineConfig, times: StepTimes, room: Room) -> None:
        self.config, self.room = config, room
        self.state = State(np.zeros(0, np.int32), np.zeros(st.C_SIZE, np.int64), np.zeros(0))
        self._sizes = dict.fromkeys(M_LISTS + F_LISTS, 0)
        self._lay_out(0, room)
        c = self.state.c
        c[: st.SETTINGS] = _settings(config, times)
        blocks = config.usable_blocks if config.enable_prefix_caching else 0
        c[st.FREE], c[st.N_FREE_ROWS], c[st.N_ROWS] = config.usable_blocks, room.rows, room.rows
        c[st.IN_FLIGHT_BATCH] = c[st.FLYING] = -1
        c[st.SWAPPING], c[st.CPU_FREE] = config.preemption == "swap", config.cpu_blocks
        # a trace shows everyone in every step; behind another's unfinished prefill a request may get nothing
        c[st.COASTS] = not (room.traced or config.long_prefill_token_threshold)
        c[st.TICK], c[st.N_EXPLICIT] = 1, -1
        self.ints(st.DUE_AT)[:] = -1
        c[st.N_BLOCKS], c[st.WIDTH], c[st.MARKS_WANTED] = blocks, room.width, room.marks
        self.ints(st.FREE_ROWS_AT)[:] = np.arange(room.rows)
        for place in (st.BLOCK_OF_AT, st.CONTENT_AT, st.TWIN_AT):
            self.ints(place)[:] = -1
        ring = np.arange(blocks + 1)  # all blocks free, in a ring with its head, number `blocks`
        self.ints(st.FOLLOWING_AT)[:], self.ints(st.PRECEDING_AT)[:] = np.roll(ring, -1), np.roll(ring, 1)
        self.floats(st.COST_AT)[:] = times.coefficients()
        clocks = self.floats(st.CLOCKS_AT)
        clocks[st.ABORT_DELAY], clocks[st.HORIZON] = config.abort_delay_seconds, np.inf
        clocks[st.NEXT_SAMPLE] = np.inf

    @property
    def requests(self) -> I32:
        """(room, RQ)."""
        n = self.room.requests
        return self.state.m[: n * st.RQ].reshape(n, st.RQ)

    @property
    def moments(self) -> F64:
        """(room, TQ), seconds."""
        n = self.room.requests
        return self.state.f[: n * st.TQ].reshape(n, st.TQ)

    def ints(self, place: int) -> I32:
        begin = int(self.state.c[place])
        return self.state.m[begin : begin + self._sizes[place]]

    def floats(self, place: int) -> F64:
        begin = int(self.state.c[place])
        return self.state.f[begin : begin + self._sizes[place]]

    def grow(self, room: Room) -> None:
        """At least as much room as before for each kind; `width` stays."""
        old = self.room
        self.room = room
        self._lay_out(old.requests, room)
        c = self.state.c
        self.ints(st.BLOCK_OF_AT)[old.contents :] = -1
        free, rows = int(c[st.N_FREE_ROWS]), room.rows - old.rows
        self.ints(st.FREE_ROWS_AT)[free : free + rows] = np.arange(old.rows, room.rows)
        c[st.N_FREE_ROWS] += rows
        c[st.N_ROWS] = room.rows

    def _lay_out(self, old_requests: int, room: Room) -> None:
        sizes, c = room.sizes(self.config), self.state.c
        m: Any = np.zeros(room.requests * st.RQ + sum(sizes[place] for place in M_LISTS), np.int32)
        f: Any = np.zeros(room.requests * st.TQ + sum(sizes[place] for place in F_LISTS))
        for new, old, lists, columns in ((m, self.state.m, M_LISTS, st.RQ), (f, self.state.f, F_LISTS, st.TQ)):
            new[: old_requests * columns] = old[: old_requests * columns]
            at = room.requests * columns
            for place in lists:
                kept = min(self._sizes[place], sizes[place])
                begin = int(c[place])
                new[at : at + kept] = old[begin : begin + kept]
                c[place] = at
                at += sizes[place]
        c[st.TRACE_ROOM], c[st.SAMPLE_ROOM] = room.traced, room.samples
        self._sizes = sizes
        self.state = State(m, c, f)


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
        st.ADAPTIVE: config.long_prefill_token_threshold_adaptive,
    }
    return np.array([values[k] for k in range(st.SETTINGS)], dtype=np.int64)
