"""Step times of a model on a GPU that nobody has measured: bytes over bandwidth, operations over peak, with error bars.

A place to start a fit from, what a fit falls back on for what its data does not separate, and a rough answer where
there is no data. Hazard: rough. Against four measured runs mean TPOT was off by up to 30% and TTFT by up to 45%
(docs/simulator.md); never compare two engines by it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from trimtab.engine.kv.layout import LayoutOptions, lay_out
from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError
from trimtab.simulate.fit import FITTED, Prior

Json = Mapping[str, Any]

#: share of peak that well-made kernels reach: weights streamed, KV read in pages, dense matrices. The spreads below
#: cover 0.6-1, 0.45-1 and 0.35-1
WEIGHT_SHARE: Final = 0.8
KV_SHARE: Final = 0.7
COMPUTE_SHARE: Final = 0.6
ATTENTION_SHARE: Final = 0.3
#: of a step beside reading weights: launch, sampling, the scheduler's Python
OVERHEAD_SECONDS: Final = 0.002
#: per sequence: sampling, detokenisation, bookkeeping
PER_SEQUENCE_SECONDS: Final = 5e-5
#: kernels launched one by one in a step with prefill (no whole CUDA graph), per layer
LAUNCH_SECONDS: Final = 6e-5
#: standard deviation of each coefficient's logarithm
SPREAD: Final[Mapping[str, float]] = {
    "fixed": 0.3, "per_prefill_token": 0.5, "per_pair": 1.5, "per_decode_seq": 1.0, "per_kv_token": 0.4,
    "per_prefill_step": 1.2,
}  # fmt: skip
_WEIGHT_BYTES: Final[Mapping[str, float]] = {"fp8": 1.0, "int8": 1.0, "int4": 0.56, "fp4": 0.56}


@dataclass(frozen=True)
class Gpu:
    """Bytes/s of its memory, dense operations/s at 16 and at 8 bits."""

    name: str
    bytes_per_second: float
    flops: float
    flops_8bit: float


@dataclass(frozen=True)
class Weights:
    """Parameters: read in every step (attention, dense layers, output head), of all experts, and those that a prompt
    token is multiplied with (the embedding is looked up, the output head computed for one token per sequence).
    """

    dense: float
    experts: float
    active: float


@cache
def gpus() -> tuple[Gpu, ...]:
    table = tomllib.loads(files("trimtab.simulate").joinpath("gpus.toml").read_text(encoding="utf-8"))["gpus"]
    return tuple(Gpu(name, gb * 1e9, tf * 1e12, (tf8 or tf) * 1e12) for name, gb, tf, tf8 in table)


def gpu_named(name: str) -> Gpu:
    """By its product name in any spelling; InputError lists those that are known."""
    asked = _plain(name)
    for gpu in gpus():
        if _plain(gpu.name) in asked:
            return gpu
    known = ", ".join(gpu.name for gpu in gpus())
    raise InputError("--gpu", f"{name!r} is not in the table", f"Use one of {known}; or leave it out.")


def _plain(name: str) -> str:
    return "".join(c for c in name.upper() if c.isalnum())


def weights_of(config: Json) -> Weights:
    """From a Hugging Face config.json: gated MLPs, grouped or latent attention, routed experts. InputError for a field
    that is missing.
    """
    text = _text(config)
    layers, hidden = _number(text, "num_hidden_layers"), _number(text, "hidden_size")
    vocabulary = _number(text, "vocab_size")
    experts = _number(text, "num_experts", "num_local_experts", "n_routed_experts", default=0)
    attention = _attention(text, hidden)
    wide = 3 * hidden * _number(text, "intermediate_size", default=0)
    if not experts:
        body = layers * (attention + wide)
        return Weights(body + vocabulary * hidden, 0.0, body)
    first = min(layers, _number(text, "first_k_dense_replace", default=0))
    one = 3 * hidden * _number(text, "moe_intermediate_size", "intermediate_size")
    shared = one * _number(text, "n_shared_experts", default=0)
    shared += 3 * hidden * _number(text, "shared_expert_intermediate_size", default=0)
    used = _number(text, "num_experts_per_tok", "num_experts_per_token")
    every = layers * attention + first * wide + (layers - first) * (shared + hidden * experts)
    return Weights(every + vocabulary * hidden, (layers - first) * experts * one, every + (layers - first) * used * one)


def _attention(text: Json, hidden: float) -> float:
    heads = _number(text, "num_attention_heads")
    latent = _number(text, "kv_lora_rank", default=0)
    if latent:
        nope, rope = _number(text, "qk_nope_head_dim"), _number(text, "qk_rope_head_dim")
        value, rank = _number(text, "v_head_dim"), _number(text, "q_lora_rank", default=0)
        query = rank * (hidden + heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
        return query + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    size = _number(text, "head_dim", default=0) or hidden / heads
    return 2 * hidden * size * (heads + _number(text, "num_key_value_heads", default=heads))


def _number(text: Json, *names: str, default: float | None = None) -> float:
    value = next((text[n] for n in names if text.get(n) is not None), default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise InputError(names[0], f"the model's config has {value!r}", "Give the model's Hugging Face config.json.")
    return float(value)


def roofline(
    config: Json,
    gpu: Gpu,
    *,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
) -> Prior:
    """Median and spread of the coefficients. `data_parallel` replicas with common experts count as one engine.

    All experts are taken as read in each step: at a few sequences a step is faster than that.
    """
    model, weights = ModelConfig.from_hf(config), weights_of(config)
    width = next((size for name, size in _WEIGHT_BYTES.items() if name in (quantization or "").lower()), 2.0)
    share, many = tensor_parallel, tensor_parallel * data_parallel
    flops = (gpu.flops_8bit if width == 1.0 else gpu.flops) * many
    bandwidth = gpu.bytes_per_second
    block = lay_out(model, LayoutOptions(block_size=16, tensor_parallel=tensor_parallel, kv_cache_dtype=kv_cache_dtype))
    query_size = sum(layer.head_size for layer in model.layers if layer) * _number(_text(config), "num_attention_heads")
    seconds = {
        "fixed": OVERHEAD_SECONDS
        + width * (weights.dense / share + weights.experts / many) / (bandwidth * WEIGHT_SHARE),
        "per_prefill_token": 2 * weights.active / (flops * COMPUTE_SHARE),
        # 4 operations per pair and element of the query; pairs are counted twice
        "per_pair": 2 * query_size / (gpu.flops * many * ATTENTION_SHARE),
        "per_decode_seq": PER_SEQUENCE_SECONDS,
        "per_kv_token": block.bytes_per_block / 16 / (bandwidth * data_parallel * KV_SHARE),
        "per_prefill_step": LAUNCH_SECONDS * len(model.layers),
    }
    return Prior(np.array([seconds[n] for n in FITTED]), np.array([SPREAD[n] for n in FITTED]))


def _text(config: Json) -> Json:
    return next((config[n] for n in ("text_config", "llm_config", "language_config") if n in config), config)
