"""Compiled: which content each shared KV block of each request holds."""

from __future__ import annotations

from trimtab.simulate.compiled import compiled
from trimtab.simulate.state import I32, I64


@compiled
def fill_contents(
    start: I64, count: I64, chunk_start: I64, chunk_ids: I32, chunk_tokens: I32, base: I64, block_size: int, out: I32
) -> None:
    """Contents of request i's blocks to `out[start[i] : start[i] + count[i]]`, see `workload.Shared`.

    A block is numbered by the last chunk that it touches and its place there.
    """
    for i in range(len(count)):
        size = chunk_tokens[i]
        chunk = chunk_start[i]
        end = size  # of the chunk, in tokens
        first = base[chunk_ids[chunk]] if count[i] > 0 else 0
        for k in range(count[i]):
            while (k + 1) * block_size > end:
                chunk += 1
                first = base[chunk_ids[chunk]] - end // block_size
                end += size
            out[start[i] + k] = first + k
