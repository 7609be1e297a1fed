"""A request while it is in the real-time engine: its timings for the metrics, and the stream its HTTP handler reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # at run time it comes with the compiled code, after the flags were read
    from trimtab.simulate.stepper import Stepper, StepResult

#: `error`: the engine died under it
EndReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class LiveRequest:
    """Times are event-loop seconds. One reader only: `wait_beyond` keeps a single waiter."""

    number: int
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
    #: its client went away
    left: bool = False
    _waiter: asyncio.Future[None] | None = None
    _end_only: bool = False

    async def wait_beyond(self, seen_tokens: int) -> None:
        """Return as soon as there are more than `seen_tokens` tokens, the request has ended or its client left."""
        while self.tokens <= seen_tokens and self.end is None and not self.left:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def wait_for_end(self) -> EndReason | None:
        """Like `wait_beyond`, for a reader that wants the whole answer. None: the client left first."""
        self._end_only = True
        while self.end is None and not self.left:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.end

    def leave(self) -> None:
        """The client went away: the reader returns."""
        self.left = True
        self._wake()

    def notify(self) -> None:
        """Wake the reader, if what happened is what it waits for."""
        if not self._end_only or self.end is not None:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineObserver(Protocol):
    """What the engine tells about its work; `metrics.EngineMetrics` and `NoMetrics` implement it."""

    def step_started(self, step: StepResult, live: Mapping[int, LiveRequest]) -> None: ...

    def step_ended(self, receivers: list[LiveRequest], now: float, stepper: Stepper) -> None: ...

    def set_gauges(self, stepper: Stepper) -> None: ...

    def finished(self, live: LiveRequest, reason: EndReason, now: float) -> None: ...

    def rejected(self, reason: str) -> None: ...


class NoMetrics:
    """For --disable-log-stats: the engine runs unseen."""

    def step_started(self, step: StepResult, live: Mapping[int, LiveRequest]) -> None:
        """Nothing to tell."""

    def step_ended(self, receivers: list[LiveRequest], now: float, stepper: Stepper) -> None:
        """Nothing to tell."""

    def set_gauges(self, stepper: Stepper) -> None:
        """Nothing to tell."""

    def finished(self, live: LiveRequest, reason: EndReason, now: float) -> None:
        """Nothing to tell."""

    def rejected(self, reason: str) -> None:
        """Nothing to tell."""
