"""Compiled: requests that do nothing but decode are counted, not visited, until something becomes of them.

A request *coasts* while each step gives it one token: its record is brought up to date only when it must be (`settle`).
Every tick (computed batch) has a list of the coasters for whom something happens then: the next KV block, the last
token, the token at which the client leaves. Figures are the same to the bit as without (`test_coasting.py`).

Records of a coaster hold the state before the plan of tick COASTING. Each tick since then planned one token more, and
delivered one: asynchronous from the tick after on, for the token in flight is delivered the plain way.
"""

from __future__ import annotations

from trimtab.simulate.blocks import allocate, register
from trimtab.simulate.compiled import compiled
from trimtab.simulate.state import (
    ACTIVE_LIMIT,
    ASYNC,
    BLOCK_SIZE,
    CACHING,
    CANCEL,
    CAP,
    CLOCKS_AT,
    COAST_KV,
    COASTING,
    COMPUTED,
    DECIDED,
    DELIVERED,
    DONE_AT,
    DUE,
    DUE_AT,
    DUE_COUNT_AT,
    DUE_NEXT,
    DUE_PREVIOUS,
    ENDS,
    EXPLICIT_AT,
    F64,
    FLYING,
    GONE,
    HIGH_WATER,
    I32,
    I64,
    IMPLICIT,
    IN_FLIGHT,
    IN_FLIGHT_BATCH,
    KNOWN,
    LAST,
    MARKS_AT,
    MARKS_WANTED,
    N_COASTING,
    N_EXPLICIT,
    N_RUNNING,
    ORDER,
    PREFILL_UNTIL,
    PROMPT,
    READY_AT,
    READY_COUNT,
    RESERVE,
    RESERVED_UNUSED,
    RQ,
    RUNNING_AT,
    TICK,
    TOKENS,
    TQ,
    WORK_AT,
    WORK_COLUMNS,
)


@compiled
def link(m: I32, c: I64, f: F64, i: int, due: int) -> None:
    place = due % (c[BLOCK_SIZE] + 1)
    first = m[c[DUE_AT] + place]
    m[i * RQ + DUE] = due
    m[i * RQ + DUE_NEXT] = first
    m[i * RQ + DUE_PREVIOUS] = -1
    if first >= 0:
        m[first * RQ + DUE_PREVIOUS] = i
    m[c[DUE_AT] + place] = i
    m[c[DUE_COUNT_AT] + place] += 1


@compiled
def unlink_due(m: I32, c: I64, f: F64, i: int) -> None:
    place = m[i * RQ + DUE] % (c[BLOCK_SIZE] + 1)
    after, previous = m[i * RQ + DUE_NEXT], m[i * RQ + DUE_PREVIOUS]
    if previous >= 0:
        m[previous * RQ + DUE_NEXT] = after
    else:
        m[c[DUE_AT] + place] = after
    if after >= 0:
        m[after * RQ + DUE_PREVIOUS] = previous
    m[c[DUE_COUNT_AT] + place] -= 1


@compiled
def joins(m: I32, c: I64, f: F64, i: int) -> bool:
    """Request i coasts from the plan being made on, if it is only decoding and nothing becomes of it in this tick."""
    computed, known = m[i * RQ + COMPUTED], m[i * RQ + KNOWN]
    rest = computed % c[BLOCK_SIZE]
    if computed < m[i * RQ + PREFILL_UNTIL] or rest == 0 or m[i * RQ + IN_FLIGHT] != c[ASYNC]:
        return False
    tick = c[TICK]
    ends = tick + m[i * RQ + CAP] + m[i * RQ + PROMPT] - known - 1
    if m[i * RQ + CANCEL] > 0 and not m[i * RQ + GONE]:
        ends = min(ends, tick + m[i * RQ + CANCEL] - m[i * RQ + TOKENS] - 1)
    if ends <= tick:
        return False
    m[i * RQ + COASTING] = tick
    m[i * RQ + ENDS] = ends
    link(m, c, f, i, min(ends, tick + c[BLOCK_SIZE] - rest))
    c[N_COASTING] += 1
    c[COAST_KV] += computed + 1
    return True


@compiled
def read_so_far(m: I32, c: I64, f: F64, i: int) -> None:
    """The client of coaster i: the tokens it read until now."""
    read = c[TICK] - m[i * RQ + COASTING] - c[ASYNC]
    if read > 0 and not m[i * RQ + GONE]:
        m[i * RQ + TOKENS] += read
        f[i * TQ + LAST] = f[c[CLOCKS_AT] + DELIVERED]
        if c[MARKS_WANTED]:  # the work up to that token: without the batch that is being computed
            for k in range(WORK_COLUMNS):
                done = f[c[DONE_AT] + k]
                if c[DECIDED]:
                    done -= c[WORK_AT + c[FLYING] * WORK_COLUMNS + k]
                f[c[MARKS_AT] + (i * 3 + 2) * WORK_COLUMNS + k] = done


