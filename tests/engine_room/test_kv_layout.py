"""Groups, bytes per block and blocks per request as vLLM 0.32 has them. Figures by hand from its functions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from kv_configs import DEEPSEEK_V3, GEMMA3_27B, GPT_OSS_20B, LLAMA3_8B, LLAMA4_SCOUT, MISTRAL_7B_V01, OPT_125M, Json

from trimtab.engine.kv import KVShape, Layout, LayoutOptions, Speculative, lay_out
from trimtab.engine.kv.layout import kv_heads_per_gpu, pipeline_stages
from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError


def layout(config: Json, **options: object) -> Layout:
    return lay_out(ModelConfig.from_hf(config), LayoutOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (LLAMA3_8B, {}, 2_097_152),
        (LLAMA3_8B, {"kv_cache_dtype": "fp8"}, 1_048_576),
        (LLAMA3_8B, {"kv_cache_dtype": "int8_per_token_head"}, 32 * 16 * 8 * (2 * 128 + 8)),
        (LLAMA3_8B, {"kv_cache_dtype": "int4_per_token_head"}, 32 * 16 * 8 * (2 * 64 + 8)),
        (LLAMA3_8B, {"kv_cache_dtype": "nvfp4"}, 32 * 16 * 2 * 8 * (64 + 8)),
        (LLAMA3_8B, {"dtype": "float32"}, 4_194_304),
        (LLAMA3_8B, {"block_size": 128}, 8 * 2_097_152),
        (LLAMA3_8B, {"tensor_parallel": 4}, 524_288),
        (LLAMA3_8B, {"tensor_parallel": 16}, 262_144),
        (OPT_125M, {}, 12 * 16 * 2 * 12 * 64 * 2),
        (DEEPSEEK_V3, {"block_size": 64}, 61 * 64 * 576 * 2),
        (DEEPSEEK_V3, {"block_size": 64, "tensor_parallel": 8}, 61 * 64 * 576 * 2),
        (DEEPSEEK_V3, {"block_size": 64, "kv_cache_dtype": "fp8_ds_mla"}, 61 * 64 * 656),
        (GEMMA3_27B, {}, 10 * 16 * 2 * 16 * 128 * 2),
        (GPT_OSS_20B, {}, 12 * 16 * 2 * 8 * 64 * 2),
    ],
)
def test_bytes_per_block(config: Json, options: Json, expected: int) -> None:
    assert layout(config, **options).bytes_per_block == expected


def test_a_checkpoint_in_32_bits_is_served_in_16() -> None:
    assert layout({**LLAMA3_8B, "torch_dtype": "float32"}).bytes_per_block == 2_097_152


def test_heads_are_copied_when_gpus_are_more() -> None:
    assert layout(LLAMA3_8B, tensor_parallel=8).bytes_per_block_all_gpus == 2_097_152
    assert layout(LLAMA3_8B, tensor_parallel=16).bytes_per_block_all_gpus == 2 * 2_097_152
    assert layout(DEEPSEEK_V3, tensor_parallel=8).bytes_per_block_all_gpus == 8 * 61 * 16 * 576 * 2


@pytest.mark.parametrize(("heads", "gpus"), [(8, 3), (8, 12), (1, 1)])
def test_heads_that_do_not_split_are_refused(heads: int, gpus: int) -> None:
    if gpus == 1:
        assert kv_heads_per_gpu(heads, gpus) == 1
        return
    with pytest.raises(InputError, match="tensor_parallel"):
        kv_heads_per_gpu(heads, gpus)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(32, 1, (32,)), (32, 4, (8,) * 4), (61, 4, (15, 15, 16, 15)), (32, 3, (11, 11, 10)), (30, 4, (7, 8, 8, 7))],
)
def test_stages_as_vllm_splits_them(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert pipeline_stages(layers, stages) == expected


def test_the_fullest_stage_decides() -> None:
    split = layout(LLAMA3_8B, pipeline_parallel=3)
    assert split.bytes_per_block == 11 * 65_536 and split.bytes_per_block_all_gpus == 2_097_152


def test_too_many_stages_are_refused() -> None:
    with pytest.raises(InputError, match="33 stages for 32 layers"):
        layout(LLAMA3_8B, pipeline_parallel=33)


# --- windows ----------------------------------------------------------------------------------------------------------
def test_groups_have_the_size_of_the_rarer_kind() -> None:
    groups = layout(GEMMA3_27B).groups
    assert [(g.attention, g.layers) for g in groups] == [("sliding", 9)] * 4 + [("sliding", 8)] * 2 + [("full", 10)]


def test_kinds_of_nearly_equal_number_are_padded() -> None:
    """12 sliding and 13 full layers make 2 groups, not 3: vLLM's own example."""
    config = {**GPT_OSS_20B, "num_hidden_layers": 25, "layer_types": [*GPT_OSS_20B["layer_types"], "full_attention"]}
    assert [g.layers for g in layout(config).groups] == [12, 13]


