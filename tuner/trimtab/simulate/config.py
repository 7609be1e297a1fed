"""The engine's settings and the durations of its steps: what a simulation needs to know besides the load."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Literal

import numpy as np

from trimtab.errors import InputError
from trimtab.simulate.state import F64


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The part of a configuration that decides admission, batching and preemption; vLLM's names and meanings.

    `num_gpu_blocks` is what vLLM reports; one is its null block and never usable. `async_scheduling` is vLLM's default
    since 0.14. `admission`: `on-demand` is vLLM; `reserve` takes blocks for prompt and max_tokens at admission (TGI,
    TensorRT-LLM GUARANTEED_NO_EVICT). Limits on queued requests and tokens: None is no limit.
    `preemption="swap"`: vLLM v0; a victim's blocks go to `cpu_blocks` blocks of the CPU's memory and come back before
    others are admitted; one that finds no room there is recomputed. `abort_delay_seconds`: from a client's leaving to
    the abort's arrival in the engine, which acts at its next step, or before the tokens of the one it computes.
    """

    num_gpu_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    max_model_len: int = 4096
    enable_prefix_caching: bool = True
    max_num_active_seqs: int | None = None
    watermark: float = 0.0
    reserve_full_prompt: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    admission: Literal["on-demand", "reserve"] = "on-demand"
    long_prefill_token_threshold_adaptive: bool = False
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    abort_delay_seconds: float = 0.0
    preemption: Literal["recompute", "swap"] = "recompute"
    cpu_blocks: int = 0

    def __post_init__(self) -> None:
        minimum = {
            "max_num_seqs": 1, "max_num_batched_tokens": 1, "num_gpu_blocks": 2, "block_size": 1, "max_model_len": 2,
            "max_num_active_seqs": 1, "max_num_queued_reqs": 1, "max_num_queued_tokens": 1,
            "long_prefill_token_threshold": 0, "cpu_blocks": 0,
        }  # fmt: skip
        for name, least in minimum.items():
            value = getattr(self, name)
            if value is not None and not least <= value < 2**31:
                raise InputError(name, f"{value} is out of range", f"Use at least {least}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            problem = f"{self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}"
            raise InputError("max_num_batched_tokens", problem, "Raise it, or lower max_num_seqs.")
        if not 0 <= self.watermark < 1:
            raise InputError("watermark", f"{self.watermark} is not a share", "Use 0 <= watermark < 1.")
        if not 0 <= self.abort_delay_seconds < float("inf"):
            raise InputError("abort_delay_seconds", f"{self.abort_delay_seconds} is no delay", "Use 0 or more seconds.")
        if self.preemption == "swap" and (self.enable_prefix_caching or self.policy != "fcfs"):
            raise InputError("preemption", "swap is modelled without prefix caching, under fcfs", "Turn them off.")
        for name, allowed in (
            ("policy", ("fcfs", "priority")),
            ("admission", ("on-demand", "reserve")),
            ("preemption", ("recompute", "swap")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(name, f"{getattr(self, name)!r} is unknown", f"Use {' or '.join(allowed)}.")

    @property
    def usable_blocks(self) -> int:
        return self.num_gpu_blocks - 1

    @property
    def active_limit(self) -> int:
        """Requests that may run at once."""
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step = fixed + sums over what it computes; every coefficient at least 0.

    `per_pair`: of a prefill token and a context token it attends to, times two (pairs are counted as before + after).
    `per_kv_token`: read by decode. `per_over_token`: any token beyond `free_tokens`, those that ride along while the
    weights are read anyway. `per_prefill_step`: more for any step that computes prompt tokens (vLLM runs only batches
    of decode alone as one full CUDA graph). `per_swapped_block`: moved between GPU and CPU, either way.
    """

    fixed: float = 0.012
    per_prefill_token: float = 0.0003
    per_pair: float = 0.0
    per_decode_seq: float = 0.00035
    per_kv_token: float = 0.0000006
    per_over_token: float = 0.0
    free_tokens: int = 0
    per_prefill_step: float = 0.0
    per_swapped_block: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise InputError(field.name, f"{value} is no step time", "Use 0 or more.")
        if not self.coefficients().any():
            raise InputError("fixed", "a step that takes no time never ends a run", "Give a coefficient above 0.")

    def coefficients(self) -> F64:
        """In the order of `state.W_*`."""
        return np.array((*astuple(self)[:6], self.per_prefill_step, self.per_swapped_block), dtype=np.float64)
