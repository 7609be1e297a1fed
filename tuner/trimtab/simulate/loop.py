"""Compiled: the engine loop in virtual time. Arrivals, clients that leave, steps, tokens.

Synchronous: decide, compute, deliver. Asynchronous (vLLM's default): the batch after the one that is being computed is
decided meanwhile, so a new request waits for the rest of the current step and the whole next one, and a freed slot
stays empty for one step. Source: vLLM 0.32 `v1/engine/core.py` (step, step_with_batch_queue).
"""

from __future__ import annotations

from typing import Final

from trimtab.simulate.blocks import give_row_back, register, release
from trimtab.simulate.coast import drop_coaster, read_so_far
from trimtab.simulate.compiled import compiled
from trimtab.simulate.queue import put_new
from trimtab.simulate.schedule import drop_unused, keep_mark, note, plan_step
from trimtab.simulate.state import (
    ABORT_DELAY,
    ACTIVE_LIMIT,
    ARRIVAL,
    ASYNC,
    BLOCK_SIZE,
    BUSY,
    CACHING,
    CANCEL,
    CANCELLED,
    CAP,
    CLOCKS_AT,
    COASTING,
    COMPUTED,
    COST_AT,
    CPU_FREE,
    DECIDED,
    DELIVERED,
    DONE,
    DONE_AT,
    END,
    ENDING,
    EVENT_TIMES_AT,
    EVENTS_AT,
    F64,
    FINISHED,
    FIRST,
    FLYING,
    FREE,
    GAVE_UP,
    GENERATED,
    GONE,
    HASHED,
    HORIZON,
    I32,
    I64,
    IMPLICIT,
    IN_FLIGHT,
    IN_FLIGHT_BATCH,
    KNOWN,
    LAST,
    MARKS_WANTED,
    MORE_REQUESTS,
    MORE_ROWS,
    MORE_SAMPLES,
    MORE_TRACE,
    N_BATCH,
    N_EVENTS,
    N_FREE_ROWS,
    N_PREEMPTIONS,
    N_REQUESTS,
    N_RUNNING,
    N_SAMPLES,
    N_TRACE,
    N_WAITING,
    NEXT_EVENT,
    NEXT_SAMPLE,
    NOW,
    PENDING_AT,
    PENDING_HEAD,
    PENDING_TAIL,
    PENDING_TIMES_AT,
    PREEMPTED,
    PROMPT,
    Q_TAIL,
    QUEUE_REQUESTS,
    QUEUE_TOKENS,
    QUEUED_TOKENS,
    QUIET_STEPS,
    READY_AT,
    READY_COUNT,
    REFUSED,
    REJECTED,
    RESERVED_UNUSED,
    RQ,
    RUNNING,
    RUNNING_AT,
    RUNNING_SECONDS,
    SAMPLE_COLUMNS,
    SAMPLE_EVERY,
    SAMPLE_ROOM,
    SAMPLES_AT,
    SLOT,
    STALE,
    STATUS,
    STOP,
    SWAPPED,
    T_ABORTED,
    T_FINISHED,
    T_TOKEN,
    TICK,
    TOKENS,
    TQ,
    TRACE_ROOM,
    UNUSED_SECONDS,
    USABLE,
    USED_SECONDS,
    WORK_AT,
    WORK_COLUMNS,
)

#: steps without a token after which the run is called stuck; a prefill of a million tokens takes some 500
LIVELOCK_STEPS: Final = 100_000
#: lines of the trace that one step can add for a request that runs
TRACED_PER_SLOT: Final = 5


@compiled
def run(m: I32, c: I64, f: F64) -> int:
    """To the end of all requests (FINISHED), or until the caller must make room or know more; then call again."""
    while True:
        if not c[DECIDED]:
            if c[CACHING] and c[N_FREE_ROWS] < c[ACTIVE_LIMIT] - c[N_RUNNING]:
                return MORE_ROWS
            if c[TRACE_ROOM] and c[TRACE_ROOM] - c[N_TRACE] < TRACED_PER_SLOT * c[ACTIVE_LIMIT] + c[N_REQUESTS]:
                return MORE_TRACE
            if 0 < c[SAMPLE_ROOM] == c[N_SAMPLES]:
                return MORE_SAMPLES
            if f[c[CLOCKS_AT] + HORIZON] <= f[c[CLOCKS_AT] + NOW]:
                return MORE_REQUESTS
            decide(m, c, f)
        if c[FLYING] >= 0:
            seconds = duration(m, c, f, c[FLYING])
            if f[c[CLOCKS_AT] + HORIZON] <= f[c[CLOCKS_AT] + NOW] + seconds:
                return MORE_REQUESTS
            execute(m, c, f, c[FLYING], seconds)
        elif c[N_BATCH] == 0 and not skip_idle_time(m, c, f):
            return FINISHED
        c[DECIDED] = 0
        if c[QUIET_STEPS] > LIVELOCK_STEPS:
            return FINISHED