@compiled
def settle(m: I32, c: I64, f: F64, i: int) -> None:
    """Coaster i coasts no longer; its record is up to date."""
    read_so_far(m, c, f, i)
    planned = c[TICK] - m[i * RQ + COASTING] + c[DECIDED]
    delivered = max(0, c[TICK] - m[i * RQ + COASTING] - c[ASYNC])
    computed = m[i * RQ + COMPUTED] + planned
    m[i * RQ + COMPUTED] = computed
    m[i * RQ + KNOWN] += delivered
    if c[ASYNC]:
        m[i * RQ + IN_FLIGHT] += planned - delivered
    m[i * RQ + HIGH_WATER] = max(m[i * RQ + HIGH_WATER], computed)
    if c[CACHING]:
        register(m, c, f, i, computed - c[ASYNC])
    unlink_due(m, c, f, i)
    c[N_COASTING] -= 1
    c[COAST_KV] -= computed
    m[i * RQ + COASTING] = 0


@compiled
def drop_coaster(m: I32, c: I64, f: F64, i: int) -> None:
    """Coaster i leaves the engine: the tokens that batches still hold for it are nobody's."""
    began = m[i * RQ + COASTING]
    settle(m, c, f, i)
    if c[ASYNC]:
        c[IMPLICIT + c[IN_FLIGHT_BATCH]] -= 1
    if c[DECIDED] and began + c[ASYNC] <= c[TICK]:
        c[IMPLICIT + c[FLYING]] -= 1


@compiled
def wake(m: I32, c: I64, f: F64, i: int) -> None:
    """While planning: coaster i is visited again, its token in flight too."""
    settle(m, c, f, i)
    if c[ASYNC]:
        flying = c[IN_FLIGHT_BATCH]
        c[IMPLICIT + flying] -= 1
        insert(m, c, f, c[READY_AT] + flying * c[ACTIVE_LIMIT], c[READY_COUNT + flying], i)
        c[READY_COUNT + flying] += 1


@compiled
def insert(m: I32, c: I64, f: F64, begin: int, count: int, i: int) -> None:
    """Into a list in order of admission."""
    place = begin + count
    while place > begin and m[m[place - 1] * RQ + ORDER] > m[i * RQ + ORDER]:
        m[place] = m[place - 1]
        place -= 1
    m[place] = i


@compiled
def wake_all(m: I32, c: I64, f: F64) -> None:
    """Before a step that visits everyone."""
    if c[N_COASTING] > 0:
        for k in range(c[N_RUNNING]):
            if m[m[c[RUNNING_AT] + k] * RQ + COASTING] > 0:
                wake(m, c, f, m[c[RUNNING_AT] + k])
    c[N_EXPLICIT] = -1


@compiled
def list_explicit(m: I32, c: I64, f: F64) -> None:
    """After a step that visited everyone: nobody coasts yet."""
    if c[N_EXPLICIT] < 0:
        c[N_EXPLICIT] = c[N_RUNNING]
        for k in range(c[N_RUNNING]):
            m[c[EXPLICIT_AT] + k] = m[c[RUNNING_AT] + k]


@compiled
def visit_due(m: I32, c: I64, f: F64) -> None:
    """Coasters with something to do in this tick: a block more, or they are woken. There are blocks enough."""
    tick = c[TICK]
    i = m[c[DUE_AT] + tick % (c[BLOCK_SIZE] + 1)]
    while i >= 0:
        after = m[i * RQ + DUE_NEXT]
        if m[i * RQ + ENDS] == tick:
            wake(m, c, f, i)
            insert(m, c, f, c[EXPLICIT_AT], c[N_EXPLICIT], i)
            c[N_EXPLICIT] += 1
        else:
            unlink_due(m, c, f, i)
            link(m, c, f, i, min(tick + c[BLOCK_SIZE], m[i * RQ + ENDS]))
            if c[RESERVE]:
                c[RESERVED_UNUSED] -= 1
            else:
                allocate(m, c, f, i, 1)
                if c[CACHING]:
                    register(m, c, f, i, m[i * RQ + COMPUTED] + tick - m[i * RQ + COASTING])
        i = after
    c[COAST_KV] += c[N_COASTING]
