"""KV-cache arithmetic of a paged engine: blocks, and bytes per block of equal layers.

Source: PagedAttention; checked in the tests on Llama-3 8B (32 layers, 8 KV heads, head size 128, FP16): 2,097,152
bytes for a block of 16 tokens. Hazard: `KVShape` is for equal layers; `layout.py` knows windows and latent attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import InputError


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens`: ceil(tokens / block_size)."""
    if tokens < 0:
        raise InputError("tokens", f"{tokens} is negative", "Use 0 or more.")
    if block_size < 1:
        raise InputError("block_size", f"{block_size} is not a block size", "Use 1 or more tokens.")
    return -(-tokens // block_size)


@dataclass(frozen=True)
class KVShape:
    """What decides the bytes of a block. dtype_bytes: 2 for FP16 and BF16, 1 for FP8."""

    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int = 2
    block_size: int = 16

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_size", "dtype_bytes", "block_size"):
            if getattr(self, name) < 1:
                raise InputError(name, f"{getattr(self, name)} is too small", "Use 1 or more.")

    @property
    def bytes_per_block(self) -> int:
        """Keys and values: 2 x kv_heads x head_size x dtype_bytes x block_size x layers."""
        return 2 * self.kv_heads * self.head_size * self.dtype_bytes * self.block_size * self.layers

    def bytes_for(self, tokens: int) -> int:
        """Bytes of the whole blocks that `tokens` take."""
        return blocks_for(tokens, self.block_size) * self.bytes_per_block
