"""max_model_len against the KV cache.

Source: vllm#39734: a pool of 76,640 tokens under a max_model_len of 262,144; one long prompt blocked all others until
its client left. vLLM 0.32 checks it at start, older versions not in every case.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.engine.kv import LayoutOptions, Memory, default_block_size, derive, lay_out
from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError
from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target

#: vLLM's smallest default (0.32 `EngineArgs`); it matters to sliding windows only
_BATCHED_TOKENS = 2048


def longer_than_cache(target: Target, options: Options) -> Iterator[Hit]:
    flag, length, size = target.flag("--max-model-len"), target.integer("--max-model-len"), _size(target, options)
    if flag and length is not None and size is not None and length > size[0]:
        yield target.at(
            flag,
            f"--max-model-len {length} is more than the KV cache holds ({size[0]} tokens, {size[1]}): "
            "vLLM does not start, or one long prompt blocks all behind it.",
            fix=f"Use at most {size[0]}, or a larger cache.",
        )


def _size(target: Target, options: Options) -> tuple[int, str] | None:
    """Tokens that fit, and how they are known."""
    if options.kv_cache_size_tokens is not None:
        return options.kv_cache_size_tokens, "as given by --kv-cache-size-tokens"
    if options.model_config is not None:
        return _from_model(target, options.model_config)
    blocks, block = target.integer("--num-gpu-blocks-override"), target.integer("--block-size")
    if blocks is None or (block is None and _is_cpu(target)):
        return None
    tokens = block or default_block_size("gpu", latent=False)[0]
    return blocks * tokens, f"--num-gpu-blocks-override {blocks} x {tokens} tokens"


def _is_cpu(target: Target) -> bool:
    return "cpu" in target.image.lower()


def _from_model(target: Target, model: ModelConfig) -> tuple[int, str] | None:
    """None where the flags do not decide the pool's size, or the model is not modelled."""
    length = target.integer("--max-model-len")
    latent = any(layer is not None and layer.latent for layer in model.layers)
    block = target.integer("--block-size") or default_block_size("cpu" if _is_cpu(target) else "gpu", latent)[0]
    memory = Memory(
        num_gpu_blocks_override=target.integer("--num-gpu-blocks-override"),
        kv_cache_memory_bytes=target.integer("--kv-cache-memory-bytes"),
    )
    try:
        layout = lay_out(model, _options(target, block))
        pool = derive(layout, memory)
        if pool is None or length is None or length < 1:
            return None
        return layout.capacity_tokens(pool.blocks, length), f"{pool.blocks} blocks by {pool.why}"
    except InputError:
        return None


def _options(target: Target, block: int) -> LayoutOptions:
    dtypes = {name: found.value for name in ("--kv-cache-dtype", "--dtype") if (found := target.flag(name))}
    return LayoutOptions(
        block_size=block,
        kv_cache_dtype=dtypes.get("--kv-cache-dtype") or "auto",
        dtype=dtypes.get("--dtype") or "auto",
        tensor_parallel=target.integer("--tensor-parallel-size") or 1,
        pipeline_parallel=target.integer("--pipeline-parallel-size") or 1,
        max_num_batched_tokens=target.integer("--max-num-batched-tokens") or _BATCHED_TOKENS,
    )
