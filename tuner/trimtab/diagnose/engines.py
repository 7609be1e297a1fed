"""`Engine`: which server it is, how it admits, how many slots it has, and what its levers are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.engine.admission import Model
from trimtab.engine.settings import Configuration

#: lever -> its flag by engine. Sources: each server's own reference of arguments
LEVERS: Final[Mapping[str, Mapping[str, str]]] = {
    "slots": {"vllm": "max_num_seqs", "sglang": "max_running_requests", "tgi": "max_batch_size",
              "tensorrt-llm": "max_batch_size"},
    "step_budget": {"vllm": "max_num_batched_tokens", "sglang": "chunked_prefill_size",
                    "tgi": "max_batch_prefill_tokens", "tensorrt-llm": "max_num_tokens"},
    "memory": {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static", "tgi": "cuda_memory_fraction",
               "tensorrt-llm": "kv_cache_free_gpu_mem_fraction"},
    "prefix": {"vllm": "enable_prefix_caching", "sglang": "disable_radix_cache", "tensorrt-llm": "enable_block_reuse"},
    "longest": {"vllm": "max_model_len", "sglang": "context_length", "tgi": "max_total_tokens",
                "tensorrt-llm": "max_seq_len"},
    "pool": {"sglang": "max_total_tokens", "tgi": "max_batch_total_tokens"},
    "watermark": {"vllm": "watermark"},
    "ranks": {"vllm": "data_parallel_size", "sglang": "dp_size"},
    "long_prefill": {"vllm": "long_prefill_token_threshold"},
}  # fmt: skip
#: a part of the name -> (engine, admission). The first that is in the name counts
_NAMES: Final = (
    ("vllm", "vllm", Model.ON_DEMAND), ("sglang", "sglang", Model.FRACTION), ("tgi", "tgi", Model.RESERVE),
    ("text-generation", "tgi", Model.RESERVE), ("text generation", "tgi", Model.RESERVE),
    ("tensorrt", "tensorrt-llm", Model.RESERVE), ("trt", "tensorrt-llm", Model.RESERVE),
    ("orca", "orca", Model.RESERVE),
)  # fmt: skip
_SHOWN: Final = {"vllm": "vLLM", "sglang": "SGLang", "tgi": "TGI", "tensorrt-llm": "TensorRT-LLM", "orca": "Orca"}


@dataclass(frozen=True)
class Engine:
    """kind: a key of LEVERS' rows, or the name as given. slots_stated: from the arguments, not a default.

    flags: name with underscores -> text, "" for a switch. settings: vLLM's, read and checked.
    """

    kind: str
    admission: Model
    version: str | None = None
    settings: Configuration = field(default_factory=Configuration.of)
    flags: Mapping[str, str] = field(default_factory=dict)
    slots: float | None = None
    slots_stated: bool = False
    hardware: str = ""

    @property
    def shown(self) -> str:
        return _SHOWN.get(self.kind, self.kind)

    @property
    def reserves(self) -> bool:
        return self.admission is Model.RESERVE

    @property
    def ranks(self) -> float:
        """Data-parallel engines behind one server; max_num_seqs holds for each."""
        return self.number("ranks") or 1.0

    def lever(self, name: str) -> tuple[str, ...]:
        """The flag's name on this engine; empty where it has none."""
        found = LEVERS[name].get(self.kind)
        return (found,) if found else ()

    def levers(self, *names: str) -> tuple[str, ...]:
        return tuple(flag for name in names for flag in self.lever(name))

    def number(self, lever: str) -> float | None:
        """The lever's value where the arguments give one."""
        for name in self.lever(lever):
            value = self.settings.get(name) if name in self.settings else self.flags.get(name)
            if value is None or isinstance(value, bool):
                return None
            try:
                return float(value)
            except ValueError:
                return None
        return None

    def has(self, *flags: str) -> bool:
        """Whether one of these flags is given, in whatever spelling."""
        return any(f.replace("-", "_") in self.flags for f in flags)

    @property
    def prefix_caching(self) -> bool | None:
        """What the arguments say; None where they are silent."""
        value = self.settings.get("enable_prefix_caching")
        if value is None and "disable_radix_cache" in self.flags:
            return False
        return bool(value) if value is not None else None


def vllm(configuration: Configuration | None = None) -> Engine:
    """A vLLM of which only settings are known."""
    settings = Configuration.of() if configuration is None else configuration
    slots = slots_of(settings)
    return Engine("vllm", Model.ON_DEMAND, settings=settings, slots=slots, slots_stated=slots is not None)


def slots_of(settings: Configuration) -> float | None:
    limits = [settings.integer(n) for n in ("max_num_seqs", "max_num_active_seqs")]
    return float(min(known)) if (known := [v for v in limits if v is not None]) else None


def kind_of(name: str, options: str) -> tuple[str, Model]:
    """The engine and its admission model by its name; TensorRT-LLM's policy is in its options."""
    low = name.strip().lower()
    for part, kind, model in _NAMES:
        if part in low:
            if kind == "tensorrt-llm" and "max_utilization" in f"{low} {options}".lower().replace("-", "_"):
                return kind, Model.ON_DEMAND
            return kind, model
    return low or "vllm", Model.ON_DEMAND
