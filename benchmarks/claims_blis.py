"""The rules of the simulator from which the cliff of 2200 to 2100 blocks was published (BLIS, inference-sim, 2026).

Not vLLM's are these. A preempted request forgets the tokens it had generated and decodes them again; its time to first
token is counted anew after each restart and its latency keeps the gaps from before; in the step that preempts it, it is
still visited and takes blocks for its prompt while it waits; a request that fails to grow loses track of its blocks.
Written from descriptions (hypotheses/h8-kv-pressure, pull request 298, issues 1095 and 1122) and a reading of its batch
formation and KV cache of that time, none of its code. Seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from trimtab.engine.kv.blocks import blocks_for
from trimtab.simulate.config import StepTimes
from trimtab.simulate.state import F64

#: its published fit of vLLM 0.8.4, Llama-3.1-8B on two H100 (defaults.yaml): a step, then what a request waits besides
STEP = StepTimes(6910.42e-6, 17.67057e-6, 0.0, 2.8377e-6, 0.0)
BEFORE_QUEUE_SECONDS, BEFORE_QUEUE_SECONDS_PER_TOKEN, PER_OUTPUT_TOKEN_SECONDS = 1601.35e-6, 3.51248e-6, 1805.545e-6
BLOCK_SIZE, BUDGET, MAX_NUM_SEQS = 16, 2048, 256
#: steps after which a run is called endless; the published ones take some 600
MOST_STEPS = 100_000


@dataclass
class _Request:
    arrival: float
    prompt: int
    output: int
    computed: int = 0
    held: int = 0
    spare: int = 0
    scheduled: int = 0
    first: float = float("nan")
    end: float = float("nan")
    decode_seconds: float = 0.0

    @property
    def queued(self) -> float:
        return self.arrival + BEFORE_QUEUE_SECONDS + BEFORE_QUEUE_SECONDS_PER_TOKEN * self.prompt


@dataclass
class _Engine:
    free: int
    leaks: bool
    waiting: deque[_Request] = field(default_factory=deque)
    running: list[_Request] = field(default_factory=list)
    preemptions: int = 0
    now: float = 0.0

    def release(self, request: _Request) -> None:
        self.free += request.held
        request.held, request.spare = 0, 0

    def take(self, request: _Request, tokens: int, decoding: bool) -> bool:
        """Room for so many more tokens; the last of the batch are preempted for it. False: none were left, or "
        "itself was."""
        while not self._grow(request, tokens, decoding):
            if not self.running:
                return False
            victim = self.running.pop()
            self.release(victim)
            victim.computed = 0
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _grow(self, request: _Request, tokens: int, decoding: bool) -> bool:
        needed = blocks_for(max(0, tokens - request.spare), BLOCK_SIZE)
        if (needed if decoding else blocks_for(tokens, BLOCK_SIZE)) > self.free:
            if decoding and self.leaks:
                request.held, request.spare = 0, 0
            return False
        self.free -= needed
        request.held += needed
        request.spare += needed * BLOCK_SIZE - tokens
        return True


@dataclass(frozen=True)
class Served:
    """Seconds per request, and preemptions in all."""

    ttft: F64
    e2e: F64
    preemptions: int


def serve(arrival: F64, prompt: F64, output: F64, blocks: int, leaks: bool = True) -> Served:
    """One instance. RuntimeError where it would preempt for ever."""
    engine = _Engine(blocks, leaks)
    requests = [_Request(float(a), int(p), int(o)) for a, p, o in zip(arrival, prompt, output, strict=True)]
    coming = deque(sorted(requests, key=lambda r: r.queued))
    for _ in range(MOST_STEPS):
        if not engine.running and not engine.waiting:
            if not coming:
                ttft, e2e = (np.array([getattr(r, name) - r.arrival for r in requests]) for name in ("first", "end"))
                return Served(ttft, e2e, engine.preemptions)
            engine.now = max(engine.now, coming[0].queued)
        while coming and coming[0].queued <= engine.now:
            engine.waiting.append(coming.popleft())
        _plan(engine)
        _compute(engine)
    raise RuntimeError(f"{blocks} blocks: preempts for ever")


def _plan(engine: _Engine) -> None:
    budget, before = BUDGET, engine.preemptions
    for request in engine.running:
        request.scheduled = 0
    for request in list(engine.running):  # those preempted meanwhile are visited, too
        if budget <= 0:
            break
        count = min(max(1, request.prompt - request.computed), budget)
        if not engine.take(request, count, request.computed >= request.prompt):
            break
        request.scheduled = count
        budget -= count
    while engine.waiting and len(engine.running) < MAX_NUM_SEQS and budget > 0 and engine.preemptions == before:
        request = engine.waiting[0]
        cached = min(request.held, request.prompt // BLOCK_SIZE) * BLOCK_SIZE
        count = min(request.prompt - cached, budget)
        if blocks_for(count, BLOCK_SIZE) > engine.free:
            break
        engine.take(request, count, decoding=False)
        engine.running.append(engine.waiting.popleft())
        request.computed, request.scheduled = cached, count
        budget -= count


def _compute(engine: _Engine) -> None:
    prefill = sum(r.scheduled for r in engine.running if r.computed < r.prompt)
    decode = sum(r.scheduled for r in engine.running if r.computed >= r.prompt)
    seconds = STEP.fixed + STEP.per_prefill_token * prefill + STEP.per_decode_seq * decode
    engine.now += seconds
    for request in engine.running:
        was_prefill = request.computed < request.prompt or request.scheduled == 0
        request.computed += request.scheduled
        if was_prefill and request.computed == request.prompt:
            request.first = engine.now + PER_OUTPUT_TOKEN_SECONDS
        if not was_prefill:
            request.decode_seconds += seconds + PER_OUTPUT_TOKEN_SECONDS
    for request in [r for r in engine.running if r.computed >= r.prompt + r.output - 1]:
        engine.running.remove(request)
        engine._grow(request, 1, decoding=True)
        engine.release(request)
        request.end = request.first + request.decode_seconds
