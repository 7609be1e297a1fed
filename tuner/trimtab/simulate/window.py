"""Memory for what is live: requests that ended are dropped and the rest numbered anew, in their old order.

Everything in a `Store` that names requests or contents follows: a run after `drop_ended` goes on as it would have.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trimtab.simulate import state as st
from trimtab.simulate.layout import Store
from trimtab.simulate.state import F64, I32, I64


def ended(store: Store) -> npt.NDArray[np.bool_]:
    """Per request known: whether it is over for engine and client."""
    n = int(store.state.c[st.N_REQUESTS])
    return np.asarray(store.requests[:n, st.STATUS] == st.DONE)


def drop_ended(store: Store) -> I32:
    """Forget requests that ended. Returns the new number of each old one, -1: dropped."""
    gone = ended(store)
    kept = np.flatnonzero(~gone)
    new = np.full(len(gone), -1, np.int32)
    new[kept] = np.arange(len(kept))
    c = store.state.c
    _follow_prefixes(store, kept)
    store.requests[: len(kept)] = store.requests[kept]
    store.moments[: len(kept)] = store.moments[kept]
    c[st.N_REQUESTS] = len(kept)
    c[st.Q_HEAD], c[st.Q_TAIL] = np.searchsorted(kept, (c[st.Q_HEAD], c[st.Q_TAIL]))
    running = store.ints(st.RUNNING_AT)
    running[: c[st.N_RUNNING]] = new[running[: c[st.N_RUNNING]]]
    c[st.N_STACK] = _follow(store.ints(st.STACK_AT), int(c[st.N_STACK]), new)
    if c[st.BY_PRIORITY]:
        _order_heap(store)
    limit = int(c[st.ACTIVE_LIMIT])
    for slot in range(2):
        ready = store.ints(st.READY_AT)[slot * limit :]
        c[st.READY_COUNT + slot] = _follow(ready, int(c[st.READY_COUNT + slot]), new)
    _follow_coasters(store, new)
    _follow_events(store, new)
    _follow_pending(store, new)
    content = store.ints(st.CONTENT_AT)
    own = np.flatnonzero(content <= st.OWN)
    owner = new[st.OWN - content[own]]
    content[own] = np.where(owner >= 0, st.OWN - owner, -1)
    return new


def _follow(numbers: I32, count: int, new: I32) -> int:
    """Renumber the first `count` in place, without those dropped; how many are left."""
    renumbered = new[numbers[:count]]
    kept = renumbered[renumbered >= 0]
    numbers[: len(kept)] = kept
    return len(kept)


def _follow_coasters(store: Store, new: I32) -> None:
    c = store.state.c
    if c[st.N_EXPLICIT] > 0:
        c[st.N_EXPLICIT] = _follow(store.ints(st.EXPLICIT_AT), int(c[st.N_EXPLICIT]), new)
    due = store.ints(st.DUE_AT)
    due[due >= 0] = new[due[due >= 0]]
    rows = store.requests[: c[st.N_REQUESTS]]
    for column in (st.DUE_NEXT, st.DUE_PREVIOUS):
        linked = np.flatnonzero((rows[:, st.COASTING] > 0) & (rows[:, column] >= 0))
        rows[linked, column] = new[rows[linked, column]]


def _order_heap(store: Store) -> None:
    """Sorted is a heap too, and its order is total: what comes out is the same."""
    heap = store.ints(st.STACK_AT)[: store.state.c[st.N_STACK]]
    heap[:] = heap[np.lexsort((heap, store.requests[heap, st.PRIORITY]))]


def _follow_prefixes(store: Store, kept: I64) -> None:
    """Contents that only dropped requests named leave the list."""
    c, rows, ids = store.state.c, store.requests, store.ints(st.PREFIX_IDS_AT)
    count, start = rows[kept, st.PREFIX_COUNT].astype(np.int64), rows[kept, st.PREFIX_START].astype(np.int64)
    begin = np.cumsum(count) - count
    total = int(count.sum())
    ids[:total] = ids[np.repeat(start - begin, count) + np.arange(total)]
    rows[kept, st.PREFIX_START] = begin
    c[st.N_PREFIX_IDS] = total


def _follow_events(store: Store, new: I32) -> None:
    c = store.state.c
    ahead = slice(int(c[st.NEXT_EVENT]), int(c[st.N_EVENTS]))
    of, at = store.ints(st.EVENTS_AT)[ahead], store.floats(st.EVENT_TIMES_AT)[ahead]
    number = new[of >> 1]
    live = number >= 0
    set_events(store, at[live], (number * 2 + (of & 1))[live])


def set_events(store: Store, at: F64, of: I32) -> None:
    """The timers still to come, in order of time."""
    store.floats(st.EVENT_TIMES_AT)[: len(at)] = at
    store.ints(st.EVENTS_AT)[: len(of)] = of
    store.state.c[st.NEXT_EVENT], store.state.c[st.N_EVENTS] = 0, len(of)


def _follow_pending(store: Store, new: I32) -> None:
    c = store.state.c
    ahead = slice(int(c[st.PENDING_HEAD]), int(c[st.PENDING_TAIL]))
    number, at = new[store.ints(st.PENDING_AT)[ahead]], store.floats(st.PENDING_TIMES_AT)[ahead]
    live = number >= 0
    kept = int(live.sum())
    store.floats(st.PENDING_TIMES_AT)[:kept] = at[live]
    store.ints(st.PENDING_AT)[:kept] = number[live]
    c[st.PENDING_HEAD], c[st.PENDING_TAIL] = 0, kept


def make_room(store: Store, requests: int, prefix_ids: int) -> None:
    """For so many more requests and prefix ids; at least twice what is live, so that growing stays rare."""
    c, room = store.state.c, store.room
    wanted, ids = int(c[st.N_REQUESTS]) + requests, int(c[st.N_PREFIX_IDS]) + prefix_ids
    if wanted > room.requests or ids > room.prefix_ids:
        store.grow(
            replace(
                room,
                requests=2 * wanted if wanted > room.requests else room.requests,
                prefix_ids=2 * ids if ids > room.prefix_ids else room.prefix_ids,
            )
        )


class Contents:
    """Names of shared contents (any integers) and the range of numbers that each has in `BLOCK_OF_AT`."""

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[int, int]] = {}
        self._used = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def number(self, store: Store, names: list[int], lengths: list[int]) -> I64:
        """The first number of each name, which has `lengths` of them. Renumbers where room runs out."""
        ranges = self._ranges
        wanted = sum(n for name, n in zip(names, lengths, strict=True) if name not in ranges or ranges[name][1] < n)
        if self._used + wanted > store.room.contents:
            self._forget_unused(store)
            wanted = sum(lengths)
            if 2 * (self._used + wanted) > store.room.contents:  # else the next call may have to forget again
                store.grow(replace(store.room, contents=2 * (self._used + wanted)))
        begin = np.empty(len(names), np.int64)
        for k, (name, length) in enumerate(zip(names, lengths, strict=True)):
            known = self._ranges.get(name)
            if known is None or known[1] < length:
                known = self._take(store, name, length)
            begin[k] = known[0]
        return begin

    def _take(self, store: Store, name: int, length: int) -> tuple[int, int]:
        """A range for `name`; one that was too short moves with all that refers to it."""
        old = self._ranges.get(name)
        new = self._ranges[name] = (self._used, length)
        self._used += length
        if old is not None:
            block_of = store.ints(st.BLOCK_OF_AT)
            block_of[new[0] : new[0] + old[1]] = block_of[old[0] : old[0] + old[1]]
            block_of[old[0] : old[0] + old[1]] = -1
            for numbers in (
                store.ints(st.CONTENT_AT),
                store.ints(st.PREFIX_IDS_AT)[: store.state.c[st.N_PREFIX_IDS]],
            ):
                numbers[(numbers >= old[0]) & (numbers < old[0] + old[1])] += new[0] - old[0]
        return new

    def _forget_unused(self, store: Store) -> None:
        """Ranges that no block and no known request needs are given up; the others close ranks."""
        block_of, ids = store.ints(st.BLOCK_OF_AT), store.ints(st.PREFIX_IDS_AT)[: store.state.c[st.N_PREFIX_IDS]]
        needed = block_of[: self._used] >= 0
        needed[ids] = True
        before = np.concatenate(([0], np.cumsum(needed)))
        moved = np.full(self._used, -1, np.int32)
        kept: dict[int, tuple[int, int]] = {}
        used = 0
        for name, (begin, length) in self._ranges.items():
            if before[begin + length] > before[begin]:
                moved[begin : begin + length] = np.arange(used, used + length)
                kept[name] = (used, length)
                used += length
        live = np.flatnonzero(moved >= 0)
        blocks = block_of[live].copy()
        block_of[: self._used] = -1
        block_of[moved[live]] = blocks
        ids[:] = moved[ids]
        content = store.ints(st.CONTENT_AT)
        content[content >= 0] = moved[content[content >= 0]]
        self._ranges, self._used = kept, used
