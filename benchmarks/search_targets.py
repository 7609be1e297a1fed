"""Targets to tune in virtual time: model x GPU (roofline) x load, each with what is badly set. Made up, in the shape of
published traces.

Lengths: lognormal, with median and spread of the logarithm as in the Azure 2023 traces (conversation: 1,020 and 129
tokens; code: 1,469 and 13) and in Mooncake's conversations (6,909 and 350). Step times are what bytes and operations
say (`trimtab.simulate.roofline`), KV blocks what memory is left. `TUNED` were in view while the search was made,
`HELD_OUT` were not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from groundtruth import MODELS as GROUND_TRUTH
from scipy.stats import norm

from trimtab.engine.kv.layout import LayoutOptions, lay_out
from trimtab.engine.model_config import ModelConfig
from trimtab.engine.settings import Configuration
from trimtab.search.space import Space
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.fit import times_of
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.profile import LoadModel, Profile, SharedPrefix
from trimtab.simulate.roofline import gpu_named, roofline, weights_of
from trimtab.simulate.summary import Limits

#: step times of the live target against the model's: deviation of each coefficient's log; the profile knows it
WORLD_ERROR: Final = 0.15
COEFFICIENTS: Final = ("fixed", "per_prefill_token", "per_pair", "per_decode_seq", "per_kv_token", "per_prefill_step")
SPACE: Final = Space({"max_num_seqs": (8, 512), "max_num_batched_tokens": (1024, 8192)})
#: GB of memory, from the vendors' data sheets
MEMORY_GB: Final = {
    "T4": 16, "L4": 24, "A10G": 24, "RTX 4090": 24, "A100 SXM4 40GB": 40, "L40S": 48, "A100": 80, "H100": 80,
    "MI300X": 192,
}  # fmt: skip
#: share of memory that vLLM takes by default (gpu_memory_utilization), and GB of it for activations and CUDA graphs
UTILIZATION, ACTIVATIONS_GB = 0.92, 2.0
#: what step times and KV size need of the models' public config.json
MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Llama-3.1-8B": GROUND_TRUTH["meta-llama/Llama-3.1-8B"],
    "Qwen3-32B": GROUND_TRUTH["Qwen/Qwen3-32B"],
    "Qwen3-30B-A3B": GROUND_TRUTH["Qwen/Qwen3-30B-A3B-Instruct-2507"],
    "Qwen2.5-3B": {"num_hidden_layers": 36, "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
                   "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151936},
    "Qwen2.5-14B": {"num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 13824,
                    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 152064},
    "Llama-3.1-70B": {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
                      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256},
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """`limits`: the users' SLO. `crash_above`: it does not start where max_num_batched_tokens x (max_num_seqs + 128)
    is above; the model does not know. `later`: the load after the drift.
    """

    name: str
    profile: Profile
    limits: Limits
    crash_above: float = float("inf")
    later: LoadModel | None = None
    space: Space = field(default=SPACE, repr=False)  # truths are kept by the target's text, which came before it

    @property
    def baseline(self) -> Configuration:
        engine = self.profile.engine
        return Configuration.of(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            enable_prefix_caching=engine.enable_prefix_caching,
        )

    def crashes(self, configuration: Configuration) -> bool:
        """Activations grow with the batch, sampling buffers with the sequences: both at once run out of memory."""
        seqs, tokens = configuration.integer("max_num_seqs") or 0, configuration.integer("max_num_batched_tokens") or 0
        return tokens * (seqs + _SEQUENCES_FREE) > self.crash_above

    def drifted(self) -> Target:
        """With the later load; itself where nothing drifts."""
        if self.later is None:
            return self
        return replace(self, profile=self.profile.model_copy(update={"workload": self.later}), later=None)


_SEQUENCES_FREE: Final = 128


def spread(median: float, sigma: float) -> Lengths:
    """A lognormal cut at its 1st and 99th percentile."""
    shares = np.linspace(0.0, 1.0, 33)
    tokens = np.maximum(1.0, median * np.exp(sigma * norm.ppf(np.clip(shares, 0.01, 0.99))))
    return Lengths(shares=tuple(shares.tolist()), tokens=tuple(tokens.tolist()))


CHAT: Final = (spread(1020, 0.9), spread(129, 0.86))
CODE: Final = (spread(1469, 1.0), spread(13, 0.85))
LONG: Final = (spread(6909, 0.9), spread(350, 0.8))
SHORT: Final = (spread(200, 0.5), spread(60, 0.5))
THINK: Final = (spread(250, 0.6), spread(1500, 0.6))
RAG: Final = (spread(3000, 0.4), spread(120, 0.5))


def engine_of(model: str, gpu: str, tensor_parallel: int, max_model_len: int, **settings: Any) -> EngineConfig:
    """With as many blocks as memory allows, unless `num_gpu_blocks` is said."""
    config = MODELS[model]
    layout = lay_out(ModelConfig.from_hf(config), LayoutOptions(block_size=16, tensor_parallel=tensor_parallel))
    weights = weights_of(config)
    bytes_ = 2 * (weights.dense + weights.experts) / tensor_parallel
    left = UTILIZATION * MEMORY_GB[gpu] * 1e9 - ACTIVATIONS_GB * 1e9 - bytes_
    settings.setdefault("num_gpu_blocks", max(2, int(left / layout.bytes_per_block)))
    return EngineConfig(max_model_len=max_model_len, **settings)


def profile_of(
    model: str, gpu: str, load: tuple[float, tuple[Lengths, Lengths]], engine: Mapping[str, Any], **more: Any
) -> Profile:
    """`load`: requests/s, prompt and output lengths. `engine`: settings, `tensor_parallel` among them. `more`: of the
    load."""
    settings = dict(engine)
    width = settings.pop("tensor_parallel", 1)
    times = times_of(roofline(MODELS[model], gpu_named(gpu), tensor_parallel=width).median)
    known = {n: WORLD_ERROR * getattr(times, n) for n in COEFFICIENTS}
    rate, (prompt, output) = load
    arrives = LoadModel(requests_per_second=rate, prompt_tokens=prompt, output_tokens=output, **more)
    length = settings.pop("max_model_len", 8192)
    made = engine_of(model, gpu, width, length, **settings)
    return Profile(engine=made, times=times, times_stderr=known, workload=arrives, source=f"{model} on {gpu}")


def with_errors(profile: Profile, seed: int, size: float = WORLD_ERROR) -> Profile:
    """A world that the model does not quite know: each coefficient off by a lognormal factor of deviation `size`."""
    rng = np.random.default_rng([seed, 5, *profile.source.encode()])
    factors = np.exp(rng.normal(0.0, size, len(COEFFICIENTS)))
    moved = {n: float(getattr(profile.times, n) * f) for n, f in zip(COEFFICIENTS, factors, strict=True)}
    return profile.model_copy(update={"times": replace(profile.times, **moved)})


def _set(seqs: int, tokens: int, **more: Any) -> dict[str, Any]:
    return {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, **more}


def tuned() -> list[Target]:
    """In view while the search was made."""
    rag = SharedPrefix(share=0.9, tokens=2400, groups=8)
    half = SharedPrefix(share=0.5, tokens=1500, groups=40)
    no_cache = {"enable_prefix_caching": False}
    two, four = {"tensor_parallel": 2}, {"tensor_parallel": 4, "max_model_len": 65536}
    thinking = profile_of("Qwen2.5-14B", "A100", (0.8, THINK), _set(16, 2048)).workload
    return [
        Target("slots: too few sequences", profile_of("Llama-3.1-8B", "H100", (7.0, CHAT), _set(24, 2048)),
               Limits(2.0, 0.05), 8192 * 384),
        Target("saturated: slow text beyond 64", profile_of("Llama-3.1-8B", "H100", (16.0, CHAT), _set(24, 2048)),
               Limits(tpot_seconds=0.03)),
        Target("spiral: starved of KV", profile_of("Llama-3.1-8B", "RTX 4090", (0.8, THINK), _set(256, 2048)),
               Limits(tpot_seconds=0.045)),
        Target("cliff: small steps below it", profile_of("Llama-3.1-8B", "A100 SXM4 40GB", (4.8, CODE), _set(96, 1024)),
               Limits(1.0, 0.1), 4096 * 384),
        Target("flat: idle", profile_of("Llama-3.1-8B", "A100", (1.0, CHAT), _set(64, 2048)), Limits(2.0, 0.05)),
        Target("flat: beyond capacity", profile_of("Llama-3.1-8B", "A10G", (2.2, CHAT), _set(64, 4096)), Limits()),
        Target("flat: busy, well set", profile_of("Qwen2.5-14B", "A100", (1.7, CHAT), _set(96, 4096)),
               Limits(3.0, 0.1)),
        Target("drift: chat, then thinking", profile_of("Qwen2.5-14B", "A100", (4.0, CHAT), _set(8, 2048)),
               Limits(tpot_seconds=0.05), later=thinking),
        Target("prefix: cache off", profile_of("Qwen3-30B-A3B", "A100", (2.2, RAG), _set(48, 2048, **no_cache),
                                               shared_prefix=rag), Limits(3.0, 0.15)),
        Target("long prompts: too many at once", profile_of("Llama-3.1-70B", "H100", (1.2, LONG), _set(
            24, 8192, **four)), Limits(tpot_seconds=0.06)),
        Target("thinking: slow text beyond 96", profile_of("Qwen3-32B", "H100", (2.5, THINK), _set(256, 2048, **two)),
               Limits(tpot_seconds=0.03), 8192 * 256),
        Target("two optima: clients that leave", profile_of("Qwen2.5-3B", "L4", (40.0, SHORT), _set(24, 2048),
                                                            cancel_share=0.3, patience_seconds=8.0),
               Limits(tpot_seconds=0.08)),
        Target("two optima: a valley between", profile_of("Llama-3.1-8B", "H100", (16.0, CHAT), _set(32, 1024)),
               Limits(tpot_seconds=0.05)),
        Target("large GPU, its defaults", profile_of("Llama-3.1-70B", "MI300X", (6.5, CHAT), _set(512, 8192, **two)),
               Limits(tpot_seconds=0.1)),
        Target("bursts: small steps, a cliff", profile_of("Qwen2.5-3B", "T4", (1.6, CHAT), _set(32, 1024),
                                                          arrivals="burst", burst_variation=4.0),
               Limits(2.0, 0.1), 4096 * 256),
        Target("cache, KV and steps at once", profile_of("Llama-3.1-8B", "L40S", (1.3, RAG), _set(16, 1024, **no_cache),
                                                         shared_prefix=half), Limits(5.0, 0.1), 6144 * 384),
    ]  # fmt: skip


def held_out() -> list[Target]:
    """Not shown while the search was made: the figures that count."""
    rag = SharedPrefix(share=0.8, tokens=2000, groups=12)
    no_cache = {"enable_prefix_caching": False}
    two, four = {"tensor_parallel": 2}, {"tensor_parallel": 4}
    later = profile_of("Llama-3.1-8B", "A100", (7.0, CHAT), _set(32, 1024)).workload
    return [
        Target("held out: saturated", profile_of("Qwen2.5-3B", "T4", (4.0, CHAT), _set(12, 1024)),
               Limits(tpot_seconds=0.1), 4096 * 384),
        Target("held out: KV", profile_of("Qwen2.5-14B", "A100 SXM4 40GB", (2.8, CHAT), _set(256, 2048)),
               Limits(tpot_seconds=0.05)),
        Target("held out: cliff", profile_of("Llama-3.1-8B", "L40S", (4.0, CODE), _set(128, 1024)), Limits(1.0, 0.15),
               6144 * 256),
        Target("held out: idle", profile_of("Qwen3-32B", "H100", (0.5, CHAT), _set(64, 2048, **two)),
               Limits(2.0, 0.05)),
        Target("held out: cache off", profile_of("Llama-3.1-70B", "H100", (2.2, RAG), _set(
            64, 2048, **four, **no_cache), shared_prefix=rag), Limits(3.0, 0.1)),
        Target("held out: thinking", profile_of("Qwen2.5-3B", "A10G", (1.4, THINK), _set(24, 4096)),
               Limits(8.0, 0.06)),
        Target("held out: drift", profile_of("Llama-3.1-8B", "A100", (5.5, CODE), _set(24, 1024)), Limits(60.0, 0.08),
               later=later),
        Target("held out: beyond capacity", profile_of("Qwen2.5-14B", "A100 SXM4 40GB", (4.0, CHAT), _set(48, 8192)),
               Limits()),
    ]  # fmt: skip
