"""Drives a scheduler model in real time: step, sleep the modelled duration, hand out the tokens.

One asyncio task per engine; everything runs on one event loop, so no locks. A step that ends late (busy CPU) is
followed by earlier ones until the lag is caught up, within `MAX_LAG_SECONDS`.
"""

from __future__ import annotations

import asyncio

from trimtab.emulate.contract import Request, StepOutcome, StepScheduler
from trimtab.emulate.cost import StepCost
from trimtab.emulate.live import EndReason, EngineObserver, LiveRequest

#: how far behind the modelled time the engine may be and still catch up; beyond it the lost time is dropped
MAX_LAG_SECONDS = 0.25


class EngineStopped(Exception):
    """The engine takes no new work: it drains or has stopped. The server answers 500, as vLLM does."""


class Engine:
    """Requests in, tokens out. `speedup` divides every modelled duration."""

    def __init__(
        self, scheduler: StepScheduler, cost: StepCost, observer: EngineObserver, *, speedup: float = 1.0
    ) -> None:
        self._scheduler, self._cost, self._observer, self._speedup = scheduler, cost, observer, speedup
        self._live: dict[str, LiveRequest] = {}
        self._prompt_tokens: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.accepting = True
        #: set when the stepping task failed: a defect of the model, and /health says so as vLLM does for a dead engine
        self.dead = False

    @property
    def unfinished_count(self) -> int:
        return len(self._live)

    def prefilling_tokens(self) -> int:
        """Prompt tokens of requests without a first token, for --max-num-queued-tokens."""
        return sum(live.prompt_tokens for live in self._live.values() if live.first_token_at is None)

    def submit(self, request: Request) -> LiveRequest:
        """Queue a request. EngineStopped when draining, InputError when the scheduler refuses it."""
        if not self.accepting:
            raise EngineStopped("the engine is shutting down")
        self._scheduler.add(request)
        length = request.prompt.length_tokens
        now = asyncio.get_running_loop().time()
        live = LiveRequest(request.request_id, length, request.max_tokens, now)
        self._live[request.request_id] = live
        self._prompt_tokens[request.request_id] = length
        self._empty.clear()
        self._wake.set()
        return live

    def abandon(self, request_id: str) -> None:
        """The client went away: nothing is counted from now on, blocks are freed at the next step."""
        if request_id in self._live:
            self._forget(request_id)
            self._scheduler.abort(request_id)
            self._wake.set()

    def abort_all(self) -> None:
        """End everything in flight with finish_reason `abort`, counted as such."""
        now = asyncio.get_running_loop().time()
        for live in list(self._live.values()):
            self._scheduler.abort(live.request_id)
            self._end(live, "abort", now)
        self._wake.set()

    async def drain(self, timeout_seconds: float) -> None:
        """Refuse new work, let what is in flight finish for `timeout_seconds`, abort the rest."""
        self.accepting = False
        if timeout_seconds > 0 and self._live:
            try:
                await asyncio.wait_for(self._empty.wait(), timeout_seconds)
            except TimeoutError:
                self.abort_all()
        self.abort_all()

    async def run(self) -> None:
        """Step for ever; cancel the task to stop. A failure ends every request as aborted and is raised."""
        try:
            await self._step_for_ever()
        except Exception:
            self.dead, self.accepting = True, False
            self.abort_all()
            raise

    async def _step_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._wake.clear()
            outcome = self._scheduler.step()
            started = loop.time()
            self._note_start(outcome, started)
            if outcome.idle:
                self._observer.set_gauges(self._scheduler)
                await self._wake.wait()
                due = loop.time()
                continue
            due = max(due, started - MAX_LAG_SECONDS) + self._cost.seconds(outcome) / self._speedup
            await asyncio.sleep(max(0.0, due - started))
            self._note_end(outcome, loop.time())

    def _note_start(self, outcome: StepOutcome, now: float) -> None:
        self._observer.step_started(outcome, self._prompt_tokens)
        for admission in outcome.admitted:
            live = self._live.get(admission.request_id)
            if live is not None and live.scheduled_at is None:
                live.scheduled_at, live.cached_tokens = now, admission.cached_tokens
        for request_id in outcome.preempted:
            live = self._live.get(request_id)
            if live is not None:
                live.preemptions += 1
                live.pending_preemptions += 1

    def _note_end(self, outcome: StepOutcome, now: float) -> None:
        receivers = [live for request_id in outcome.tokens if (live := self._live.get(request_id)) is not None]
        self._observer.step_ended(receivers, now, self._scheduler)
        for live in receivers:
            live.tokens += 1
            live.last_token_at = now
            if live.first_token_at is None:
                live.first_token_at = now
        for finished in outcome.finished:
            ended = self._live.get(finished.request_id)
            if ended is not None:
                self._end(ended, finished.reason, now)
        for live in receivers:
            live.notify()

    def _end(self, live: LiveRequest, reason: EndReason, now: float) -> None:
        live.end = reason
        self._observer.finished(live, reason, now)
        self._forget(live.request_id)
        live.notify()

    def _forget(self, request_id: str) -> None:
        del self._live[request_id]
        del self._prompt_tokens[request_id]
        if not self._live:
            self._empty.set()
