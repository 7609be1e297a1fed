"""What a Hugging Face config.json says about the KV cache: what each layer keeps per token.

Hazard: only per-token keys and values are modelled. What a model keeps besides (state-space and linear-attention
state, sparse-attention indexes, cross attention) is listed in `not_modelled`, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from trimtab.errors import InputError

Attention = Literal["full", "sliding", "chunked"]
Json = Mapping[str, Any]

#: config of the language model inside a multimodal one
_NESTED: Final = ("text_config", "language_config", "llm_config", "thinker_config")
#: models have up to some 130 (Llama-3.1 405B: 126)
_MOST_LAYERS: Final = 10_000
#: names of the same figure in different families (vllm/transformers_utils/model_arch_config_convertor.py)
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
_MAX_LEN: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
_DRAFT_LAYERS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
#: families that vLLM runs with latent attention (same file, is_deepseek_mla); others with kv_lora_rank it expands
_LATENT: Final = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2",
    "kimi_linear", "pangu_ultra_moe",
})  # fmt: skip
#: layer i slides unless (i + 1) % n == 0, where layer_types is absent (transformers/models/*/configuration_*.py)
_PATTERN: Final[Mapping[str, int]] = {
    "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4, "gpt_oss": 2, "exaone4": 4,
}  # fmt: skip
_KINDS: Final[Mapping[str, Attention]] = {
    "full_attention": "full", "attention": "full", "sliding_attention": "sliding", "chunked_attention": "chunked",
}  # fmt: skip
#: layers that keep a state of fixed size per request
_STATE: Final = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "gated_deltanet"})
#: a key of the config -> what the model keeps besides keys and values; any value but null, 0 and [] counts
_BESIDES: Final[Mapping[str, str]] = {
    "index_head_dim": "a sparse-attention index beside the latent cache",
    "compress_ratios": "compressed latent caches of several sizes",
    "block_configs": "attention that differs from layer to layer (block_configs)",
    "global_head_dim": "full-attention layers with a head size of their own (global_head_dim)",
    "num_global_key_value_heads": "full-attention layers with KV heads of their own (num_global_key_value_heads)",
    "swa_num_key_value_heads": "sliding layers with KV heads of their own (swa_num_key_value_heads)",
    "swa_head_dim": "sliding layers with a head size of their own (swa_head_dim)",
    "attention_other_setting": "sliding layers with heads of their own (attention_other_setting)",
    "per_layer_config": "attention that differs from layer to layer (per_layer_config)",
    "is_encoder_decoder": "the encoder's cross-attention cache",
    "ssm_cfg": "state-space state",
    "layers_block_type": "state-space layers (layers_block_type)",
    "hybrid_override_pattern": "state-space layers (hybrid_override_pattern)",
    "attn_layer_period": "state-space layers (attn_layer_period)",
    "full_attention_interval": "linear-attention layers (full_attention_interval)",
    "linear_attn_config": "linear-attention layers (linear_attn_config)",
}
_STATE_NOTE: Final = "{} layers keep a state of fixed size per request, and vLLM fits the block size to it"


@dataclass(frozen=True)
class LayerKV:
    """What one layer keeps per token. `latent`: one vector of `head_size` (MLA) instead of keys and values per head.
    `window_tokens`: the sliding window or the chunk; None for full attention.
    """

    attention: Attention
    window_tokens: int | None
    kv_heads: int
    head_size: int
    latent: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """`layers` in order, one entry per model layer; None where a layer keeps nothing per token.

    dtype: of the weights (config's torch_dtype), or "auto". kv_dtype: what the checkpoint asks for, or "auto".
    max_model_len: tokens, None if the config has none. draft_layers: built-in MTP layers.
    not_modelled: what the model keeps besides; if not empty, bytes per block are a lower bound.
    """

    model_type: str
    layers: tuple[LayerKV | None, ...]
    dtype: str = "auto"
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    draft_layers: int = 0
    not_modelled: tuple[str, ...] = ()

    @classmethod
    def from_hf(cls, config: Json) -> ModelConfig:
        """From a parsed config.json. InputError names the field that is missing or wrong."""
        if not isinstance(config, Mapping):
            raise InputError("config.json", "it is no JSON object", "Give the Hugging Face config.json of the model.")
        text = _text_config(config)
        count = _whole(text, _LAYERS)
        if count is None:
            fix = "Give the Hugging Face config.json (not params.json), or --layers, --kv-heads and --head-size."
            raise InputError("num_hidden_layers", "the config has none", fix)
        _few_enough("num_hidden_layers", count)
        base, besides = _base_layer(text)
        layers, more = _layers(text, count, base)
        shared = _whole(text, ("num_kv_shared_layers",)) or 0
        layers = [layer if i < count - shared else None for i, layer in enumerate(layers)]
        return cls(
            model_type=str(text.get("model_type", "unknown")),
            layers=tuple(layers),
            dtype=_dtype(text) or _dtype(config) or "auto",
            kv_dtype=_kv_dtype(config),
            max_model_len=_whole(text, _MAX_LEN),
            draft_layers=_few_enough(_DRAFT_LAYERS[0], _whole(text, _DRAFT_LAYERS) or 0),
            not_modelled=tuple(dict.fromkeys([*besides, *more])),
        )

    @classmethod
    def uniform(cls, layers: int, kv_heads: int, head_size: int, window_tokens: int | None = None) -> ModelConfig:
        """A model with equal layers, from bare figures. InputError for figures below 1."""
        for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_size", head_size)):
            if value < 1:
                raise InputError(name, f"{value} is too small", "Use 1 or more.")
        _few_enough("layers", layers)
        if window_tokens is not None and window_tokens < 1:
            raise InputError("sliding_window", f"{window_tokens} is too small", "Use 1 or more tokens.")
        layer = LayerKV("full" if window_tokens is None else "sliding", window_tokens, kv_heads, head_size)
        return cls(model_type="flags", layers=(layer,) * layers)


def _few_enough(name: str, layers: int) -> int:
    """Before a list of them is made: a slip of the pen must not take all memory."""
    if layers > _MOST_LAYERS:
        fix = f"Correct it; no model has more than {_MOST_LAYERS:,}."
        raise InputError(name, f"{str(layers)[:20]} layers are too many", fix)
    return layers


def _text_config(config: Json) -> Json:
    for name in _NESTED:
        inner = config.get(name)
        if isinstance(inner, Mapping) and (_whole(inner, _LAYERS) is not None or any(n in inner for n in _NESTED)):
            return _text_config(inner)
    return config


def _whole(config: Json, names: Sequence[str]) -> int | None:
    """The first of the names that is set, as a whole number of 0 or more."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(name, f"{value!r} is no whole number of 0 or more", f"Correct {name} in config.json.")
        return value
    return None


def _needed(config: Json, names: Sequence[str]) -> int:
    value = _whole(config, names)
    if not value:
        raise InputError(names[0], "the config has none", f"Add {names[0]} to config.json.")
    return value


def _base_layer(text: Json) -> tuple[LayerKV, list[str]]:
    """What a full-attention layer keeps, and what is not modelled."""
    besides = [note for key, note in _BESIDES.items() if text.get(key)]
    heads = _needed(text, _HEADS)
    model_type = str(text.get("model_type", ""))
    rank = _whole(text, ("kv_lora_rank",))
    if rank and model_type in _LATENT:
        rope = _whole(text, ("qk_rope_head_dim",)) or 0
        return LayerKV("full", None, 1, rank + rope, latent=True), besides
    if rank:
        besides.append(f"latent attention of model type {model_type!r}, which vLLM may expand to one entry per head")
    kv_heads = _whole(text, _KV_HEADS)
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        kv_heads = 1  # Falcon, GPT-BigCode
    size = _whole(text, ("head_dim",)) or _whole(text, ("hidden_size_per_head",))
    return LayerKV("full", None, kv_heads or heads, size or _needed(text, _HIDDEN) // heads), besides


def _layers(text: Json, count: int, base: LayerKV) -> tuple[list[LayerKV | None], list[str]]:
    kinds = _kinds(text, count)
    if len(kinds) < count:
        raise InputError("layer_types", f"{len(kinds)} entries for {count} layers", "Name every layer.")
    layers: list[LayerKV | None] = []
    notes: list[str] = []
    for kind in kinds[:count]:
        if kind in _STATE:
            layers.append(None)
            notes.append(_STATE_NOTE.format(kind))
        elif kind not in _KINDS:
            raise InputError("layer_types", f"{kind!r} is not known", f"Known are {', '.join([*_KINDS, *_STATE])}.")
        else:
            layers.append(_windowed(text, base, _KINDS[kind]))
    return layers, notes


def _windowed(text: Json, base: LayerKV, attention: Attention) -> LayerKV:
    if attention == "full":
        return base
    name = "sliding_window" if attention == "sliding" else "attention_chunk_size"
    window = _whole(text, (name,))
    if not window:
        raise InputError(name, f"layer_types has {attention} layers and {name} is not set", f"Add {name}.")
    return LayerKV(attention, window, base.kv_heads, base.head_size, base.latent)


def _kinds(text: Json, count: int) -> list[str]:
    """One of layer_types' words per layer; families that leave layer_types out have a pattern."""
    given = text.get("layer_types")
    slides = bool(text.get("sliding_window")) and text.get("use_sliding_window") is not False
    if given:
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InputError("layer_types", f"{given!r} is no list", "Give one word per layer.")
        off = {"sliding_attention": "full_attention"} if not slides and text.get("use_sliding_window") is False else {}
        return [off.get(str(kind), str(kind)) for kind in given]
    model_type = str(text.get("model_type", ""))
    if model_type in ("llama4", "llama4_text") and text.get("attention_chunk_size"):
        interval = _whole(text, ("no_rope_layer_interval",)) or 4
        rope = text.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(count)]
        return ["chunked_attention" if r else "full_attention" for r in rope]
    if not slides:
        return ["full_attention"] * count
    pattern = _pattern(text, model_type)
    if pattern is not None:
        return ["sliding_attention" if p else "full_attention" for p in (pattern * count)[:count]]
    if model_type.startswith("qwen2") or model_type.startswith("qwen3"):
        first = _whole(text, ("max_window_layers",))
        first = count if first is None else first
        return ["full_attention" if i < first else "sliding_attention" for i in range(count)]
    return ["sliding_attention"] * count


def _pattern(text: Json, model_type: str) -> list[bool] | None:
    """Which layers of one repetition slide."""
    value = text.get("sliding_window_pattern", text.get("_sliding_window_pattern", _PATTERN.get(model_type)))
    if isinstance(value, str) and value:
        return [letter == "L" for letter in value]
    if isinstance(value, int) and value > 0:
        return [True] * (min(value, _MOST_LAYERS) - 1) + [False]
    return None


def _dtype(config: Json) -> str | None:
    value = config.get("dtype") or config.get("torch_dtype")
    return str(value).removeprefix("torch.") if isinstance(value, str) and value else None


def _kv_dtype(config: Json) -> str:
    """A checkpoint may carry scales for an 8-bit cache, and vLLM then uses it (vllm/utils/torch_utils.py)."""
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        return "auto"
    inner = quantized.get("quantization")
    for place in (inner if isinstance(inner, Mapping) else {}, quantized):
        scheme = place.get("kv_cache_scheme") or place.get("kv_cache_quant_algo")
        if isinstance(scheme, Mapping) and scheme.get("type") == "float" and scheme.get("num_bits") == 8:
            return "fp8"
        if isinstance(scheme, str) and scheme.lower().startswith("fp8"):
            return "fp8"
        if isinstance(scheme, str) and scheme.lower() == "nvfp4":
            return "nvfp4"
    return "auto"
