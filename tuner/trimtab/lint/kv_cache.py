"""max_model_len against the KV cache.

Source: vllm#39734: a pool of 76,640 tokens under a max_model_len of 262,144; one long prompt blocked all others until
its client left. vLLM 0.32 checks it at start, older versions not in every case.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target

#: tokens per block on GPUs; CPU builds choose another one, so there it must be given
_GPU_BLOCK_TOKENS = 16


def _size(target: Target, options: Options) -> tuple[int, str] | None:
    """Tokens that fit, and how they are known."""
    if options.kv_cache_size_tokens is not None:
        return options.kv_cache_size_tokens, "as given by --kv-cache-size-tokens"
    blocks, block = target.integer("--num-gpu-blocks-override"), target.integer("--block-size")
    if blocks is None or (block is None and "cpu" in target.image):
        return None
    tokens = block or _GPU_BLOCK_TOKENS
    return blocks * tokens, f"--num-gpu-blocks-override {blocks} x {tokens} tokens"


def longer_than_cache(target: Target, options: Options) -> Iterator[Hit]:
    flag, length, size = target.flag("--max-model-len"), target.integer("--max-model-len"), _size(target, options)
    if flag and length is not None and size is not None and length > size[0]:
        yield target.at(
            flag,
            f"--max-model-len {length} is more than the KV cache holds ({size[0]} tokens, {size[1]}): "
            "vLLM does not start, or one long prompt blocks all behind it.",
            fix=f"Use at most {size[0]}, or a larger cache.",
        )
