"""KV-cache arithmetic: bytes per block, blocks per request, num_gpu_blocks, reserved against used. Pure.

`lay_out(ModelConfig, LayoutOptions)` -> Layout -> `count_blocks`, `usage`. `KVShape`: short form for equal layers.
"""

from trimtab.engine.kv.blocks import KVShape, blocks_for
from trimtab.engine.kv.layout import Group, Layout, LayoutOptions, Speculative, lay_out
from trimtab.engine.kv.pool import BlockCount, Memory, Origin, count_blocks, default_block_size, derive
from trimtab.engine.kv.usage import Held, Tokens, Usage, fleet, seed_max_num_seqs, usage

__all__ = [
    "BlockCount",
    "Group",
    "Held",
    "KVShape",
    "Layout",
    "LayoutOptions",
    "Memory",
    "Origin",
    "Speculative",
    "Tokens",
    "Usage",
    "blocks_for",
    "count_blocks",
    "default_block_size",
    "derive",
    "fleet",
    "lay_out",
    "seed_max_num_seqs",
    "usage",
]