@compiled
def one_step(m: I32, c: I64, f: F64) -> float:
    """Decide on a batch and compute the one whose turn it is: its seconds; 0 where none was, -1 where none is planned
    either.
    """
    decide(m, c, f)
    seconds = 0.0 if c[N_BATCH] > 0 else -1.0
    if c[FLYING] >= 0:
        seconds = duration(m, c, f, c[FLYING])
        execute(m, c, f, c[FLYING], seconds)
    c[DECIDED] = 0
    return seconds


@compiled
def decide(m: I32, c: I64, f: F64) -> None:
    """Take in what happened, plan a batch, and say in FLYING which one is computed now."""
    open_step(m, c, f)
    slot = c[SLOT]
    plan_step(m, c, f, slot)
    planned = slot if c[N_BATCH] > 0 else -1
    if c[ASYNC]:
        c[FLYING] = c[IN_FLIGHT_BATCH]
        c[IN_FLIGHT_BATCH] = planned
        c[SLOT] = 1 - slot
    else:
        c[FLYING] = planned
    c[DECIDED] = 1


@compiled
def duration(m: I32, c: I64, f: F64, slot: int) -> float:
    """Seconds that the batch of `slot` takes."""
    seconds = 0.0
    for k in range(WORK_COLUMNS):
        seconds += f[c[COST_AT] + k] * c[WORK_AT + slot * WORK_COLUMNS + k]
    return seconds


@compiled
def open_step(m: I32, c: I64, f: F64) -> None:
    """What happened up to now, in vLLM's order: arrivals, then aborts."""
    now = f[c[CLOCKS_AT] + NOW]
    while c[Q_TAIL] < c[N_REQUESTS] and f[c[Q_TAIL] * TQ + ARRIVAL] <= now:
        arrive(m, c, f, c[Q_TAIL])
        c[Q_TAIL] += 1
    clients_leave(m, c, f)
    take_aborts(m, c, f)


@compiled
def take_aborts(m: I32, c: I64, f: F64) -> None:
    """Aborts that reached the engine. Source: vLLM 0.32 `EngineCore._process_aborts_queue` and `step`."""
    now = f[c[CLOCKS_AT] + NOW]
    while c[PENDING_HEAD] < c[PENDING_TAIL] and f[c[PENDING_TIMES_AT] + c[PENDING_HEAD]] <= now:
        i = m[c[PENDING_AT] + c[PENDING_HEAD]]
        c[PENDING_HEAD] += 1
        if m[i * RQ + STATUS] != DONE:
            note(m, c, f, T_ABORTED, i, 0)
            leave_engine(m, c, f, i)


@compiled
def arrive(m: I32, c: I64, f: F64, i: int) -> None:
    if m[i * RQ + ENDING] == REFUSED:
        m[i * RQ + STATUS] = DONE
        return
    too_many = 0 < c[QUEUE_REQUESTS] < c[N_RUNNING] + c[N_WAITING] + 1
    if too_many or 0 < c[QUEUE_TOKENS] <= c[QUEUED_TOKENS]:
        m[i * RQ + STATUS] = DONE
        m[i * RQ + ENDING] = REJECTED
        f[i * TQ + END] = f[i * TQ + ARRIVAL]
        return
    c[QUEUED_TOKENS] += m[i * RQ + PROMPT]
    put_new(m, c, f, i)


