"""num_gpu_blocks: the engine's own figure, or what follows from flags and memory.

Source: vllm/v1/core/kv_cache_utils.py (num_blocks = available_memory // bytes_per_block), v1/worker/gpu_worker.py and
utils.py (request_memory), platforms/cpu.py and v1/worker/cpu_worker.py of 0.32.
Hazard: on a GPU vLLM measures the activation peak and graphs before it decides, so the figure derived here is an
upper bound. The engine's own always wins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from trimtab.engine.kv.layout import Layout
from trimtab.errors import InputError

GIB = 2**30
#: vllm/config/cache.py of 0.32; 0.19 had 0.9
DEFAULT_UTILIZATION = 0.92


class Origin(StrEnum):
    """Where a block count is from."""

    ENGINE = "engine"  # vllm:cache_config_info
    OVERRIDE = "override"  # --num-gpu-blocks-override
    KV_MEMORY = "kv-memory"  # --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE
    GPU_MEMORY = "gpu-memory"  # GPU memory x utilization - weights


@dataclass(frozen=True)
class BlockCount:
    """blocks of the pool; exact: False for an upper bound."""

    blocks: int
    origin: Origin
    exact: bool
    why: str


@dataclass(frozen=True)
class Memory:
    """What is known about the pool, per GPU unless said otherwise. None: not known.

    num_gpu_blocks: the running engine's. cpu_kvcache_space_gib: VLLM_CPU_KVCACHE_SPACE, which vLLM puts over
    kv_cache_memory_bytes. weights_bytes: of the whole model. non_kv_bytes: activations, graphs and the rest, measured.
    """

    num_gpu_blocks: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    cpu_kvcache_space_gib: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    weights_bytes: int | None = None
    non_kv_bytes: int | None = None

    def __post_init__(self) -> None:
        names = (
            "num_gpu_blocks", "num_gpu_blocks_override", "kv_cache_memory_bytes", "cpu_kvcache_space_gib",
            "gpu_memory_bytes", "weights_bytes", "non_kv_bytes",
        )  # fmt: skip
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(name, f"{value} is too small", "Use 1 or more, or leave it out.")
        if not 0 < self.gpu_memory_utilization <= 1:
            value = self.gpu_memory_utilization
            raise InputError("gpu_memory_utilization", f"{value} is not in (0, 1]", "Use a share such as 0.92.")


def derive(layout: Layout, memory: Memory, gpus: int = 1) -> BlockCount | None:
    """What follows from flags and memory, whatever the engine says; None if too little is known.

    gpus: over how many the weights are spread (tensor x pipeline parallel).
    """
    if memory.num_gpu_blocks_override is not None:
        return BlockCount(memory.num_gpu_blocks_override, Origin.OVERRIDE, True, "--num-gpu-blocks-override")
    if layout.not_modelled:
        return None
    if memory.cpu_kvcache_space_gib is not None:
        blocks = memory.cpu_kvcache_space_gib * GIB // layout.bytes_per_block
        return BlockCount(blocks, Origin.KV_MEMORY, True, "VLLM_CPU_KVCACHE_SPACE / bytes per block")
    if memory.kv_cache_memory_bytes is not None:
        blocks = memory.kv_cache_memory_bytes // layout.bytes_per_block
        return BlockCount(blocks, Origin.KV_MEMORY, True, "--kv-cache-memory-bytes / bytes per block")
    if memory.gpu_memory_bytes is None:
        return None
    return _from_gpu_memory(layout, memory, memory.gpu_memory_bytes, gpus)


def _from_gpu_memory(layout: Layout, memory: Memory, total_bytes: int, gpus: int) -> BlockCount:
    requested = math.ceil(total_bytes * memory.gpu_memory_utilization)
    taken = [name for name, known in (("weights", memory.weights_bytes), ("the rest", memory.non_kv_bytes)) if known]
    available = requested - (memory.weights_bytes or 0) // gpus - (memory.non_kv_bytes or 0)
    if available < layout.bytes_per_block:
        problem = f"{requested:,} bytes do not hold {' and '.join(taken)} and one block"
        raise InputError("gpu_memory_bytes", problem, "Use a larger GPU, more GPUs or a smaller model.")
    less = " - ".join(["GPU memory x utilization", *taken])
    missing = [
        n for n, v in (("weights", memory.weights_bytes), ("activations and graphs", memory.non_kv_bytes)) if not v
    ]
    why = less + (f"; {' and '.join(missing)} not taken off" if missing else "")
    return BlockCount(available // layout.bytes_per_block, Origin.GPU_MEMORY, False, why)


def count_blocks(layout: Layout, memory: Memory, gpus: int = 1) -> BlockCount | None:
    """The engine's own figure wins, then `derive`."""
    if memory.num_gpu_blocks is not None:
        return BlockCount(memory.num_gpu_blocks, Origin.ENGINE, True, "the engine's own figure")
    return derive(layout, memory, gpus)


def default_block_size(device: str, latent: bool) -> tuple[int, str | None]:
    """(tokens, caveat) where --block-size is not given. device: gpu or cpu.

    vllm/config/cache.py: 16; platforms/cpu.py: 128, and 16 for latent attention without AMX;
    platforms/interface.py: the attention backend may want another.
    """
    if device == "cpu":
        return (16, "128 on a CPU with AMX") if latent else (128, None)
    if device != "gpu":
        raise InputError("--device", f"{device!r} is not known", "Use gpu or cpu.")
    if latent:
        return 64, "vLLM takes 16, 32, 64 or 128 by the MLA backend; give --block-size"
    return 16, None
