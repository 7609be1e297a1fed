"""Compiled: KV blocks and the prefix cache in freed blocks. Source: vLLM 0.32 `v1/core/block_pool.py`.

Blocks freed with a hash go to the tail of the free list, others to its head, the last block of a sequence first. Blocks
of equal content are all findable, the oldest first. Contents are numbers: shared ones index `block_of`; a request's
own are found only by itself, through the table row that it keeps while preempted.
Without prefix caching only counts are kept.
"""

from __future__ import annotations

from trimtab.simulate.compiled import compiled
from trimtab.simulate.state import (
    BLOCK_OF_AT,
    BLOCK_SIZE,
    BLOCKS,
    CACHING,
    CONTENT_AT,
    F64,
    FOLLOWING_AT,
    FOUND_AT,
    FREE,
    FREE_ROWS_AT,
    HASHED,
    I32,
    I64,
    KNOWN,
    N_BLOCKS,
    N_FREE_ROWS,
    OWN,
    PRECEDING_AT,
    PREFIX_COUNT,
    PREFIX_IDS_AT,
    PREFIX_START,
    REFERENCES_AT,
    REMEMBERED,
    ROW,
    RQ,
    TABLE_AT,
    TWIN_AT,
    WIDTH,
)


@compiled
def unlink(m: I32, c: I64, f: F64, block: int) -> None:
    before, after = m[c[PRECEDING_AT] + block], m[c[FOLLOWING_AT] + block]
    m[c[FOLLOWING_AT] + before] = after
    m[c[PRECEDING_AT] + after] = before


@compiled
def link_after(m: I32, c: I64, f: F64, place: int, block: int) -> None:
    after = m[c[FOLLOWING_AT] + place]
    m[c[FOLLOWING_AT] + place] = block
    m[c[PRECEDING_AT] + block] = place
    m[c[FOLLOWING_AT] + block] = after
    m[c[PRECEDING_AT] + after] = block


@compiled
def forget(m: I32, c: I64, f: F64, block: int) -> None:
    """The block is used anew: what it cached can no longer be found."""
    content = m[c[CONTENT_AT] + block]
    if content >= 0:
        other = m[c[BLOCK_OF_AT] + content]
        after = m[c[TWIN_AT] + block]
        if other == block:
            m[c[BLOCK_OF_AT] + content] = after
        else:
            while m[c[TWIN_AT] + other] != block:
                other = m[c[TWIN_AT] + other]
            m[c[TWIN_AT] + other] = after
    m[c[CONTENT_AT] + block] = -1


@compiled
def take_free(m: I32, c: I64, f: F64, count: int, to: int) -> None:
    """The first `count` blocks of the free list, their numbers to `m[to : to + count]`."""
    head = c[N_BLOCKS]
    block = m[c[FOLLOWING_AT] + head]
    for k in range(count):
        m[to + k] = block
        forget(m, c, f, block)
        m[c[REFERENCES_AT] + block] = 1
        block = m[c[FOLLOWING_AT] + block]
    m[c[FOLLOWING_AT] + head] = block
    m[c[PRECEDING_AT] + block] = head


@compiled
def allocate(m: I32, c: I64, f: F64, i: int, count: int) -> None:
    """`count` more blocks for request i; check FREE first."""
    held = m[i * RQ + BLOCKS]
    c[FREE] -= count
    m[i * RQ + BLOCKS] = held + count
    if c[CACHING]:
        take_free(m, c, f, count, c[TABLE_AT] + m[i * RQ + ROW] * c[WIDTH] + held)


@compiled
def lose(m: I32, c: I64, f: F64, count: int) -> None:
    """`count` free blocks leave the pool for good; check FREE first."""
    c[FREE] -= count
    if c[CACHING]:
        for _ in range(count):
            take_free(m, c, f, 1, c[FOUND_AT])


