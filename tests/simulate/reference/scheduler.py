"""Step-level model of the vLLM v1 scheduler under `fcfs`, in plain Python: the compiled one is compared with it.

Pure and deterministic: no clock, no I/O, no randomness. Source: vLLM 0.32 `v1/core/sched/scheduler.py` and
`v1/core/kv_cache_manager.py`. Left out: speculative decoding, LoRA, multi-modal input, KV connectors, priorities,
sliding windows. Generated text is not modelled, so blocks with generated tokens are re-hit by their own request only (a
second turn of a conversation finds its prompt, not the answer, in the cache).
"""

from __future__ import annotations

from collections import deque

from tests.simulate.reference.blocks import BlockPool
from tests.simulate.reference.contract import Admission, Finished, FinishReason, Request, SchedulerLimits, StepOutcome

from trimtab.errors import InputError


class _Sequence:
    """A request inside the scheduler. `known` = prompt + generated tokens; `computed` of them have KV in blocks."""

    __slots__ = (
        "blocks",
        "cap",
        "capacity",
        "computed",
        "generated",
        "hashed",
        "hashes",
        "high_water",
        "known",
        "preemptions",
        "prefill_until",
        "prompt_tokens",
        "reason",
        "request_id",
    )  # fmt: skip

    def __init__(self, request: Request, limits: SchedulerLimits) -> None:
        self.request_id = request.request_id
        self.prompt_tokens = self.known = request.prompt.length_tokens
        allowed = min(request.max_tokens, limits.max_model_len - self.prompt_tokens)
        self.cap = min(allowed, request.output_tokens)
        self.reason: FinishReason = "stop" if request.output_tokens <= allowed else "length"
        caching = limits.enable_prefix_caching
        self.hashes = request.prompt.block_hashes(limits.block_size, request.request_id) if caching else []
        self.blocks: list[int] = []
        self.computed = self.generated = self.capacity = self.hashed = 0
        self.prefill_until = self.preemptions = self.high_water = 0


