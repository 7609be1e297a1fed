"""KV blocks: allocation, reference counts, and the prefix cache that lives in freed blocks until they are reused.

Order of reuse follows vLLM: freed blocks without a hash go to the head of the free queue (used first), hashed ones to
its tail, the last block of a sequence before its first. Simplification: when two blocks hold the same content only the
first one is findable.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """`usable` blocks numbered from 0. Callers must not release a block more often than they took it."""

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(usable))
        self._references = [0] * usable
        self._hash_of: list[int | None] = [None] * usable
        self._block_of: dict[int, int] = {}

    @property
    def free_count(self) -> int:
        """Free blocks, those with cached content included: they are evictable."""
        return len(self._free)

    @property
    def used_count(self) -> int:
        return self.usable - len(self._free)

    def find_prefix(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks that hold the longest cached prefix of `hashes`, at most `limit` of them. Takes no reference."""
        found: list[int] = []
        block_of = self._block_of
        for block_hash in hashes[:limit]:
            block = block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def count_evictable(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free now, so that taking them shrinks the free count."""
        return sum(1 for block in blocks if not self._references[block])

    def take_cached(self, blocks: Iterable[int]) -> None:
        """Reference blocks found by `find_prefix`."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the head of the free queue and evict what they cached. Check `free_count` first."""
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            old_hash = self._hash_of[block]
            if old_hash is not None:
                del self._block_of[old_hash]
                self._hash_of[block] = None
            self._references[block] = 1
            taken.append(block)
        return taken

    def register(self, block: int, block_hash: int) -> None:
        """Make a full block findable, unless its content already is."""
        if block_hash not in self._block_of and self._hash_of[block] is None:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block of a sequence, given in sequence order."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)
