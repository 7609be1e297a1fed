"""The parts of public config.json files that decide the KV cache."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]
LLAMA3_8B: Final[Json] = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
OPT_125M: Final[Json] = {
    "model_type": "opt", "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768,
    "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip
MISTRAL_7B_V01: Final[Json] = {
    "model_type": "mistral", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "max_position_embeddings": 32768, "sliding_window": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN2_7B: Final[Json] = {
    "model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_size": 3584, "max_position_embeddings": 32768, "sliding_window": 131072, "use_sliding_window": False,
    "max_window_layers": 28, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_32B: Final[Json] = {
    "model_type": "qwen3", "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 40960, "sliding_window": None,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA2_9B: Final[Json] = {
    "model_type": "gemma2", "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "hidden_size": 3584, "sliding_window": 4096, "torch_dtype": "float32",
}  # fmt: skip
GEMMA3_27B: Final[Json] = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"num_hidden_layers": 27},
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "hidden_size": 5376, "sliding_window": 1024,
    },
}  # fmt: skip
GPT_OSS_20B: Final[Json] = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_size": 2880, "sliding_window": 128, "max_position_embeddings": 131072,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
DEEPSEEK_V3: Final[Json] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "hidden_size": 7168,
    "num_nextn_predict_layers": 1, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA4_SCOUT: Final[Json] = {
    "model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_size": 5120, "attention_chunk_size": 8192, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
QWEN3_NEXT: Final[Json] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12, "torch_dtype": "bfloat16",
}  # fmt: skip
FALCON_7B: Final[Json] = {
    "model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544,
    "multi_query": True, "new_decoder_architecture": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2: Final[Json] = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