def test_a_window_bounds_what_a_request_holds() -> None:
    """Window 128 in blocks of 16: at most 9 of 128 blocks; the full group holds all."""
    held = layout(GPT_OSS_20B)
    assert held.blocks(16) == 2
    assert held.blocks(2048) == 128 + 9
    assert held.blocks(4096) == 256 + 9


def test_full_length_counts_tokens_in_work() -> None:
    held = layout(GPT_OSS_20B, max_num_batched_tokens=2048)
    assert held.blocks_of_full_length(131_072) == 8192 + -(-(127 + 2 * 2048) // 16) + 1
    assert held.blocks_of_full_length(1024) == 64 + 65


def test_chunks_hold_one_chunk() -> None:
    held = layout(LLAMA4_SCOUT)
    assert [g.attention for g in held.groups] == ["chunked", "chunked", "chunked", "full"]
    assert held.blocks(100_000) == 6250 + 3 * 513


def test_one_kind_is_one_group() -> None:
    held = layout(MISTRAL_7B_V01)
    assert len(held.groups) == 1 and held.bytes_per_block == 2_097_152
    assert held.blocks(32_768) == 257


def test_without_the_hybrid_manager_windows_are_kept_whole() -> None:
    held = layout(GPT_OSS_20B, hybrid_manager=False)
    assert [g.layers for g in held.groups] == [24] and held.blocks(2048) == 128


# --- speculative decoding ---------------------------------------------------------------------------------------------
DRAFT = ModelConfig.from_hf({
    "model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "hidden_size": 2048,
})  # fmt: skip


def test_a_draft_model_adds_its_layers_and_its_slots() -> None:
    held = layout(LLAMA3_8B, speculative=Speculative("draft_model", 5, DRAFT))
    assert held.bytes_per_block == 2_097_152 + 16 * 16 * 2 * 8 * 64 * 2
    assert held.blocks(512) == 33 and held.blocks(0) == 0


def test_the_draft_is_on_the_last_stage() -> None:
    held = layout(LLAMA3_8B, pipeline_parallel=2, speculative=Speculative("draft_model", 5, DRAFT))
    assert held.bytes_per_block == 1_048_576 + 524_288


def test_mtp_adds_the_models_own_layers() -> None:
    held = layout(DEEPSEEK_V3, speculative=Speculative("mtp", 1))
    assert held.bytes_per_block == 62 * 16 * 576 * 2 and held.lookahead_tokens == 1


def test_ngram_costs_nothing() -> None:
    assert layout(LLAMA3_8B, speculative=Speculative("ngram", 4)) == layout(LLAMA3_8B)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Speculative("medusa", 3),
        lambda: Speculative("eagle", 3),
        lambda: Speculative("ngram", 0),
        lambda: layout(LLAMA3_8B, speculative=Speculative("mtp", 1)),
        lambda: layout(GPT_OSS_20B, speculative=Speculative("draft_model", 3, ModelConfig.uniform(4, 2, 64))),
        lambda: layout(LLAMA3_8B, kv_cache_dtype="turboquant_k8v4"),
        lambda: layout(LLAMA3_8B, kv_cache_dtype="fp8_ds_mla"),
        lambda: layout(DEEPSEEK_V3, kv_cache_dtype="nvfp4"),
        lambda: layout(LLAMA3_8B, dtype="float8"),
        lambda: layout(LLAMA3_8B, block_size=0),
        lambda: ModelConfig.uniform(0, 1, 1),
        lambda: ModelConfig.uniform(1, 1, 1, 0),
        lambda: layout(LLAMA3_8B).blocks_of_full_length(0),
    ],
)
def test_what_is_not_modelled_or_wrong_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InputError) as caught:
        wrong()
    assert caught.value.field and caught.value.fix


# --- properties -------------------------------------------------------------------------------------------------------
@given(st.integers(1, 80), st.integers(1, 16), st.sampled_from([64, 128, 256]), st.sampled_from([1, 8, 16, 128]))
def test_equal_layers_agree_with_the_short_form(layers: int, heads: int, size: int, block: int) -> None:
    held = lay_out(ModelConfig.uniform(layers, heads, size), LayoutOptions(block_size=block))
    assert held.bytes_per_block == KVShape(layers, heads, size, 2, block).bytes_per_block


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 500), st.integers(1, 5000), st.integers(1, 64))
def test_windows_never_hold_more_than_full_attention(full: int, sliding: int, window: int, tokens: int, b: int) -> None:
    kinds = ["full_attention"] * full + ["sliding_attention"] * sliding
    config = {**LLAMA3_8B, "num_hidden_layers": full + sliding, "layer_types": kinds, "sliding_window": window}
    held = layout(config, block_size=b)
    assert sum(g.layers for g in held.groups) == full + sliding
    assert held.blocks(tokens) <= len(held.groups) * -(-tokens // b)
    assert held.blocks(tokens) <= held.blocks(tokens + 1)