class Scheduler:
    """Implements `contract.StepScheduler`."""

    def __init__(self, limits: SchedulerLimits) -> None:
        _check_limits(limits)
        self.limits = limits
        self.pool = BlockPool(limits.num_gpu_blocks - 1)
        self._watermark_blocks = int(limits.watermark * limits.num_gpu_blocks)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._sequences: dict[str, _Sequence] = {}
        self._aborts: list[str] = []
        self._budget = 0
        self._ready: list[_Sequence] = []

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return self.pool.used_count / self.pool.usable

    def add(self, request: Request) -> None:
        if request.request_id in self._sequences:
            raise InputError("request_id", f"{request.request_id!r} is already in the engine", "Use unique request ids")
        if request.prompt.length_tokens < 1 or request.output_tokens < 1 or request.max_tokens < 1:
            raise InputError(
                request.request_id, "prompt, output and max_tokens must be at least 1 token", "Correct them"
            )
        if request.prompt.length_tokens >= self.limits.max_model_len:
            fix = f"Shorten it below max_model_len {self.limits.max_model_len}"
            raise InputError(request.request_id, f"prompt of {request.prompt.length_tokens} tokens is too long", fix)
        sequence = _Sequence(request, self.limits)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        if request_id in self._sequences:
            self._aborts.append(request_id)

    def step(self) -> StepOutcome:
        outcome = self.plan()
        self.deliver(outcome)
        return outcome

    def plan(self) -> StepOutcome:
        """Decide on a batch; its tokens come with `deliver`."""
        outcome = StepOutcome([], [], [], [], [])
        if self._aborts:
            self._apply_aborts(outcome)
        self._budget = self.limits.max_num_batched_tokens
        ready = self._ready = []
        self._schedule_running(outcome, ready)
        if self._waiting and not outcome.preempted:
            self._admit_waiting(outcome, ready)
        return outcome

    def deliver(self, outcome: StepOutcome) -> None:
        """The batch was computed. Who was aborted meanwhile gets no token."""
        if self._aborts:
            self._apply_aborts(outcome)
        self._emit_tokens(outcome, [sequence for sequence in self._ready if sequence.request_id in self._sequences])

    # --- one step, in order -------------------------------------------------------------------------------------------

    def _apply_aborts(self, outcome: StepOutcome) -> None:
        for request_id in self._aborts:
            sequence = self._sequences.pop(request_id, None)
            if sequence is None:
                continue
            if sequence.blocks:
                self._running.remove(sequence)
                self._free(sequence)
            else:
                self._waiting.remove(sequence)
            outcome.aborted.append(request_id)
        self._aborts.clear()

    def _schedule_running(self, outcome: StepOutcome, ready: list[_Sequence]) -> None:
        """Oldest first. Who cannot grow preempts from the young end, possibly itself."""
        running = self._running
        index = 0
        while index < len(running) and self._budget > 0:
            sequence = running[index]
            count = self._chunk(sequence)
            if sequence.computed + count > sequence.capacity and not self._grow(sequence, count, outcome):
                break
            self._compute(sequence, count, outcome, ready)
            index += 1

    def _admit_waiting(self, outcome: StepOutcome, ready: list[_Sequence]) -> None:
        """First come, first served: a head that does not fit blocks those behind it."""
        waiting, running, limit = self._waiting, self._running, self.limits.active_limit
        while waiting and self._budget > 0 and len(running) < limit:
            sequence = waiting[0]
            cached = self.pool.find_prefix(sequence.hashes, (sequence.known - 1) // self.limits.block_size)
            cached_tokens = len(cached) * self.limits.block_size
            sequence.computed = cached_tokens
            count = self._chunk(sequence)
            unchunked = sequence.known - cached_tokens
            if not self.limits.enable_chunked_prefill and count < unchunked:
                sequence.computed = 0
                return
            if not self._fits(sequence, cached, count):
                sequence.computed = 0
                return
            waiting.popleft()
            running.append(sequence)
            self._start(sequence, cached, count, outcome)
            self._compute(sequence, count, outcome, ready)

    def _emit_tokens(self, outcome: StepOutcome, ready: list[_Sequence]) -> None:
        tokens = outcome.tokens
        ended: list[_Sequence] = []
        for sequence in ready:
            tokens.append(sequence.request_id)
            sequence.generated += 1
            sequence.known += 1
            if sequence.generated >= sequence.cap:
                ended.append(sequence)
        for sequence in ended:
            outcome.finished.append(Finished(sequence.request_id, sequence.reason))
            del self._sequences[sequence.request_id]
            self._running.remove(sequence)
            self._free(sequence)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _chunk(self, sequence: _Sequence) -> int:
        """Tokens of this sequence to compute in this step."""
        count = sequence.known - sequence.computed
        threshold = self.limits.long_prefill_token_threshold
        if 0 < threshold < count:
            count = threshold
        return min(count, self._budget)

    def _fits(self, sequence: _Sequence, cached: list[int], count: int) -> bool:
        block_size = self.limits.block_size
        tokens = sequence.known if self.limits.reserve_full_prompt else sequence.computed + count
        needed = -(-tokens // block_size) - len(cached) + self.pool.count_evictable(cached)
        kept_free = self._watermark_blocks if self._running else 0
        return needed <= self.pool.free_count - kept_free

    def _start(self, sequence: _Sequence, cached: list[int], count: int, outcome: StepOutcome) -> None:
        self.pool.take_cached(cached)
        needed = -(-(sequence.computed + count) // self.limits.block_size) - len(cached)
        sequence.blocks = cached + self.pool.allocate(needed)
        sequence.capacity = len(sequence.blocks) * self.limits.block_size
        sequence.hashed = len(cached)
        sequence.prefill_until = sequence.known
        outcome.admitted.append(Admission(sequence.request_id, sequence.computed, sequence.preemptions > 0))

    def _grow(self, sequence: _Sequence, count: int, outcome: StepOutcome) -> bool:
        """Give the sequence blocks for `count` more tokens. False when it had to preempt itself."""
        needed = -(-(sequence.computed + count) // self.limits.block_size) - len(sequence.blocks)
        while needed > self.pool.free_count:
            victim = self._running.pop()
            self._free(victim)
            victim.computed = victim.capacity = victim.hashed = 0
            victim.preemptions += 1
            self._waiting.appendleft(victim)
            outcome.preempted.append(victim.request_id)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.allocate(needed)
        sequence.capacity += needed * self.limits.block_size
        return True

    def _compute(self, sequence: _Sequence, count: int, outcome: StepOutcome, ready: list[_Sequence]) -> None:
        """Account for `count` tokens and make the blocks that they fill findable, at scheduling time as vLLM does."""
        before = sequence.computed
        after = sequence.computed = before + count
        self._budget -= count
        if before < sequence.prefill_until:
            outcome.prefill_tokens += count
            outcome.recomputed_tokens += max(0, min(sequence.high_water, after) - before)
        else:
            outcome.decode_sequences += 1
        if after > sequence.high_water:
            sequence.high_water = after
        outcome.kv_tokens_read += after
        if self.limits.enable_prefix_caching and after // self.limits.block_size > sequence.hashed:
            self._register_full_blocks(sequence)
        if after == sequence.known:
            ready.append(sequence)

    def _register_full_blocks(self, sequence: _Sequence) -> None:
        full = sequence.computed // self.limits.block_size
        for position in range(sequence.hashed, full):
            if position == len(sequence.hashes):  # holds generated tokens: nobody else can have it
                sequence.hashes.append(hash((sequence.hashes[-1] if position else 0, sequence.request_id, position)))
            self.pool.register(sequence.blocks[position], sequence.hashes[position])
        sequence.hashed = full

    def _free(self, sequence: _Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []


def _check_limits(limits: SchedulerLimits) -> None:
    """InputError for limits no engine would start with."""
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        problem = f"{limits.max_num_batched_tokens} is below max_num_seqs {limits.max_num_seqs}"
        raise InputError("max_num_batched_tokens", problem, "Raise it, or lower max_num_seqs")
    minimum = {"max_num_seqs": 1, "num_gpu_blocks": 2, "block_size": 1, "max_model_len": 2}
    for name, least in minimum.items():
        if getattr(limits, name) < least:
            raise InputError(name, f"{getattr(limits, name)} is too small", f"Use at least {least}")
    if not 0 <= limits.watermark < 1:
        raise InputError("watermark", f"{limits.watermark} is not a share", "Use 0 <= watermark < 1")
