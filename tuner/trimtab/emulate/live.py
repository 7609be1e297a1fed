"""A request while it is in the real-time engine: its timings for the metrics, and the stream its HTTP handler reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from trimtab.emulate.contract import StepOutcome, StepScheduler

EndReason = Literal["stop", "length", "abort"]


@dataclass(slots=True)
class LiveRequest:
    """Times are event-loop seconds. One reader only: `wait_beyond` keeps a single waiter."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    arrived_at: float
    tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    pending_preemptions: int = 0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    end: EndReason | None = None
    _waiter: asyncio.Future[None] | None = None
    _end_only: bool = False

    async def wait_beyond(self, seen_tokens: int) -> None:
        """Return as soon as there are more than `seen_tokens` tokens, or the request has ended."""
        while self.tokens <= seen_tokens and self.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def wait_for_end(self) -> EndReason:
        """Like `wait_beyond`, for a reader that wants the whole answer; woken by the end only."""
        self._end_only = True
        while self.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.end

    def notify(self) -> None:
        """Wake the reader, if what happened is what it waits for."""
        if self._end_only and self.end is None:
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineObserver(Protocol):
    """What the engine tells about its work; `metrics.EngineMetrics` and `NoMetrics` implement it."""

    def step_started(self, outcome: StepOutcome, prompt_tokens: dict[str, int]) -> None: ...

    def step_ended(self, receivers: list[LiveRequest], now: float, scheduler: StepScheduler) -> None: ...

    def set_gauges(self, scheduler: StepScheduler) -> None: ...

    def finished(self, live: LiveRequest, reason: EndReason, now: float) -> None: ...

    def rejected(self, reason: str) -> None: ...


class NoMetrics:
    """For --disable-log-stats: the engine runs unseen."""

    def step_started(self, outcome: StepOutcome, prompt_tokens: dict[str, int]) -> None:
        """Nothing to tell."""

    def step_ended(self, receivers: list[LiveRequest], now: float, scheduler: StepScheduler) -> None:
        """Nothing to tell."""

    def set_gauges(self, scheduler: StepScheduler) -> None:
        """Nothing to tell."""

    def finished(self, live: LiveRequest, reason: EndReason, now: float) -> None:
        """Nothing to tell."""

    def rejected(self, reason: str) -> None:
        """Nothing to tell."""
