"""What became of the requests in an engine, step by step, told to its observer. Times are those of the caller's clock,
real or virtual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trimtab.emulate.live import EndReason, EngineObserver, LiveRequest

if TYPE_CHECKING:  # at run time it comes with the compiled code, after the flags were read
    from trimtab.simulate.stepper import Stepper, StepResult


class Ledger:
    """Requests by the stepper's number. `on_gone` is called for each that leaves, whatever the reason."""

    def __init__(self, stepper: Stepper, observer: EngineObserver, on_gone: Callable[[LiveRequest], None]) -> None:
        self._stepper, self._observer, self._on_gone = stepper, observer, on_gone
        self.live: dict[int, LiveRequest] = {}

    def started(self, step: StepResult, now: float) -> None:
        """The step was planned: who was admitted, who was preempted."""
        self._observer.step_started(step, self.live)
        for number, cached_tokens, _resumed in step.admitted:
            live = self.live.get(number)
            if live is not None and live.scheduled_at is None:
                live.scheduled_at, live.cached_tokens = now, cached_tokens
        for number in step.preempted:
            live = self.live.get(number)
            if live is not None:
                live.preemptions += 1
                live.pending_preemptions += 1

    def ended(self, step: StepResult, now: float) -> list[LiveRequest]:
        """Its tokens are there. Returns who got one."""
        receivers = [live for number in step.tokens if (live := self.live.get(number)) is not None]
        self._observer.step_ended(receivers, now, self._stepper)
        for live in receivers:
            live.tokens += 1
            live.last_token_at = now
            if live.first_token_at is None:
                live.first_token_at = now
        for number, reason in step.finished:
            ended = self.live.get(number)
            if ended is not None:
                self.end(ended, reason, now)
        for live in receivers:
            live.notify()
        return receivers

    def end(self, live: LiveRequest, reason: EndReason, now: float) -> None:
        """A request is over. Only an engine that died leaves it out of the metrics."""
        live.end = reason
        if reason != "error":
            self._observer.finished(live, reason, now)
        self.forget(live)
        live.notify()

    def forget(self, live: LiveRequest) -> None:
        self._on_gone(live)
        del self.live[live.number]

    def abandon(self, live: LiveRequest) -> bool:
        """The client went away: nothing is counted from now on. Whether it was there."""
        if live.number not in self.live:
            return False
        self._stepper.abort(live.number)
        self.forget(live)
        return True

    def end_all(self, reason: EndReason, now: float) -> None:
        for live in list(self.live.values()):
            self._stepper.abort(live.number)
            self.end(live, reason, now)
