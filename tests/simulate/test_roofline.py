"""The roofline: parameters counted as the models' cards say, times that follow bandwidth and peak, errors that name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.simulate.fit import FITTED
from trimtab.simulate.roofline import Gpu, gpu_named, gpus, roofline, weights_of

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def seconds(**options: Any) -> dict[str, float]:
    prior = roofline(options.pop("config", LLAMA_8B), options.pop("gpu", gpu_named("H100")), **options)
    return dict(zip(FITTED, prior.median.tolist(), strict=True))


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [(LLAMA_8B, 8.03e9, 6.98e9), (QWEN3_30B_A3B, 30.5e9, 2.7e9), (DEEPSEEK_V3, 671e9, 35.7e9)],
)
def test_parameters_are_counted_as_the_models_cards_say(config: dict[str, Any], total: float, active: float) -> None:
    found = weights_of(config)
    embedding = config["vocab_size"] * config["hidden_size"]
    assert found.dense + found.experts + embedding == pytest.approx(total, rel=0.005)
    assert found.active == pytest.approx(active, rel=0.03)


def test_times_follow_bandwidth_peak_and_tensor_parallelism() -> None:
    one, two = seconds(), seconds(tensor_parallel=2)
    assert 0.005 < one["fixed"] < 0.012
    assert two["per_prefill_token"] == pytest.approx(one["per_prefill_token"] / 2)
    assert two["per_kv_token"] == pytest.approx(one["per_kv_token"] / 2)
    # 131,072 bytes a token
    assert one["per_kv_token"] == pytest.approx(131_072 / 3.35e12 / 0.7)
    slow = seconds(gpu=Gpu("slow", 3.35e11, 9.89e13, 9.89e13))
    assert slow["per_prefill_token"] == pytest.approx(10 * one["per_prefill_token"])
    assert seconds(quantization="fp8")["fixed"] < 0.7 * one["fixed"]


def test_gpus_are_found_in_any_spelling() -> None:
    for spelt in ("NVIDIA H100 80GB HBM3", "h100", "NVIDIA-H100-80GB-HBM3"):
        assert gpu_named(spelt).name == "H100"
    assert gpu_named("NVIDIA H100 PCIe").name == "H100 PCIe"
    assert gpu_named("NVIDIA L40S").name == "L40S"
    assert gpu_named("RTXPRO6000").name == "RTX PRO 6000"
    assert gpu_named("NVIDIA A10G").name == "A10G"
    with pytest.raises(InputError, match=r"--gpu.*Abacus"):
        gpu_named("Abacus")
    # each name finds itself, not one that it contains
    assert all(gpu_named(gpu.name) is gpu for gpu in gpus())


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InputError, match="vocab_size"):
        weights_of({k: v for k, v in LLAMA_8B.items() if k != "vocab_size"})
    assert np.isfinite(roofline(DEEPSEEK_V3, gpu_named("H200"), tensor_parallel=8).median).all()
