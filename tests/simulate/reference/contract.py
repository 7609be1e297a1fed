"""The border between the reference scheduler and the virtual time that drives it.

Everything is counted in tokens, KV blocks and steps; no seconds appear here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a length and the identities of its leading chunks (tokens, words, or hashed blocks of a trace).

    `chunks[i]` names tokens `[i * chunk_tokens, (i + 1) * chunk_tokens)`. What lies beyond the chunks is taken to be
    unique to the request, so `Prompt(300)` shares nothing with anybody.
    """

    length_tokens: int
    chunks: tuple[Hashable, ...] = ()
    chunk_tokens: int = 1

    @classmethod
    def from_tokens(cls, tokens: Sequence[Hashable]) -> Prompt:
        """One chunk per token: exact prefix matching."""
        return cls(len(tokens), tuple(tokens), 1)

    def block_hashes(self, block_size: int, salt: Hashable) -> list[int]:
        """One chained hash per full block; `salt` (the request) keeps blocks that no chunk covers apart."""
        hashes: list[int] = []
        parent = 0
        covered_tokens = len(self.chunks) * self.chunk_tokens
        for start in range(0, self.length_tokens - block_size + 1, block_size):
            end = start + block_size
            if end <= covered_tokens:
                last = (end - 1) // self.chunk_tokens + 1
                parent = hash((parent, self.chunks[start // self.chunk_tokens : last]))
            else:
                parent = hash((parent, salt, start))
            hashes.append(parent)
        return hashes


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked to do. `output_tokens` is where the model stops by itself (hidden from scheduling)."""

    request_id: str
    prompt: Prompt
    output_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The part of a vLLM configuration that decides admission, batching and preemption.

    `num_gpu_blocks` is what vLLM reports; one of them is vLLM's null block and never usable. `watermark` is the share
    of blocks kept free at admission while something runs. `max_num_active_seqs=None` means max_num_seqs.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    num_gpu_blocks: int = 2000
    block_size: int = 16
    max_model_len: int = 4096
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    max_num_active_seqs: int | None = None
    reserve_full_prompt: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0

    @property
    def active_limit(self) -> int:
        """Requests that may run at once."""
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)

    @property
    def kv_cache_size_tokens(self) -> int:
        return self.num_gpu_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class Admission:
    """A waiting request began (or, `resumed`, began again after preemption) with `cached_tokens` found in the cache."""

    request_id: str
    cached_tokens: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended by itself in this step."""

    request_id: str
    reason: FinishReason


@dataclass(slots=True)
class StepOutcome:
    """What one engine step did. The driver owns it; the scheduler keeps no reference.

    `tokens` lists the requests that got one token each, finished ones included. `prefill_tokens` are those computed in
    this step, recomputation after preemption included (`recomputed_tokens` of them). `kv_tokens_read` is the
    sum of context lengths attention went over.
    """

    tokens: list[str]
    admitted: list[Admission]
    finished: list[Finished]
    preempted: list[str]
    aborted: list[str]
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    decode_sequences: int = 0
    kv_tokens_read: int = 0

    @property
    def idle(self) -> bool:
        """Nothing was computed: no request, or only requests that cannot be admitted."""
        return not self.prefill_tokens and not self.decode_sequences


class StepScheduler(Protocol):
    """A scheduler model, advanced step by step. Deterministic: same calls, same outcomes."""

    def add(self, request: Request) -> None:
        """Queue a request. InputError when its id is in use or its numbers make no sense."""

    def abort(self, request_id: str) -> None:
        """Drop a request at the start of the next step or before its tokens, what comes first. Unknown or finished ids
        are ignored, as vLLM does.
        """

    def step(self) -> StepOutcome:
        """Advance by one engine step: `plan` and `deliver`."""

    def plan(self) -> StepOutcome:
        """Decide on a batch."""

    def deliver(self, outcome: StepOutcome) -> None:
        """Hand out its tokens."""

    @property
    def running_count(self) -> int: ...

    @property
    def waiting_count(self) -> int: ...

    @property
    def kv_usage(self) -> float:
        """Share of usable blocks that requests hold (0 to 1); cached but unreferenced blocks count as free."""


SchedulerFactory = Callable[[SchedulerLimits], StepScheduler]
