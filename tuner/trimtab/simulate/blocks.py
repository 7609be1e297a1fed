"""Compiled: KV blocks and the prefix cache in freed blocks. Source: vLLM 0.32 `v1/core/block_pool.py`.

Blocks freed with a hash go to the tail of the free list, others to its head, the last block of a sequence first. Blocks
of equal content are all findable, the oldest first. Contents are numbers: shared ones index `block_of`; a request's
own are (request, position) and only it can find them, through the table row that it keeps while preempted.
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
    OWNER_AT,
    POSITION_AT,
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
        if m[c[BLOCK_OF_AT] + content] == block:
            m[c[BLOCK_OF_AT] + content] = m[c[TWIN_AT] + block]
        else:
            other = m[c[BLOCK_OF_AT] + content]
            while m[c[TWIN_AT] + other] != block:
                other = m[c[TWIN_AT] + other]
            m[c[TWIN_AT] + other] = m[c[TWIN_AT] + block]
        m[c[CONTENT_AT] + block] = -1
    m[c[OWNER_AT] + block] = -1


@compiled
def allocate(m: I32, c: I64, f: F64, i: int, count: int) -> None:
    """`count` more blocks for request i; check FREE first."""
    held = m[i * RQ + BLOCKS]
    c[FREE] -= count
    m[i * RQ + BLOCKS] = held + count
    if not c[CACHING]:
        return
    head = c[N_BLOCKS]
    row = m[i * RQ + ROW]
    for k in range(count):
        block = m[c[FOLLOWING_AT] + head]
        unlink(m, c, f, block)
        forget(m, c, f, block)
        m[c[REFERENCES_AT] + block] = 1
        m[c[TABLE_AT] + row * c[WIDTH] + held + k] = block


@compiled
def lose(m: I32, c: I64, f: F64, count: int) -> None:
    """`count` free blocks leave the pool for good; check FREE first."""
    c[FREE] -= count
    if not c[CACHING]:
        return
    for _ in range(count):
        block = m[c[FOLLOWING_AT] + c[N_BLOCKS]]
        unlink(m, c, f, block)
        forget(m, c, f, block)


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
    row = m[i * RQ + ROW]
    front = head
    for k in range(held - 1, -1, -1):
        block = m[c[TABLE_AT] + row * c[WIDTH] + k]
        m[c[REFERENCES_AT] + block] -= 1
        if m[c[REFERENCES_AT] + block] == 0:
            c[FREE] += 1
            if m[c[CONTENT_AT] + block] < 0 and m[c[OWNER_AT] + block] < 0:
                link_after(m, c, f, front, block)
                front = block
            else:
                link_after(m, c, f, m[c[PRECEDING_AT] + head], block)


@compiled
def register(m: I32, c: I64, f: F64, i: int, tokens: int) -> None:
    """Make the blocks that `tokens` tokens of request i fill findable."""
    if (m[i * RQ + HASHED] + 1) * c[BLOCK_SIZE] > tokens:
        return
    full = tokens // c[BLOCK_SIZE]
    shared, start = m[i * RQ + PREFIX_COUNT], m[i * RQ + PREFIX_START]
    row = m[i * RQ + ROW]
    for k in range(m[i * RQ + HASHED], full):
        block = m[c[TABLE_AT] + row * c[WIDTH] + k]
        if k < shared:
            content = m[c[PREFIX_IDS_AT] + start + k]
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
            m[c[OWNER_AT] + block] = i
            m[c[POSITION_AT] + block] = k
    m[i * RQ + HASHED] = full


@compiled
def find_prefix(m: I32, c: I64, f: F64, i: int) -> int:
    """Number of cached blocks that request i can start with, their ids in `found`. Its last token is computed anew."""
    limit = (m[i * RQ + KNOWN] - 1) // c[BLOCK_SIZE]
    shared, start = m[i * RQ + PREFIX_COUNT], m[i * RQ + PREFIX_START]
    row = m[i * RQ + ROW]
    for k in range(limit):
        if k < shared:
            block = m[c[BLOCK_OF_AT] + m[c[PREFIX_IDS_AT] + start + k]]
            if block < 0:
                return k
        else:
            if row < 0 or k >= m[i * RQ + REMEMBERED]:
                return k
            block = m[c[TABLE_AT] + row * c[WIDTH] + k]
            if m[c[OWNER_AT] + block] != i or m[c[POSITION_AT] + block] != k:
                return k
        m[c[FOUND_AT] + k] = block
    return int(limit)


@compiled
def take_found(m: I32, c: I64, f: F64, i: int, count: int) -> None:
    """Request i starts with the first `count` blocks of `found`."""
    row = m[i * RQ + ROW]
    for k in range(count):
        block = m[c[FOUND_AT] + k]
        if m[c[REFERENCES_AT] + block] == 0:
            unlink(m, c, f, block)
            c[FREE] -= 1
        m[c[REFERENCES_AT] + block] += 1
        m[c[TABLE_AT] + row * c[WIDTH] + k] = block
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