@compiled
def release(m: I32, c: I64, f: F64, i: int) -> None:
    """All blocks of request i. Its table row goes on remembering them."""
    held = m[i * RQ + BLOCKS]
    m[i * RQ + BLOCKS] = 0
    m[i * RQ + REMEMBERED] = held
    m[i * RQ + HASHED] = 0
    if not c[CACHING]:
        c[FREE] += held
        return
    head = c[N_BLOCKS]
    row = c[TABLE_AT] + m[i * RQ + ROW] * c[WIDTH]
    front = head
    freed = 0
    for k in range(held - 1, -1, -1):
        block = m[row + k]
        references = m[c[REFERENCES_AT] + block] - 1
        m[c[REFERENCES_AT] + block] = references
        if references == 0:
            freed += 1
            if m[c[CONTENT_AT] + block] == -1:
                link_after(m, c, f, front, block)
                front = block
            else:
                link_after(m, c, f, m[c[PRECEDING_AT] + head], block)
    c[FREE] += freed


@compiled
def register(m: I32, c: I64, f: F64, i: int, tokens: int) -> None:
    """Make the blocks that `tokens` tokens of request i fill findable."""
    hashed = m[i * RQ + HASHED]
    if (hashed + 1) * c[BLOCK_SIZE] > tokens:
        return
    full = tokens // c[BLOCK_SIZE]
    shared, start = m[i * RQ + PREFIX_COUNT], c[PREFIX_IDS_AT] + m[i * RQ + PREFIX_START]
    row = c[TABLE_AT] + m[i * RQ + ROW] * c[WIDTH]
    for k in range(hashed, full):
        block = m[row + k]
        if k < shared:
            content = m[start + k]
            m[c[CONTENT_AT] + block] = content
            m[c[TWIN_AT] + block] = -1
            other = m[c[BLOCK_OF_AT] + content]
            if other < 0:
                m[c[BLOCK_OF_AT] + content] = block
            else:
                while m[c[TWIN_AT] + other] >= 0:
                    other = m[c[TWIN_AT] + other]
                m[c[TWIN_AT] + other] = block
        else:
            m[c[CONTENT_AT] + block] = OWN - i
    m[i * RQ + HASHED] = full


@compiled
def find_prefix(m: I32, c: I64, f: F64, i: int) -> int:
    """Number of cached blocks that request i can start with, their ids in `found`. Its last token is computed anew."""
    limit = (m[i * RQ + KNOWN] - 1) // c[BLOCK_SIZE]
    shared, start = m[i * RQ + PREFIX_COUNT], c[PREFIX_IDS_AT] + m[i * RQ + PREFIX_START]
    block_of, found = c[BLOCK_OF_AT], c[FOUND_AT]
    for k in range(min(limit, shared)):
        block = m[block_of + m[start + k]]
        if block < 0:
            return k
        m[found + k] = block
    if limit <= shared or m[i * RQ + ROW] < 0:
        return int(min(limit, shared))
    row = c[TABLE_AT] + m[i * RQ + ROW] * c[WIDTH]
    for k in range(shared, limit):
        if k >= m[i * RQ + REMEMBERED]:
            return k
        block = m[row + k]
        if m[c[CONTENT_AT] + block] != OWN - i:
            return k
        m[found + k] = block
    return int(limit)


@compiled
def take_found(m: I32, c: I64, f: F64, i: int, count: int) -> None:
    """Request i starts with the first `count` blocks of `found`."""
    found = c[FOUND_AT]
    row = c[TABLE_AT] + m[i * RQ + ROW] * c[WIDTH]
    for k in range(count):
        block = m[found + k]
        if m[c[REFERENCES_AT] + block] == 0:
            unlink(m, c, f, block)
            c[FREE] -= 1
        m[c[REFERENCES_AT] + block] += 1
        m[row + k] = block
    m[i * RQ + BLOCKS] = count
    m[i * RQ + HASHED] = count


@compiled
def take_row(m: I32, c: I64, f: F64, i: int) -> None:
    """A row of the block table, kept until the request ends. The loop sees to it that there is one."""
    if m[i * RQ + ROW] < 0 and c[CACHING]:
        c[N_FREE_ROWS] -= 1
        m[i * RQ + ROW] = m[c[FREE_ROWS_AT] + c[N_FREE_ROWS]]


@compiled
def give_row_back(m: I32, c: I64, f: F64, i: int) -> None:
    if m[i * RQ + ROW] >= 0:
        m[c[FREE_ROWS_AT] + c[N_FREE_ROWS]] = m[i * RQ + ROW]
        c[N_FREE_ROWS] += 1
        m[i * RQ + ROW] = -1