@compiled
def clients_leave(m: I32, c: I64, f: F64) -> None:
    """Clients whose time has come: hung up, or out of patience without a first token."""
    while c[NEXT_EVENT] < c[N_EVENTS] and f[c[EVENT_TIMES_AT] + c[NEXT_EVENT]] <= f[c[CLOCKS_AT] + NOW]:
        at = f[c[EVENT_TIMES_AT] + c[NEXT_EVENT]]
        i = m[c[EVENTS_AT] + c[NEXT_EVENT]] >> 1
        impatient = m[c[EVENTS_AT] + c[NEXT_EVENT]] & 1
        c[NEXT_EVENT] += 1
        if m[i * RQ + STATUS] != DONE and not m[i * RQ + GONE] and not (impatient and m[i * RQ + TOKENS] > 0):
            client_leaves(m, c, f, i, GAVE_UP if impatient else CANCELLED, at)


@compiled
def client_leaves(m: I32, c: I64, f: F64, i: int, ending: int, at: float) -> None:
    if m[i * RQ + COASTING] > 0:
        read_so_far(m, c, f, i)
    m[i * RQ + ENDING] = ending
    m[i * RQ + GONE] = 1
    f[i * TQ + END] = at
    m[c[PENDING_AT] + c[PENDING_TAIL]] = i
    f[c[PENDING_TIMES_AT] + c[PENDING_TAIL]] = at + f[c[CLOCKS_AT] + ABORT_DELAY]
    c[PENDING_TAIL] += 1


@compiled
def skip_idle_time(m: I32, c: I64, f: F64) -> bool:
    """To the next arrival, departure or abort. False when nothing can change any more."""
    while c[NEXT_EVENT] < c[N_EVENTS] and m[(m[c[EVENTS_AT] + c[NEXT_EVENT]] >> 1) * RQ + STATUS] == DONE:
        c[NEXT_EVENT] += 1
    while c[PENDING_HEAD] < c[PENDING_TAIL] and m[m[c[PENDING_AT] + c[PENDING_HEAD]] * RQ + STATUS] == DONE:
        c[PENDING_HEAD] += 1
    found = False
    at = 0.0
    if c[Q_TAIL] < c[N_REQUESTS]:
        at = f[c[Q_TAIL] * TQ + ARRIVAL]
        found = True
    if c[N_WAITING] + c[N_RUNNING] > 0:
        if c[NEXT_EVENT] < c[N_EVENTS]:
            event = f[c[EVENT_TIMES_AT] + c[NEXT_EVENT]]
            at = min(at, event) if found else event
            found = True
        if c[PENDING_HEAD] < c[PENDING_TAIL]:
            abort = f[c[PENDING_TIMES_AT] + c[PENDING_HEAD]]
            at = min(at, abort) if found else abort
            found = True
    if found:
        f[c[CLOCKS_AT] + NOW] = max(f[c[CLOCKS_AT] + NOW], at)
    return found


@compiled
def execute(m: I32, c: I64, f: F64, slot: int, seconds: float) -> None:
    """Compute the batch of `slot` and hand out its tokens."""
    for k in range(WORK_COLUMNS):
        f[c[DONE_AT] + k] += c[WORK_AT + slot * WORK_COLUMNS + k]
    f[c[CLOCKS_AT] + NOW] += seconds
    f[c[CLOCKS_AT] + BUSY] += seconds
    f[c[CLOCKS_AT] + USED_SECONDS] += seconds * (c[USABLE] - c[FREE])
    f[c[CLOCKS_AT] + UNUSED_SECONDS] += seconds * c[RESERVED_UNUSED]
    f[c[CLOCKS_AT] + RUNNING_SECONDS] += seconds * c[N_RUNNING]
    clients_leave(m, c, f)
    take_aborts(m, c, f)
    c[QUIET_STEPS] += 1
    if c[IMPLICIT + slot] > 0:
        c[GENERATED] += c[IMPLICIT + slot]
        c[QUIET_STEPS] = 0
    for k in range(c[READY_COUNT + slot]):
        i = m[c[READY_AT] + slot * c[ACTIVE_LIMIT] + k]
        if not take_token(m, c, f, i):
            continue
        c[GENERATED] += 1
        c[QUIET_STEPS] = 0
        note(m, c, f, T_TOKEN, i, 0)
        give_to_client(m, c, f, i)
        if m[i * RQ + KNOWN] - m[i * RQ + PROMPT] >= m[i * RQ + CAP]:
            note(m, c, f, T_FINISHED, i, 0)
            leave_engine(m, c, f, i)
            if not m[i * RQ + GONE]:
                m[i * RQ + ENDING] = STOP
                f[i * TQ + END] = f[c[CLOCKS_AT] + NOW]
    f[c[CLOCKS_AT] + DELIVERED] = f[c[CLOCKS_AT] + NOW]
    c[TICK] += 1
    if f[c[CLOCKS_AT] + NOW] >= f[c[CLOCKS_AT] + NEXT_SAMPLE]:
        keep_sample(m, c, f)


