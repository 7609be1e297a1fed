"""Runs inside vLLM's own venv: Trimtab's layout beside what vLLM's functions say. Prints what differs as JSON.

Started by test_kv_real.py with the product and this folder on PYTHONPATH. No server, no model.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import kv_configs
import torch
import vllm.config  # noqa: F401 - first: the modules below import each other
from transformers import AutoConfig
from vllm.distributed.utils import get_pp_indices
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)
from vllm.v1.core import kv_cache_utils as theirs
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from trimtab.engine.kv import LayoutOptions, lay_out
from trimtab.engine.kv.layout import kv_heads_per_gpu
from trimtab.engine.model_config import LayerKV, ModelConfig

CASES = 400


def vllm_config(case: SimpleNamespace) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=case.max_model_len, original_max_model_len=None),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=case.tp),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=not case.hybrid),
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        max_in_flight_tokens=case.in_flight,
    )


def spec(layer: LayerKV, case: SimpleNamespace) -> Any:
    heads = 1 if layer.latent else max(1, layer.kv_heads // case.tp)
    common = {"block_size": case.block, "num_kv_heads": heads, "head_size": layer.head_size, "dtype": torch.bfloat16}
    if layer.latent:
        return MLAAttentionSpec(**common)
    if layer.window_tokens is None:
        return FullAttentionSpec(**common)
    if layer.attention == "chunked":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=layer.window_tokens)
    return SlidingWindowSpec(**common, sliding_window=layer.window_tokens)


def case_of(rng: random.Random) -> SimpleNamespace:
    heads, batched = rng.choice([1, 2, 4, 8]), rng.choice([256, 2048, 8192])
    latent = rng.random() < 0.1
    full, sliding = rng.randint(0, 24), 0 if latent else rng.randint(0, 60) * (rng.random() < 0.8)
    full += not full + sliding
    window, kind = rng.randint(1, 5000), rng.choice(["sliding", "sliding", "chunked"])
    layers = [LayerKV("full", None, heads, 128, latent)] * full + [LayerKV(kind, window, heads, 128)] * sliding
    rng.shuffle(layers)
    pp = rng.choice([1, 1, 2, 3]) if len(layers) >= 3 else 1
    return SimpleNamespace(layers=layers, block=rng.choice([16, 32, 64]), tp=rng.choice([1, 2, 4, 8]), pp=pp,
                           batched=batched, in_flight=batched * max(2, pp), max_model_len=rng.randint(100, 50_000),
                           hybrid=rng.random() < 0.9)  # fmt: skip


def of_vllm(case: SimpleNamespace) -> tuple[Any, ...]:
    config = vllm_config(case)
    specs = {f"layers.{i}": spec(layer, case) for i, layer in enumerate(case.layers)}
    groups = theirs.get_kv_cache_groups(config, dict(specs))
    per_stage = []
    for rank in range(case.pp):
        start, end = get_pp_indices(len(case.layers), rank, case.pp)
        mine = {name: specs[name] for name in list(specs)[start:end]}
        projected = theirs._project_kv_cache_groups_to_worker(groups, mine)
        per_stage.append(theirs._get_kv_cache_bytes_per_block(projected, KVCacheLayout.LBNHC))
    blocks = sum(-(-g.kv_cache_spec.max_memory_usage_bytes(config) // g.kv_cache_spec.page_size_bytes) for g in groups)
    return sorted(len(g.layer_names) for g in groups), max(per_stage), sum(per_stage) * case.tp, blocks


def of_trimtab(case: SimpleNamespace) -> tuple[Any, ...]:
    options = LayoutOptions(block_size=case.block, tensor_parallel=case.tp, pipeline_parallel=case.pp,
                            max_num_batched_tokens=case.batched, in_flight_batches=max(2, case.pp),
                            hybrid_manager=case.hybrid)  # fmt: skip
    ours = lay_out(ModelConfig("case", tuple(case.layers)), options)
    sizes = sorted(g.layers for g in ours.groups)
    return sizes, ours.bytes_per_block, ours.bytes_per_block_all_gpus, ours.blocks_of_full_length(case.max_model_len)


def differing_layouts() -> list[Any]:
    rng = random.Random(4)
    found = []
    for number in range(CASES):
        case = case_of(rng)
        ours, real = of_trimtab(case), of_vllm(case)
        if ours != real:
            full = sum(layer.attention == "full" for layer in case.layers)
            found.append({"case": number, "trimtab": ours, "vllm": real, "full": full, "pp": case.pp,
                          "others": len(case.layers) - full, "hybrid": case.hybrid})  # fmt: skip
    return found


def differing_configs() -> list[Any]:
    """Heads, head size and layer kinds of the public configs."""
    found = []
    for name, config in vars(kv_configs).items():
        if not name.isupper():
            continue
        rest = {k: v for k, v in config.items() if k != "model_type"}
        hf = AutoConfig.for_model(config["model_type"], **rest)
        text = hf.get_text_config()
        arch = MODEL_ARCH_CONFIG_CONVERTORS.get(hf.model_type, ModelArchConfigConvertorBase)(hf, text)
        ours = ModelConfig.from_hf(config)
        base = next(layer for layer in ours.layers if layer is not None)
        real = (arch.get_num_hidden_layers(), 1 if base.latent else arch.get_total_num_kv_heads(), arch.get_head_size())
        if (len(ours.layers), kv_heads_per_gpu(base.kv_heads, 1), base.head_size) != real:
            found.append({"config": name, "trimtab": (len(ours.layers), base.kv_heads, base.head_size), "vllm": real})
        kinds = [f"{layer.attention}_attention" if layer else "linear_attention" for layer in ours.layers]
        theirs_kinds = getattr(text, "layer_types", None)
        if theirs_kinds is not None and list(theirs_kinds) != kinds:
            found.append({"config": name, "trimtab": kinds, "vllm": list(theirs_kinds)})
    return found


if __name__ == "__main__":
    json.dump({"layouts": differing_layouts(), "configs": differing_configs()}, sys.stdout)
