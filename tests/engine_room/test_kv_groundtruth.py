"""Real runs on GPUs by others (TRIMTAB_DATA, not in the tree): the derived bound lies above the real block count."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from kv_configs import LLAMA3_8B, QWEN3_32B

from trimtab.engine.kv import LayoutOptions, Memory, derive, lay_out
from trimtab.engine.model_config import ModelConfig

RUNS = Path(os.environ.get("TRIMTAB_DATA") or "nowhere") / "groundtruth"
#: Llama 3.1 differs from 3 in what does not touch the cache
MODELS = {"meta-llama/Llama-3.1-8B": LLAMA3_8B, "Qwen/Qwen3-32B": QWEN3_32B}
#: metadata.total_size of the model's safetensors index
WEIGHTS_BYTES = {"meta-llama/Llama-3.1-8B": 16_060_522_496}
pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="TRIMTAB_DATA has no groundtruth folder")


def runs() -> list[Any]:
    found = [json.loads(path.read_text()) for path in sorted(RUNS.glob("*/meta.json"))]
    return [run for run in found if run["model"] in MODELS and run.get("kv_cache", {}).get("num_gpu_blocks")]


def test_a_run_with_its_block_count_is_there() -> None:
    assert runs()


def test_the_bound_is_above_the_real_count_by_what_the_engine_needs_to_run() -> None:
    """Activations, graphs and the CUDA context of an 8B model at 2,048 batched tokens: over 0.5 and under 3 GiB."""
    for run in runs():
        kwargs, real = run["engine_kwargs"], run["kv_cache"]
        options = LayoutOptions(
            block_size=real["block_size"],
            kv_cache_dtype=kwargs["kv_cache_dtype"],
            dtype=kwargs["dtype"],
            tensor_parallel=kwargs["tensor_parallel_size"],
            max_num_batched_tokens=kwargs["max_num_batched_tokens"],
        )
        layout = lay_out(ModelConfig.from_hf(MODELS[run["model"]]), options)
        memory = Memory(
            gpu_memory_bytes=run["hardware"]["device_total_memory_bytes"],
            gpu_memory_utilization=real["gpu_memory_utilization"],
            weights_bytes=WEIGHTS_BYTES[run["model"]],
        )
        derived = derive(layout, memory, options.tensor_parallel)
        assert derived is not None and not derived.exact
        gap_bytes = (derived.blocks - real["num_gpu_blocks"]) * layout.bytes_per_block
        print(f"{run['hardware']['device_name']}: real {real['num_gpu_blocks']}, at most {derived.blocks} blocks, "
              f"{derived.blocks / real['num_gpu_blocks'] - 1:+.1%}, {gap_bytes / 2**20:,.0f} MiB")  # fmt: skip
        assert 0.5 * 2**30 < gap_bytes < 3 * 2**30


def test_tokens_of_the_pool_are_the_engines() -> None:
    for run in runs():
        layout = lay_out(ModelConfig.from_hf(MODELS[run["model"]]), LayoutOptions(run["kv_cache"]["block_size"]))
        length = run["engine_kwargs"]["max_model_len"]
        assert layout.capacity_tokens(run["kv_cache"]["num_gpu_blocks"], length) == run["kv_cache"]["num_kv_tokens"]
