"""Bytes per token and layer for each --kv-cache-dtype of vLLM 0.32.

Source: vllm/v1/kv_cache_interface.py, v1/attention/backends/{triton_attn,flashinfer}.py, and for latent attention
model_executor/layers/attention/mla_attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.errors import InputError

#: bytes of one value. "auto" follows the model; vLLM serves float32 checkpoints in 16 bits unless --dtype says float32
_WEIGHT_BYTES: Final[Mapping[str, int]] = {
    "auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4,
}  # fmt: skip
_PLAIN: Final[Mapping[str, int]] = {
    "float16": 2, "bfloat16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1,
}  # fmt: skip
#: a 4-byte scale lies beside the keys, and one beside the values, of each head (two beside a latent vector)
_SCALED: Final[Mapping[str, float]] = {
    "int8_per_token_head": 1, "fp8_per_token_head": 1, "int4_per_token_head": 0.5,
}  # fmt: skip
_SCALE_BYTES: Final = 4
#: latent attention of DeepSeek in packed forms: bytes per token and layer, whatever the head size
_PACKED_LATENT: Final[Mapping[str, int]] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_NVFP4: Final = ("nvfp4", "nvfp4_4over6")
KV_DTYPES: Final = ("auto", *_PLAIN, *_SCALED, *_NVFP4, *_PACKED_LATENT)


def resolve(kv_cache_dtype: str, checkpoint: str, dtype: str, weights: str) -> str:
    """The cache's dtype: --kv-cache-dtype, else the checkpoint's, else --dtype, else that of the weights.

    InputError names the flag whose value is not modelled.
    """
    if kv_cache_dtype not in KV_DTYPES:
        raise InputError(
            "--kv-cache-dtype", f"{kv_cache_dtype!r} is not modelled", f"Modelled are {', '.join(KV_DTYPES)}."
        )
    if dtype not in _WEIGHT_BYTES:
        raise InputError("--dtype", f"{dtype!r} is not known", f"Known are {', '.join(_WEIGHT_BYTES)}.")
    if kv_cache_dtype != "auto":
        return kv_cache_dtype
    if checkpoint != "auto":
        return checkpoint
    if dtype in ("float", "float32"):
        return "float32"
    if dtype == "auto":
        return "float16" if weights == "float16" else "bfloat16"
    return "bfloat16" if dtype == "bfloat16" else "float16"


def token_bytes(kv_heads: int, head_size: int, latent: bool, kv_dtype: str) -> int:
    """Bytes that one layer keeps per token on one GPU; kv_dtype as from `resolve`."""
    if kv_dtype in _PACKED_LATENT:
        if not latent:
            raise InputError("--kv-cache-dtype", f"{kv_dtype} is for latent attention (MLA) only", "Use fp8 or auto.")
        return _PACKED_LATENT[kv_dtype]
    if kv_dtype in _NVFP4:
        if latent:
            raise InputError("--kv-cache-dtype", f"{kv_dtype} with latent attention is not modelled", "Use fp8.")
        return 2 * kv_heads * (head_size // 2 + head_size // 16)
    sides = 1 if latent else 2
    if kv_dtype in _SCALED:
        return kv_heads * (int(sides * head_size * _SCALED[kv_dtype]) + 2 * _SCALE_BYTES)
    return sides * kv_heads * head_size * _PLAIN[kv_dtype]
