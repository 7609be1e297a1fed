"""num_gpu_blocks from flags and memory, the engine's own figure over all, and reserved against used."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from kv_configs import GPT_OSS_20B, LLAMA3_8B, QWEN3_NEXT, Json

from trimtab.engine.kv import (
    Layout,
    LayoutOptions,
    Memory,
    Origin,
    Tokens,
    count_blocks,
    default_block_size,
    derive,
    fleet,
    lay_out,
    seed_max_num_seqs,
    usage,
)
from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError

GIB, MIB = 2**30, 2**20


def layout(config: Json = LLAMA3_8B, **options: object) -> Layout:
    return lay_out(ModelConfig.from_hf(config), LayoutOptions(**options))  # type: ignore[arg-type]


def test_the_engines_own_figure_wins_over_everything() -> None:
    memory = Memory(num_gpu_blocks=2588, num_gpu_blocks_override=7, kv_cache_memory_bytes=GIB, gpu_memory_bytes=GIB)
    count = count_blocks(layout(), memory)
    assert count is not None and (count.blocks, count.origin, count.exact) == (2588, Origin.ENGINE, True)


@pytest.mark.parametrize(
    ("memory", "blocks", "origin"),
    [
        (Memory(num_gpu_blocks_override=7, kv_cache_memory_bytes=GIB), 7, Origin.OVERRIDE),
        (Memory(kv_cache_memory_bytes=GIB + 2 * MIB - 1), 512, Origin.KV_MEMORY),
        (Memory(cpu_kvcache_space_gib=4, kv_cache_memory_bytes=GIB), 2048, Origin.KV_MEMORY),
    ],
)
def test_flags_give_it_exactly(memory: Memory, blocks: int, origin: Origin) -> None:
    count = derive(layout(), memory)
    assert count is not None and (count.blocks, count.origin, count.exact) == (blocks, origin, True)


def test_gpu_memory_gives_an_upper_bound() -> None:
    memory = Memory(gpu_memory_bytes=80 * GIB, gpu_memory_utilization=0.9, weights_bytes=16 * GIB)
    count = derive(layout(), memory)
    assert count is not None and not count.exact
    assert count.blocks == (72 - 16) * 512 and "activations and graphs not taken off" in count.why
    less = derive(layout(), replace(memory, non_kv_bytes=2 * GIB))
    assert less is not None and less.blocks == 54 * 512 and "not taken off" not in less.why


def test_weights_are_spread_over_the_gpus() -> None:
    memory = Memory(gpu_memory_bytes=40 * GIB, gpu_memory_utilization=1.0, weights_bytes=16 * GIB)
    count = derive(layout(tensor_parallel=4), memory, gpus=4)
    assert count is not None and count.blocks == 36 * 2048


def test_nothing_known_is_none() -> None:
    assert count_blocks(layout(), Memory()) is None
    assert derive(layout(), Memory(num_gpu_blocks=5)) is None


def test_nothing_is_derived_where_something_is_not_modelled() -> None:
    held = layout(QWEN3_NEXT)
    assert derive(held, Memory(kv_cache_memory_bytes=GIB)) is None
    assert count_blocks(held, Memory(num_gpu_blocks=9)) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Memory(num_gpu_blocks=0),
        lambda: Memory(gpu_memory_utilization=90),
        lambda: derive(layout(), Memory(gpu_memory_bytes=16 * GIB, weights_bytes=16 * GIB)),
        lambda: default_block_size("tpu", False),
        lambda: Tokens(-1, 1, 1),
        lambda: Tokens(0, 10, 11),
        lambda: fleet(usage(layout(), Tokens(0, 1, 1)), 0, 1),
        lambda: seed_max_num_seqs(100, 0),
        lambda: seed_max_num_seqs(100, float("nan")),
    ],
)
def test_wrong_figures_are_named(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InputError) as caught:
        wrong()
    assert caught.value.field and caught.value.fix


def test_block_sizes_where_none_is_given() -> None:
    assert default_block_size("gpu", False) == (16, None)
    assert default_block_size("cpu", False) == (128, None)
    assert default_block_size("gpu", True)[1] and default_block_size("cpu", True)[0] == 16


def test_capacity_is_what_vllm_prints() -> None:
    """Real run on an RTX 4090: 2,588 blocks of 16 tokens, 41,408 tokens; real run on a CPU: 160 x 32, 2.5 requests."""
    assert layout().capacity_tokens(2588, 32_768) == 41_408
    small = layout(block_size=32)
    assert (small.capacity_tokens(160, 2048), small.max_concurrency(160, 2048)) == (5120, 2.5)


def test_reserved_against_used_are_the_fields_figures() -> None:
    one = usage(layout(), Tokens(0, 512, 80))
    assert (one.reserved.blocks, one.used.blocks, one.wasted.blocks) == (32, 5, 27)
    assert (one.reserved.bytes, one.used.bytes, one.wasted.bytes) == (64 * MIB, 10 * MIB, 54 * MIB)
    assert usage(layout(), Tokens(0, 128, 0)).reserved.blocks == 8


def test_a_fleet_is_the_sum() -> None:
    one = usage(layout(), Tokens(100, 512, 80))
    all_ = fleet(one, running=48, replicas=4)
    assert all_.wasted.bytes == 192 * one.wasted.bytes and all_.reserved.blocks == 192 * one.reserved.blocks


def test_bytes_are_of_all_gpus() -> None:
    assert usage(layout(tensor_parallel=4), Tokens(0, 512, 80)) == usage(layout(), Tokens(0, 512, 80))


def test_windows_bound_the_waste() -> None:
    """Window 128: the sliding half reserves 9 blocks, whatever max_new_tokens is."""
    one = usage(layout(GPT_OSS_20B), Tokens(0, 4096, 256))
    assert one.reserved.blocks == 256 + 9 and one.used.blocks == 16 + 9


def test_the_first_number_to_try_is_the_capacity_over_the_mean_length() -> None:
    assert seed_max_num_seqs(41_408, 800) == 51
    assert seed_max_num_seqs(100, 800) == 1
