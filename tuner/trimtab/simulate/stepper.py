"""The compiled scheduler model, one engine step at a time, for those who keep their own clock (the emulator).

The same compiled functions as `simulate`; requests come and leave between any two steps. Memory follows what is live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate.blocks import lose
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.layout import Room, Store
from trimtab.simulate.loop import TRACED_PER_SLOT, one_step
from trimtab.simulate.simulator import more_rows
from trimtab.simulate.window import Contents, drop_ended, make_room

#: requests that fit at first; then room follows twice what is live
FIRST_ROOM: Final = 64
Reason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """One engine step: a batch planned and, of it or (asynchronous) the one before it, the tokens.

    Of the planned batch: `admitted` (id, cached tokens, whether it had run before), `preempted`, `aborted`, `scheduled`
    (id, tokens computed), `recomputed_tokens`. Of the computed one: `seconds`, `tokens` (ids that got one token each,
    finished ones included), `finished`, `prefill_tokens`, `decode_sequences`, `kv_tokens` (read by decode).
    `idle`: nothing was computed and nothing is planned. Asynchronous: the first step after idleness only plans
    (0 seconds, not idle); step again at once.
    """

    seconds: float
    admitted: list[tuple[int, int, bool]]
    preempted: list[int]
    aborted: list[int]
    scheduled: list[tuple[int, int]]
    tokens: list[int]
    finished: list[tuple[int, Reason]]
    prefill_tokens: int
    recomputed_tokens: int
    decode_sequences: int
    kv_tokens: int
    idle: bool


class Stepper:
    """An engine. Not for use by several threads at once."""

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self.config, self.times = config, times
        room = Room(FIRST_ROOM, traced=self._lines(FIRST_ROOM))
        if config.enable_prefix_caching:
            width = min(config.usable_blocks, config.max_model_len // config.block_size + 2)
            room = replace(room, rows=2 * config.active_limit, width=width)
        self._store = Store(config, times, room)
        c = self._store.state.c
        c[st.TRACE_MASK] = (1 << len(st.TRACE_KINDS)) - 1
        c[st.QUEUE_REQUESTS] = c[st.QUEUE_TOKENS] = 0
        self._contents = Contents()
        self._ids = np.zeros(FIRST_ROOM, np.int64)  # of each request in the store, ascending
        self._next_id = 0
        self._lengths: dict[int, bool] = {}  # live id -> whether it ends at its limit

    def _lines(self, requests: int) -> int:
        return (TRACED_PER_SLOT + 1) * self.config.active_limit + 2 * requests

    # --- requests -----------------------------------------------------------------------------------------------------

    def add(self, prompt: int, output: int, max_tokens: int, *, priority: int = 0, prefix: Sequence[int] = ()) -> int:
        """Queue a request of `prompt` tokens that stops by itself after `output`; its id, ascending.

        `prefix`: a name (64-bit integer) for each of its leading full blocks that others may share, equal names for
        equal tokens after an equal past. InputError for a request that no engine would take. Queue limits are the
        caller's to apply.
        """
        for name, value in (("prompt", prompt), ("output", output), ("max_tokens", max_tokens)):
            if not 1 <= value < 2**31:
                raise InputError(name, f"{value} is out of range", "Use at least 1 token.")
        limit = min(max_tokens, self.config.max_model_len - prompt)
        if limit < 1:
            problem = f"{prompt} tokens leave no room in max_model_len {self.config.max_model_len}"
            raise InputError("prompt", problem, "Shorten it.")
        shared = list(prefix)[: prompt // self.config.block_size] if self.config.enable_prefix_caching else []
        self._make_room(len(shared))
        store = self._store
        numbers = self._contents.number(store, shared, [1] * len(shared))
        c = store.state.c
        i, start = int(c[st.N_REQUESTS]), int(c[st.N_PREFIX_IDS])
        store.ints(st.PREFIX_IDS_AT)[start : start + len(shared)] = numbers
        row = store.requests[i]
        row[:] = 0
        row[[st.PROMPT, st.KNOWN]] = prompt
        row[[st.LIMIT, st.CAP, st.PRIORITY, st.ROW]] = limit, min(output, limit), priority, -1
        row[[st.PREFIX_START, st.PREFIX_COUNT]] = start, len(shared)
        store.moments[i] = -1.0
        store.moments[i, st.ARRIVAL] = self._now
        c[st.N_REQUESTS], c[st.N_PREFIX_IDS] = i + 1, start + len(shared)
        number = self._next_id
        self._ids[i] = number
        self._next_id += 1
        self._lengths[number] = output > limit
        return number

    def abort(self, number: int, *, during_step: bool = False) -> None:
        """Drop a request at the start of the next step, or in it, before its tokens come. Others are ignored, as by
        vLLM: those unknown, ended or dropped already.
        """
        if number not in self._lengths:
            return
        c = self._store.state.c
        i = int(np.searchsorted(self._ids[: c[st.N_REQUESTS]], number))
        row = self._store.requests[i]
        if row[st.GONE]:
            return
        row[[st.GONE, st.ENDING]] = 1, st.CANCELLED
        at = np.nextafter(self._now, np.inf) if during_step else self._now
        numbers, times = self._store.ints(st.PENDING_AT), self._store.floats(st.PENDING_TIMES_AT)
        head, tail = int(c[st.PENDING_HEAD]), int(c[st.PENDING_TAIL])
        place = head + int(np.searchsorted(times[head:tail], at, side="right"))
        numbers[place + 1 : tail + 1], times[place + 1 : tail + 1] = numbers[place:tail], times[place:tail]
        numbers[place], times[place] = i, at
        c[st.PENDING_TAIL] = tail + 1

    def lose_blocks(self, count: int) -> int:
        """A fault: up to `count` free blocks leave the pool for good and count as used. How many did."""
        lost = max(0, min(count, self.num_free_blocks))
        lose(*self._store.state, lost)
        return lost

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Advance by one engine step."""
        store, c = self._store, self._store.state.c
        if c[st.CACHING] and c[st.N_FREE_ROWS] < c[st.ACTIVE_LIMIT] - c[st.N_RUNNING]:
            store.grow(more_rows(store.room))
        c = store.state.c
        c[st.N_TRACE] = 0
        recomputed = int(c[st.RECOMPUTED_TOKENS])
        seconds = one_step(*store.state)
        return self._result(seconds, int(c[st.RECOMPUTED_TOKENS]) - recomputed)

    @property
    def running_count(self) -> int:
        return int(self._store.state.c[st.N_RUNNING])

    @property
    def waiting_count(self) -> int:
        """Those that the next step will find waiting, before aborts."""
        c = self._store.state.c
        return int(c[st.N_WAITING] + c[st.N_REQUESTS] - c[st.Q_TAIL])

    @property
    def unfinished_count(self) -> int:
        return len(self._lengths)

    @property
    def num_free_blocks(self) -> int:
        """Cached blocks that nobody holds included."""
        return int(self._store.state.c[st.FREE])

    @property
    def kv_usage(self) -> float:
        """Share of the usable blocks that are held, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.config.usable_blocks

    @property
    def _now(self) -> float:
        return float(self._store.state.f[self._store.state.c[st.CLOCKS_AT] + st.NOW])

    def _result(self, seconds: float, recomputed: int) -> StepResult:
        store, c = self._store, self._store.state.c
        rows = store.ints(st.TRACE_AT)[: 4 * c[st.N_TRACE]].reshape(-1, 4)
        ids = self._ids[rows[:, 2]]
        of = {kind: rows[:, 0] == kind for kind in range(len(st.TRACE_KINDS))}
        values = rows[:, 3]
        admitted = of[st.T_ADMITTED]
        again = store.requests[rows[admitted, 2], st.PREEMPTIONS] > 0
        ended = ids[of[st.T_FINISHED]].tolist()
        aborted = ids[of[st.T_ABORTED]].tolist()
        finished: list[tuple[int, Reason]] = [(n, "length" if self._lengths.pop(n) else "stop") for n in ended]
        for number in aborted:
            del self._lengths[number]
        work = np.zeros(st.WORK_COLUMNS, np.int64)
        if c[st.FLYING] >= 0:
            work = c[st.WORK_AT + c[st.FLYING] * st.WORK_COLUMNS :][: st.WORK_COLUMNS]
        return StepResult(
            seconds=max(seconds, 0.0),
            admitted=list(zip(ids[admitted].tolist(), values[admitted].tolist(), again.tolist(), strict=True)),
            preempted=ids[of[st.T_PREEMPTED]].tolist(),
            aborted=aborted,
            scheduled=list(zip(ids[of[st.T_SCHEDULED]].tolist(), values[of[st.T_SCHEDULED]].tolist(), strict=True)),
            tokens=ids[of[st.T_TOKEN]].tolist(),
            finished=finished,
            prefill_tokens=int(work[st.W_PREFILL]),
            recomputed_tokens=recomputed,
            decode_sequences=int(work[st.W_DECODE]),
            kv_tokens=int(work[st.W_KV]),
            idle=seconds < 0,
        )

    def _make_room(self, prefix_ids: int) -> None:
        c, room = self._store.state.c, self._store.room
        full = c[st.N_REQUESTS] == room.requests
        if not full and c[st.N_PREFIX_IDS] + prefix_ids <= room.prefix_ids:
            return
        known = int(c[st.N_REQUESTS])
        new = drop_ended(self._store)
        kept = int(c[st.N_REQUESTS])
        ids = self._ids[:known][new >= 0]
        # half of the room stays free, so that the next time comes after as many requests as are live
        make_room(self._store, max(1, kept), max(prefix_ids, int(c[st.N_PREFIX_IDS])))
        room = self._store.room
        if room.traced < self._lines(room.requests):
            self._store.grow(replace(room, traced=self._lines(room.requests)))
        self._ids = np.zeros(room.requests, np.int64)
        self._ids[:kept] = ids
