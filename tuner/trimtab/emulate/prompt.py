"""A prompt as its tokens (words, or ids), and the names of the KV blocks that it fills."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def block_ids(tokens: Sequence[Hashable], block_size: int) -> list[int]:
    """One number per full block, equal only for equal tokens after an equal past. Good within one process."""
    found: list[int] = []
    parent = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, tuple(tokens[start : start + block_size])))
        found.append(parent)
    return found
