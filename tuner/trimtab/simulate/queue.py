"""Compiled: the waiting queue. Source: vLLM 0.32 `v1/core/sched/request_queue.py`.

First come, first served needs no list: preempted requests return before all others, the last preempted first, and the
rest waits in order of arrival. Under priority it is a heap by (priority, arrival). Those that left are skipped later.
"""

from __future__ import annotations

from trimtab.simulate.compiled import compiled
from trimtab.simulate.state import (
    BY_PRIORITY,
    F64,
    I32,
    I64,
    N_STACK,
    N_WAITING,
    PREEMPTED,
    PRIORITY,
    Q_HEAD,
    Q_TAIL,
    RQ,
    STACK_AT,
    STATUS,
    WAITING,
)


@compiled
def before(m: I32, c: I64, f: F64, a: int, b: int) -> bool:
    """Whether request a is served before b under priority."""
    if m[a * RQ + PRIORITY] != m[b * RQ + PRIORITY]:
        return bool(m[a * RQ + PRIORITY] < m[b * RQ + PRIORITY])
    return a < b


@compiled
def heap_push(m: I32, c: I64, f: F64, i: int) -> None:
    place = c[N_STACK]
    c[N_STACK] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not before(m, c, f, i, m[c[STACK_AT] + parent]):
            break
        m[c[STACK_AT] + place] = m[c[STACK_AT] + parent]
        place = parent
    m[c[STACK_AT] + place] = i


@compiled
def heap_pop(m: I32, c: I64, f: F64) -> None:
    c[N_STACK] -= 1
    size = c[N_STACK]
    last = m[c[STACK_AT] + size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and before(m, c, f, m[c[STACK_AT] + child + 1], m[c[STACK_AT] + child]):
            child += 1
        if not before(m, c, f, m[c[STACK_AT] + child], last):
            break
        m[c[STACK_AT] + place] = m[c[STACK_AT] + child]
        place = child
    if size > 0:
        m[c[STACK_AT] + place] = last


@compiled
def put_new(m: I32, c: I64, f: F64, i: int) -> None:
    """An arrival. Requests arrive in order of their numbers."""
    m[i * RQ + STATUS] = WAITING
    c[N_WAITING] += 1
    if c[BY_PRIORITY]:
        heap_push(m, c, f, i)


@compiled
def put_back(m: I32, c: I64, f: F64, i: int) -> None:
    """A preempted request goes to the head (under priority: to its place)."""
    m[i * RQ + STATUS] = PREEMPTED
    c[N_WAITING] += 1
    if c[BY_PRIORITY]:
        heap_push(m, c, f, i)
    else:
        m[c[STACK_AT] + c[N_STACK]] = i
        c[N_STACK] += 1


@compiled
def waits(m: I32, c: I64, f: F64, i: int) -> bool:
    return bool(m[i * RQ + STATUS] == WAITING or m[i * RQ + STATUS] == PREEMPTED)


@compiled
def head(m: I32, c: I64, f: F64) -> int:
    """The request that is served next, -1 where nobody waits."""
    if c[BY_PRIORITY]:
        while c[N_STACK] > 0 and not waits(m, c, f, m[c[STACK_AT]]):
            heap_pop(m, c, f)
        return int(m[c[STACK_AT]]) if c[N_STACK] > 0 else -1
    while c[N_STACK] > 0 and m[(m[c[STACK_AT] + c[N_STACK] - 1]) * RQ + STATUS] != PREEMPTED:
        c[N_STACK] -= 1
    if c[N_STACK] > 0:
        return int(m[c[STACK_AT] + c[N_STACK] - 1])
    while c[Q_HEAD] < c[Q_TAIL] and m[c[Q_HEAD] * RQ + STATUS] != WAITING:
        c[Q_HEAD] += 1
    return int(c[Q_HEAD]) if c[Q_HEAD] < c[Q_TAIL] else -1


@compiled
def pop_head(m: I32, c: I64, f: F64) -> None:
    """Take out what `head` returned."""
    c[N_WAITING] -= 1
    if c[BY_PRIORITY]:
        heap_pop(m, c, f)
    elif c[N_STACK] > 0:
        c[N_STACK] -= 1
    else:
        c[Q_HEAD] += 1
