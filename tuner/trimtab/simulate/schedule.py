"""Compiled: one scheduling decision of vLLM v1. Source: vLLM 0.32 `v1/core/sched/scheduler.py` (schedule) and
`async_scheduler.py`.

Left out: speculative decoding, LoRA, multi-modal input, KV connectors, sliding windows, data-parallel balancing. The
`reserve` model takes blocks for prompt and max_tokens at admission, so that nothing ever grows or is preempted.
"""

from __future__ import annotations

from typing import Final

from trimtab.simulate.blocks import allocate, find_prefix, register, release, take_found, take_row
from trimtab.simulate.coast import joins, list_explicit, visit_due, wake_all
from trimtab.simulate.compiled import compiled
from trimtab.simulate.queue import head, pop_head, put_back
from trimtab.simulate.state import (
    ACTIVE_LIMIT,
    ADAPTIVE,
    ASYNC,
    BATCH_AT,
    BLOCK_SIZE,
    BLOCKS,
    BUDGET,
    BY_PRIORITY,
    CACHED,
    CACHING,
    CHUNKED,
    CLOCKS_AT,
    COAST_FROM,
    COAST_KV,
    COASTING,
    COASTS,
    COMPUTED,
    COUNT_AT,
    CPU_FREE,
    DONE_AT,
    DUE_COUNT_AT,
    EXPLICIT_AT,
    F64,
    FOUND_AT,
    FREE,
    FREE_TOKENS,
    FULL_PROMPT,
    HASHED,
    HIGH_WATER,
    HITS,
    I32,
    I64,
    IMPLICIT,
    IN_FLIGHT,
    KNOWN,
    LIMIT,
    LONG_PREFILL,
    MARKS_AT,
    MARKS_WANTED,
    N_ADMISSIONS,
    N_BATCH,
    N_COASTING,
    N_EXPLICIT,
    N_PREEMPTIONS,
    N_RUNNING,
    N_TRACE,
    N_WAITING,
    NOW,
    ORDER,
    PEAK_RUNNING,
    PEAK_USED,
    PREEMPTED_NOW,
    PREEMPTIONS,
    PREFILL_TOKENS,
    PREFILL_UNTIL,
    PRIORITY,
    PROMPT,
    QUERIES,
    READY_AT,
    READY_COUNT,
    RECOMPUTED,
    RECOMPUTED_TOKENS,
    REFERENCES_AT,
    RESERVE,
    RESERVED_UNUSED,
    RQ,
    RUNNING,
    RUNNING_AT,
    SCHEDULED,
    STALE,
    STATUS,
    STEPS,
    SWAPPED,
    SWAPPED_NOW,
    SWAPPED_OUT,
    SWAPPING,
    T_ADMITTED,
    T_PREEMPTED,
    T_SCHEDULED,
    TICK,
    TQ,
    TRACE_AT,
    TRACE_MASK,
    TRACE_ROOM,
    USABLE,
    W_DECODE,
    W_KV,
    W_OVER,
    W_PAIRS,
    W_PREFILL,
    W_PREFILL_STEP,
    W_STEPS,
    W_SWAPPED,
    WATERMARK,
    WORK_AT,
    WORK_COLUMNS,
)

#: ticks after a shortage of blocks in which everyone is visited: it seldom comes alone, and waking all costs a step
PRESSED_TICKS: Final = 4


