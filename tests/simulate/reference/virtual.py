"""Many requests against one configuration in virtual time, by the reference scheduler.

A client reads each token at the end of its step; one that cancels or gives up is dropped at the next step boundary.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.simulate.reference.contract import (
    Prompt,
    Request,
    SchedulerFactory,
    SchedulerLimits,
    StepOutcome,
    StepScheduler,
)
from tests.simulate.reference.cost import StepCost
from tests.simulate.reference.scheduler import Scheduler

from trimtab.errors import InputError

Ending = Literal["stop", "length", "cancelled", "gave_up", "stuck"]


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One request and the behaviour of who sent it.

    `output_tokens` is the natural length, `max_tokens` the cap. The client hangs up after reading
    `cancel_after_tokens` tokens, or when `patience_seconds` passed without a first token.
    """

    request_id: str
    arrival_seconds: float
    prompt: Prompt
    output_tokens: int
    max_tokens: int
    cancel_after_tokens: int | None = None
    patience_seconds: float | None = None


@dataclass(slots=True)
class RequestRecord:
    """What the client saw, in virtual seconds. `stuck`: never admitted, or queued behind such a one."""

    request_id: str
    arrival_seconds: float
    prompt_tokens: int
    max_tokens: int
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    end_seconds: float | None = None
    tokens: int = 0
    ending: Ending = "stuck"
    preemptions: int = 0
    cached_tokens: int = 0

    @property
    def ttft_seconds(self) -> float | None:
        return None if self.first_token_seconds is None else self.first_token_seconds - self.arrival_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per output token after the first; None below two tokens."""
        if self.first_token_seconds is None or self.last_token_seconds is None or self.tokens < 2:
            return None
        return (self.last_token_seconds - self.first_token_seconds) / (self.tokens - 1)


@dataclass(slots=True)
class Counters:
    """Engine-side totals over a run. `generation_tokens` includes those nobody read; `busy_seconds` is step time."""

    steps: int = 0
    busy_seconds: float = 0.0
    end_seconds: float = 0.0
    preemptions: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    peak_running: int = 0
    peak_kv_usage: float = 0.0


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """Records in the order of the given requests, and the engine's counters."""

    records: tuple[RequestRecord, ...]
    counters: Counters

    @property
    def useful_tokens(self) -> int:
        """Tokens of requests that finished normally."""
        return sum(record.tokens for record in self.records if record.ending in ("stop", "length"))


def simulate(
    requests: Sequence[ClientRequest],
    limits: SchedulerLimits,
    cost: StepCost | None = None,
    *,
    scheduler_factory: SchedulerFactory = Scheduler,
) -> VirtualRun:
    """Serve `requests` to their end. InputError for a request or configuration that the engine would refuse."""
    run = _Run(requests, scheduler_factory(limits), cost or StepCost())
    run.serve()
    return VirtualRun(tuple(run.records[request.request_id] for request in requests), run.counters)


class _Run:
    """The event loop: arrivals and impatient clients between steps, tokens at their end."""

    def __init__(self, requests: Sequence[ClientRequest], scheduler: StepScheduler, cost: StepCost) -> None:
        self.scheduler, self.cost = scheduler, cost
        self.pending = sorted(requests, key=lambda request: request.arrival_seconds)
        self.requests = {request.request_id: request for request in requests}
        if len(self.requests) != len(requests):
            raise InputError("request_id", "two requests share an id", "Use unique request ids")
        self.records = {
            r.request_id: RequestRecord(r.request_id, r.arrival_seconds, r.prompt.length_tokens, r.max_tokens)
            for r in requests
        }
        self.counters = Counters()
        self.now = self.pending[0].arrival_seconds if self.pending else 0.0
        self._next = 0
        self._deadlines: list[tuple[float, str]] = []
        self._gone: set[str] = set()

    def serve(self) -> None:
        while True:
            self._arrive()
            self._lose_patience()
            outcome = self.scheduler.plan()
            if outcome.idle:
                if not self._skip_to_next_event():
                    break
                continue
            duration = self.cost.seconds(outcome)
            self.now += duration
            self._lose_patience()
            self.scheduler.deliver(outcome)
            self._account(outcome, duration)
            self._deliver(outcome)
        self.counters.end_seconds = self.now

    def _arrive(self) -> None:
        while self._next < len(self.pending) and self.pending[self._next].arrival_seconds <= self.now:
            request = self.pending[self._next]
            self._next += 1
            self.scheduler.add(Request(request.request_id, request.prompt, request.output_tokens, request.max_tokens))
            if request.patience_seconds is not None:
                deadline = request.arrival_seconds + request.patience_seconds
                heapq.heappush(self._deadlines, (deadline, request.request_id))

    def _lose_patience(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self.now:
            deadline, request_id = heapq.heappop(self._deadlines)
            record = self.records[request_id]
            if record.tokens == 0 and record.end_seconds is None:
                self._leave(record, "gave_up", deadline)

    def _leave(self, record: RequestRecord, ending: Ending, at_seconds: float) -> None:
        record.ending, record.end_seconds = ending, at_seconds
        self._gone.add(record.request_id)
        self.scheduler.abort(record.request_id)

    def _skip_to_next_event(self) -> bool:
        """Jump over idle time to the next arrival or deadline. False when neither can change anything any more."""
        events: list[float] = []
        if self._next < len(self.pending):
            events.append(self.pending[self._next].arrival_seconds)
        if self._deadlines and self.scheduler.waiting_count:
            events.append(self._deadlines[0][0])
        if events:
            self.now = max(self.now, min(events))
        return bool(events)

    def _account(self, outcome: StepOutcome, duration: float) -> None:
        counters = self.counters
        counters.steps += 1
        counters.busy_seconds += duration
        counters.prefill_tokens += outcome.prefill_tokens
        counters.recomputed_tokens += outcome.recomputed_tokens
        counters.generation_tokens += len(outcome.tokens)
        counters.preemptions += len(outcome.preempted)
        counters.peak_running = max(counters.peak_running, outcome.decode_sequences + len(outcome.admitted))
        counters.peak_kv_usage = max(counters.peak_kv_usage, self.scheduler.kv_usage)
        for request_id in outcome.preempted:
            self.records[request_id].preemptions += 1
        for admission in outcome.admitted:
            record = self.records[admission.request_id]
            if not admission.resumed:
                record.cached_tokens = admission.cached_tokens
                counters.prefix_cache_queries += record.prompt_tokens
                counters.prefix_cache_hits += admission.cached_tokens

    def _deliver(self, outcome: StepOutcome) -> None:
        now, records, gone = self.now, self.records, self._gone
        for request_id in outcome.tokens:
            if gone and request_id in gone:
                continue
            record = records[request_id]
            record.tokens += 1
            record.last_token_seconds = now
            if record.tokens == 1:
                record.first_token_seconds = now
            if record.tokens == self.requests[request_id].cancel_after_tokens:
                self._leave(record, "cancelled", now)
        for finished in outcome.finished:
            record = records[finished.request_id]
            if record.end_seconds is None:
                record.ending, record.end_seconds = finished.reason, now
