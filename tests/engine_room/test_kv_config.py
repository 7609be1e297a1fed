"""config.json of the model families: layers, heads, windows, and what is said to be not modelled."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from kv_configs import (
    DEEPSEEK_V3,
    FALCON_7B,
    GEMMA2_9B,
    GEMMA3_27B,
    GPT2,
    GPT_OSS_20B,
    LLAMA3_8B,
    LLAMA4_SCOUT,
    MISTRAL_7B_V01,
    OPT_125M,
    QWEN2_7B,
    QWEN3_32B,
    QWEN3_NEXT,
    Json,
)

from trimtab.engine.model_config import LayerKV, ModelConfig
from trimtab.errors import InputError

Kinds = dict[tuple[str, int | None], int]


def kinds(model: ModelConfig) -> Kinds:
    return dict(Counter((x.attention, x.window_tokens) for x in model.layers if x is not None))


@pytest.mark.parametrize(
    ("config", "heads", "size", "expected"),
    [
        (LLAMA3_8B, 8, 128, {("full", None): 32}),
        (OPT_125M, 12, 64, {("full", None): 12}),
        (GPT2, 12, 64, {("full", None): 12}),
        (FALCON_7B, 1, 64, {("full", None): 32}),
        (MISTRAL_7B_V01, 8, 128, {("sliding", 4096): 32}),
        (QWEN2_7B, 4, 128, {("full", None): 28}),
        (QWEN3_32B, 8, 128, {("full", None): 64}),
        (GEMMA2_9B, 8, 256, {("sliding", 4096): 21, ("full", None): 21}),
        (GEMMA3_27B, 16, 128, {("sliding", 1024): 52, ("full", None): 10}),
        (GPT_OSS_20B, 8, 64, {("sliding", 128): 12, ("full", None): 12}),
        (LLAMA4_SCOUT, 8, 128, {("chunked", 8192): 36, ("full", None): 12}),
        (QWEN3_NEXT, 2, 256, {("full", None): 12}),
    ],
    ids=lambda v: v.get("model_type") if isinstance(v, dict) and "model_type" in v else None,
)
def test_layers_of_a_family(config: Json, heads: int, size: int, expected: Kinds) -> None:
    model = ModelConfig.from_hf(config)
    assert kinds(model) == expected
    assert {(x.kv_heads, x.head_size) for x in model.layers if x is not None} == {(heads, size)}


def test_latent_attention_keeps_one_vector_per_token() -> None:
    model = ModelConfig.from_hf(DEEPSEEK_V3)
    assert set(model.layers) == {LayerKV("full", None, 1, 576, latent=True)}
    assert (model.draft_layers, model.not_modelled) == (1, ())


def test_order_of_windows_in_gemma() -> None:
    """Gemma 2 begins with a window; every sixth layer of Gemma 3 is full."""
    two = ModelConfig.from_hf(GEMMA2_9B).layers
    three = ModelConfig.from_hf(GEMMA3_27B).layers
    assert [x.attention for x in two[:3] if x] == ["sliding", "full", "sliding"]
    assert [i for i, x in enumerate(three) if x and x.attention == "full"] == list(range(5, 62, 6))


def test_qwen_windows_begin_at_max_window_layers() -> None:
    model = ModelConfig.from_hf({**QWEN2_7B, "use_sliding_window": True, "max_window_layers": 20})
    assert kinds(model) == {("full", None): 20, ("sliding", 131072): 8}


def test_layers_that_share_keep_nothing() -> None:
    model = ModelConfig.from_hf({**LLAMA3_8B, "num_kv_shared_layers": 12})
    assert kinds(model) == {("full", None): 20}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index_head_dim": 128, "model_type": "deepseek_v32"}, "sparse-attention index"),
        ({"model_type": "minicpm3"}, "latent attention of model type 'minicpm3'"),
        ({"is_encoder_decoder": True}, "cross-attention"),
        ({"global_head_dim": 512}, "head size of their own"),
    ],
    ids=["sparse", "expanded", "encoder", "head-sizes"],
)
def test_what_is_not_modelled_is_said(changes: Json, said: str) -> None:
    assert any(said in note for note in ModelConfig.from_hf({**DEEPSEEK_V3, **changes}).not_modelled)


def test_state_layers_are_said_to_be_not_modelled() -> None:
    model = ModelConfig.from_hf(QWEN3_NEXT)
    assert any("linear_attention layers keep a state" in note for note in model.not_modelled)


def test_dtype_and_length_are_read_from_where_they_are() -> None:
    assert ModelConfig.from_hf(GEMMA3_27B).dtype == "bfloat16"
    assert ModelConfig.from_hf({**LLAMA3_8B, "torch_dtype": None, "dtype": "float16"}).dtype == "float16"
    assert ModelConfig.from_hf(LLAMA3_8B).max_model_len == 8192
    assert ModelConfig.from_hf(GEMMA2_9B).max_model_len is None


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "awq"}, "auto"),
    ],
)
def test_a_checkpoint_may_ask_for_an_8_bit_cache(scheme: Json, expected: str) -> None:
    assert ModelConfig.from_hf({**LLAMA3_8B, "quantization_config": scheme}).kv_dtype == expected


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["quadratic_attention"] * 32}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({"kv_lora_rank": -1}, "kv_lora_rank"),
    ],
)
def test_what_is_wrong_is_named(changes: Json, field: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelConfig.from_hf({**LLAMA3_8B, **changes})
    assert caught.value.field == field and caught.value.fix


def test_a_list_is_no_config() -> None:
    with pytest.raises(InputError, match="JSON object"):
        ModelConfig.from_hf([])  # type: ignore[arg-type]