@compiled
def keep_sample(m: I32, c: I64, f: F64) -> None:
    """The first step end at or after a multiple of the interval."""
    now, every = f[c[CLOCKS_AT] + NOW], f[c[CLOCKS_AT] + SAMPLE_EVERY]
    at = c[SAMPLES_AT] + c[N_SAMPLES] * SAMPLE_COLUMNS
    f[at] = now
    f[at + 1] = c[N_RUNNING]
    f[at + 2] = c[N_WAITING]
    f[at + 3] = c[USABLE] - c[FREE]
    f[at + 4] = c[N_PREEMPTIONS]
    f[at + 5] = c[GENERATED]
    c[N_SAMPLES] += 1
    f[c[CLOCKS_AT] + NEXT_SAMPLE] = (now // every + 1.0) * every


@compiled
def take_token(m: I32, c: I64, f: F64, i: int) -> bool:
    """The engine's books of one token. False for a request that left while it was computed."""
    if m[i * RQ + STATUS] == RUNNING:
        m[i * RQ + KNOWN] += 1
        if c[ASYNC]:
            m[i * RQ + IN_FLIGHT] -= 1
            if c[CACHING] and (m[i * RQ + HASHED] + 1) * c[BLOCK_SIZE] <= m[i * RQ + COMPUTED]:
                register(m, c, f, i, m[i * RQ + COMPUTED] - m[i * RQ + IN_FLIGHT])
    elif m[i * RQ + STATUS] == PREEMPTED and m[i * RQ + STALE] > 0:
        m[i * RQ + STALE] -= 1
        m[i * RQ + KNOWN] += 1
    else:
        return False
    if m[i * RQ + KNOWN] == m[i * RQ + PROMPT] + 1:
        c[QUEUED_TOKENS] -= m[i * RQ + PROMPT]
    return True


@compiled
def give_to_client(m: I32, c: I64, f: F64, i: int) -> None:
    if m[i * RQ + GONE]:
        return
    m[i * RQ + TOKENS] += 1
    f[i * TQ + LAST] = f[c[CLOCKS_AT] + NOW]
    mark = 2
    if m[i * RQ + TOKENS] == 1:
        f[i * TQ + FIRST] = f[c[CLOCKS_AT] + NOW]
        mark = 1
    if c[MARKS_WANTED]:
        keep_mark(m, c, f, i, mark)
        if mark == 1:
            keep_mark(m, c, f, i, 2)
    if m[i * RQ + TOKENS] == m[i * RQ + CANCEL]:
        client_leaves(m, c, f, i, CANCELLED, f[c[CLOCKS_AT] + NOW])


@compiled
def leave_engine(m: I32, c: I64, f: F64, i: int) -> None:
    """Finished or aborted: blocks freed."""
    if m[i * RQ + COASTING] > 0:
        drop_coaster(m, c, f, i)
    if m[i * RQ + KNOWN] == m[i * RQ + PROMPT]:
        c[QUEUED_TOKENS] -= m[i * RQ + PROMPT]
    if m[i * RQ + STATUS] == RUNNING:
        drop_unused(m, c, f, i)
        release(m, c, f, i)
        close_ranks(m, c, f, i)
    else:
        c[N_WAITING] -= 1
        c[CPU_FREE] += m[i * RQ + SWAPPED]
        m[i * RQ + SWAPPED] = 0
    give_row_back(m, c, f, i)
    m[i * RQ + STATUS] = DONE


@compiled
def close_ranks(m: I32, c: I64, f: F64, i: int) -> None:
    """Take request i out of `running`."""
    place, end = c[RUNNING_AT], c[RUNNING_AT] + c[N_RUNNING] - 1
    while m[place] != i:
        place += 1
    for k in range(place, end):
        m[k] = m[k + 1]
    c[N_RUNNING] -= 1