@compiled
def plan_step(m: I32, c: I64, f: F64, slot: int) -> None:
    """Build the next batch: running requests first, then the queue. Fills `ready` and `work` of `slot`."""
    c[N_BATCH] = 0
    c[PREEMPTED_NOW] = 0
    # the threshold protects others from a long prefill: alone, a request gets the whole budget
    requests = c[N_RUNNING] + c[N_WAITING]
    threshold = c[LONG_PREFILL] if requests > 1 else 0
    if c[ADAPTIVE] and threshold > 0:
        threshold = max(threshold, c[BUDGET] // requests)
    if c[COASTS] and c[TICK] >= c[COAST_FROM] and enough_blocks(m, c, f):
        budget = plan_explicit(m, c, f)
    else:
        wake_all(m, c, f)
        budget = plan_running(m, c, f, threshold)
    if c[PREEMPTED_NOW] == 0 and c[N_WAITING] > 0:
        admit_waiting(m, c, f, budget, threshold)
    close_batch(m, c, f, slot)


@compiled
def enough_blocks(m: I32, c: I64, f: F64) -> bool:
    """Whether no running request needs a preemption to grow in this step. Sets back coasting if not."""
    list_explicit(m, c, f)
    if c[RESERVE]:
        return True
    size = c[BLOCK_SIZE]
    needed = m[c[DUE_COUNT_AT] + c[TICK] % (size + 1)]
    if c[FREE] < needed + c[N_EXPLICIT] + c[BUDGET] // size + 1:
        for k in range(c[N_EXPLICIT]):
            i = m[c[EXPLICIT_AT] + k]
            if m[i * RQ + STATUS] == RUNNING and m[i * RQ + COASTING] == 0:
                after = min(m[i * RQ + KNOWN] + m[i * RQ + IN_FLIGHT], m[i * RQ + COMPUTED] + c[BUDGET])
                needed += max(0, (after + size - 1) // size - m[i * RQ + BLOCKS])
        if needed > c[FREE]:
            c[COAST_FROM] = c[TICK] + PRESSED_TICKS
            return False
    return True


@compiled
def plan_explicit(m: I32, c: I64, f: F64) -> int:
    """As `plan_running` where nobody is preempted: coasters are counted, the others visited. Returns the budget left.

    Coasters ahead of the budget's others is no change: who is in the middle of a prefill is the last that runs.
    """
    visit_due(m, c, f)
    budget = c[BUDGET] - c[N_COASTING]
    size = c[BLOCK_SIZE]
    kept = 0
    for k in range(c[N_EXPLICIT]):
        i = m[c[EXPLICIT_AT] + k]
        if m[i * RQ + STATUS] != RUNNING or m[i * RQ + COASTING] > 0:
            continue
        expected = m[i * RQ + KNOWN] + m[i * RQ + IN_FLIGHT]
        last_in_flight = m[i * RQ + IN_FLIGHT] > 0 and expected >= m[i * RQ + PROMPT] + m[i * RQ + LIMIT]
        count = 0 if last_in_flight else min(expected - m[i * RQ + COMPUTED], budget)
        budget -= count
        if count == 1 and joins(m, c, f, i):
            continue
        m[c[EXPLICIT_AT] + kept] = i
        kept += 1
        if count > 0:
            needed = (m[i * RQ + COMPUTED] + count + size - 1) // size - m[i * RQ + BLOCKS]
            if needed > 0:
                allocate(m, c, f, i, needed)
            add_to_batch(m, c, f, i, count)
    c[N_EXPLICIT] = kept
    return int(budget)


@compiled
def plan_running(m: I32, c: I64, f: F64, threshold: int) -> int:
    """Oldest first; who cannot grow preempts. Returns the budget left."""
    budget = c[BUDGET]
    size = c[BLOCK_SIZE]
    index = 0
    while index < c[N_RUNNING] and budget > 0:
        i = m[c[RUNNING_AT] + index]
        expected = m[i * RQ + KNOWN] + m[i * RQ + IN_FLIGHT]
        if m[i * RQ + IN_FLIGHT] > 0 and expected >= m[i * RQ + PROMPT] + m[i * RQ + LIMIT]:
            index += 1  # the token in flight is its last
            continue
        count = expected - m[i * RQ + COMPUTED]
        if 0 < threshold < count:
            count = threshold
        count = min(count, budget)
        if count <= 0:
            index += 1
            continue
        after = m[i * RQ + COMPUTED] + count
        if after > m[i * RQ + BLOCKS] * size:
            needed = (after + size - 1) // size - m[i * RQ + BLOCKS]
            if needed > c[FREE]:
                fits, index, given_back = make_room(m, c, f, i, index, needed)
                budget += given_back
                if not fits:
                    break
            allocate(m, c, f, i, needed)
        add_to_batch(m, c, f, i, count)
        budget -= count
        index += 1
    return int(budget)


@compiled
def make_room(m: I32, c: I64, f: F64, i: int, index: int, needed: int) -> tuple[bool, int, int]:
    """Preempt until `needed` blocks are free: the youngest, or the lowest priority. (False, ..) when it hit i itself.

    Returns also the place of i in `running` and the tokens of victims that were in the batch already.
    """
    given_back = 0
    while needed > c[FREE]:
        place = c[N_RUNNING] - 1
        if c[BY_PRIORITY]:
            for k in range(c[N_RUNNING]):
                a, b = m[c[RUNNING_AT] + k], m[c[RUNNING_AT] + place]
                if m[a * RQ + PRIORITY] > m[b * RQ + PRIORITY] or (
                    m[a * RQ + PRIORITY] == m[b * RQ + PRIORITY] and a > b
                ):
                    place = k
        victim = m[c[RUNNING_AT] + place]
        for k in range(place, c[N_RUNNING] - 1):
            m[c[RUNNING_AT] + k] = m[c[RUNNING_AT] + k + 1]
        c[N_RUNNING] -= 1
        if place < index:
            index -= 1
            given_back += take_out_of_batch(m, c, f, victim)
        preempt(m, c, f, victim)
        if victim == i:
            return False, index, given_back
    return True, index, given_back


@compiled
def take_out_of_batch(m: I32, c: I64, f: F64, victim: int) -> int:
    for k in range(c[N_BATCH]):
        if m[c[BATCH_AT] + k] == victim:
            count = m[c[COUNT_AT] + k]
            m[c[COUNT_AT] + k] = 0
            return int(count)
    return 0


@compiled
def preempt(m: I32, c: I64, f: F64, i: int) -> None:
    """Blocks freed. Recompute: what was computed is lost; swap: kept if the CPU has room. Tokens in flight arrive."""
    drop_unused(m, c, f, i)
    held = m[i * RQ + BLOCKS]
    release(m, c, f, i)
    if c[SWAPPING] and held <= c[CPU_FREE]:
        m[i * RQ + SWAPPED] = held
        c[CPU_FREE] -= held
        c[SWAPPED_NOW] += held
        c[SWAPPED_OUT] += held
    else:
        m[i * RQ + COMPUTED] = 0
    m[i * RQ + STALE] = m[i * RQ + IN_FLIGHT]
    m[i * RQ + IN_FLIGHT] = 0
    m[i * RQ + PREEMPTIONS] += 1
    c[N_PREEMPTIONS] += 1
    c[PREEMPTED_NOW] += 1
    put_back(m, c, f, i)
    note(m, c, f, T_PREEMPTED, i, 0)


@compiled
def admit_waiting(m: I32, c: I64, f: F64, budget: int, threshold: int) -> None:
    """In order of the queue; a head that does not fit blocks those behind it."""
    size = c[BLOCK_SIZE]
    while budget > 0 and c[N_RUNNING] < c[ACTIVE_LIMIT]:
        i = head(m, c, f)
        if i < 0:
            return
        cached = find_prefix(m, c, f, i) if c[CACHING] else 0
        start = m[i * RQ + COMPUTED] if m[i * RQ + SWAPPED] > 0 else cached * size
        count = m[i * RQ + KNOWN] - start
        if 0 < threshold < count:
            count = threshold
        if count > budget and not c[CHUNKED]:
            return
        count = min(count, budget)
        tokens = blocks_for(m, c, f, i, start + count)
        if not fits(m, c, f, cached, tokens):
            return
        pop_head(m, c, f)
        take_row(m, c, f, i)
        take_found(m, c, f, i, cached)
        held = tokens if c[RESERVE] else start + count
        allocate(m, c, f, i, (held + size - 1) // size - cached)
        if c[RESERVE]:
            c[RESERVED_UNUSED] += m[i * RQ + BLOCKS] - cached
        if m[i * RQ + SWAPPED] > 0:
            swap_in(m, c, f, i)
        else:
            m[i * RQ + PREFILL_UNTIL] = m[i * RQ + KNOWN]
        begin(m, c, f, i, start)
        add_to_batch(m, c, f, i, count)
        budget -= count


@compiled
def blocks_for(m: I32, c: I64, f: F64, i: int, tokens_now: int) -> int:
    """Tokens that must have room before request i is admitted."""
    if c[RESERVE]:
        return int(m[i * RQ + PROMPT] + m[i * RQ + LIMIT])
    return int(m[i * RQ + KNOWN]) if c[FULL_PROMPT] else tokens_now


@compiled
def fits(m: I32, c: I64, f: F64, cached: int, tokens: int) -> bool:
    evictable = 0
    for k in range(cached):
        if m[c[REFERENCES_AT] + m[c[FOUND_AT] + k]] == 0:
            evictable += 1
    size = c[BLOCK_SIZE]
    kept_free = c[WATERMARK] if c[N_RUNNING] > 0 else 0
    return bool((tokens + size - 1) // size - cached + evictable + kept_free <= c[FREE])


@compiled
def swap_in(m: I32, c: I64, f: F64, i: int) -> None:
    c[CPU_FREE] += m[i * RQ + SWAPPED]
    c[SWAPPED_NOW] += m[i * RQ + SWAPPED]
    m[i * RQ + SWAPPED] = 0


@compiled
def begin(m: I32, c: I64, f: F64, i: int, start: int) -> None:
    """Request i runs, with `start` tokens from the cache."""
    m[c[RUNNING_AT] + c[N_RUNNING]] = i
    c[N_RUNNING] += 1
    m[i * RQ + STATUS] = RUNNING
    m[i * RQ + COMPUTED] = start
    m[i * RQ + ORDER] = c[N_ADMISSIONS]
    c[N_ADMISSIONS] += 1
    if c[N_EXPLICIT] >= 0:
        m[c[EXPLICIT_AT] + c[N_EXPLICIT]] = i
        c[N_EXPLICIT] += 1
    note(m, c, f, T_ADMITTED, i, start)
    if f[i * TQ + SCHEDULED] < 0:
        f[i * TQ + SCHEDULED] = f[c[CLOCKS_AT] + NOW]
        m[i * RQ + CACHED] = start
        c[QUERIES] += m[i * RQ + PROMPT]
        c[HITS] += start
        if c[MARKS_WANTED]:
            keep_mark(m, c, f, i, 0)


@compiled
def add_to_batch(m: I32, c: I64, f: F64, i: int, count: int) -> None:
    m[c[BATCH_AT] + c[N_BATCH]] = i
    m[c[COUNT_AT] + c[N_BATCH]] = count
    c[N_BATCH] += 1
    after = m[i * RQ + COMPUTED] + count
    m[i * RQ + COMPUTED] = after
    if c[CACHING] and (m[i * RQ + HASHED] + 1) * c[BLOCK_SIZE] <= after:
        register(m, c, f, i, min(after, m[i * RQ + KNOWN]))


@compiled
def close_batch(m: I32, c: I64, f: F64, slot: int) -> None:
    """What the batch computes, and who gets a token of it."""
    work = WORK_AT + slot * WORK_COLUMNS
    for k in range(WORK_COLUMNS):
        c[work + k] = 0
    tracing = c[TRACE_ROOM] > 0
    ready_at = c[READY_AT] + slot * c[ACTIVE_LIMIT]
    ready = 0
    active = decode = c[N_COASTING]
    kv = c[COAST_KV]
    c[IMPLICIT + slot] = c[N_COASTING]
    for k in range(c[N_BATCH]):
        count = m[c[COUNT_AT] + k]
        if count == 0:
            continue
        i = m[c[BATCH_AT] + k]
        active += 1
        after = m[i * RQ + COMPUTED]
        if after - count < m[i * RQ + PREFILL_UNTIL]:
            account_prefill(m, c, f, work, i, after - count, after)
        else:
            decode += 1
            kv += after
        m[i * RQ + HIGH_WATER] = max(m[i * RQ + HIGH_WATER], after)
        if c[RESERVE]:
            size = c[BLOCK_SIZE]
            c[RESERVED_UNUSED] -= (after + size - 1) // size - (after - count + size - 1) // size
        if after == m[i * RQ + KNOWN] + m[i * RQ + IN_FLIGHT]:
            m[ready_at + ready] = i
            ready += 1
            if c[ASYNC]:
                m[i * RQ + IN_FLIGHT] += 1
        if tracing:
            note(m, c, f, T_SCHEDULED, i, count)
    c[READY_COUNT + slot] = ready
    c[N_BATCH] = active
    if active:
        c[work + W_STEPS] = 1
        c[work + W_DECODE] = decode
        c[work + W_KV] = kv
        c[work + W_OVER] = max(0, c[work + W_PREFILL] + decode - c[FREE_TOKENS])
        c[work + W_SWAPPED] = c[SWAPPED_NOW]
        c[SWAPPED_NOW] = 0
        c[work + W_PREFILL_STEP] = 1 if c[work + W_PREFILL] > 0 else 0
        c[STEPS] += 1
        c[PEAK_RUNNING] = max(c[PEAK_RUNNING], active)
        c[PEAK_USED] = max(c[PEAK_USED], c[USABLE] - c[FREE])


@compiled
def account_prefill(m: I32, c: I64, f: F64, work: int, i: int, before: int, after: int) -> None:
    """Tokens `before`..`after` of request i, counted at place `work` of c."""
    c[work + W_PREFILL] += after - before
    c[work + W_PAIRS] += (after - before) * (before + after)
    c[PREFILL_TOKENS] += after - before
    again = min(m[i * RQ + HIGH_WATER], after) - before
    if again > 0:
        c[RECOMPUTED_TOKENS] += again
        m[i * RQ + RECOMPUTED] += again


@compiled
def drop_unused(m: I32, c: I64, f: F64, i: int) -> None:
    """Before a release: what request i held beyond its need."""
    if c[RESERVE] and m[i * RQ + BLOCKS] > 0:
        size = c[BLOCK_SIZE]
        c[RESERVED_UNUSED] -= m[i * RQ + BLOCKS] - (m[i * RQ + COMPUTED] + size - 1) // size


@compiled
def note(m: I32, c: I64, f: F64, kind: int, i: int, value: int) -> None:
    """A line of the trace, where one is wanted."""
    if c[TRACE_ROOM] and (c[TRACE_MASK] >> kind) & 1:
        place = c[N_TRACE]
        m[c[TRACE_AT] + 4 * place + 0] = kind
        m[c[TRACE_AT] + 4 * place + 1] = c[STEPS]
        m[c[TRACE_AT] + 4 * place + 2] = i
        m[c[TRACE_AT] + 4 * place + 3] = value
        c[N_TRACE] = place + 1


@compiled
def keep_mark(m: I32, c: I64, f: F64, i: int, which: int) -> None:
    """The work done so far, for `fit`."""
    for k in range(WORK_COLUMNS):
        f[c[MARKS_AT] + (i * 3 + which) * WORK_COLUMNS + k] = f[c[DONE_AT] + k]
