"""What may run in the engine at once, and who waits for it: counts, a bounded queue, clients served in turn.

No I/O, no clock. A request is weighed by its sequences and by its expected KV tokens: prompt + mean output, and the
variance of the output, since a sum of many lengths is surer than each. Nothing runs: anything may, however large.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque

from .policy_file import Admission

#: asked for by nobody: bounds that keep a queue from hiding an overload
DEFAULT_MAX_QUEUED = 1024
DEFAULT_QUEUE_SECONDS = 60.0
DEFAULT_RETRY_SECONDS = 1.0
DEFAULT_DEVIATIONS = 1.0
#: weight of a new finished request in the observed lengths; about the last 50 count
_ALPHA = 0.02
#: before so many finished requests of a route nothing is known of its lengths
_ENOUGH = 30


class Ticket:
    """A request's weight in the engine."""

    __slots__ = ("active", "sequences", "tokens", "variance")

    def __init__(self, sequences: int, tokens: float = 0.0, variance: float = 0.0) -> None:
        self.sequences, self.tokens, self.variance = sequences, tokens, variance
        self.active = False


class Waiter:
    """A queued request. `admitted` is resolved when it may run."""

    __slots__ = ("admitted", "client", "ticket")

    def __init__(self, ticket: Ticket, client: int, admitted: asyncio.Future[None]) -> None:
        self.ticket, self.client, self.admitted = ticket, client, admitted


class Gate:
    """The engine's door. Each ticket that entered must be released once."""

    def __init__(self) -> None:
        self.limits = Admission()
        self.running_requests = 0
        self.running_sequences = 0
        self.expected_tokens = 0.0
        self._variance = 0.0
        self.queued = 0
        self._queues: OrderedDict[int, deque[Waiter]] = OrderedDict()

    def fits(self, ticket: Ticket) -> bool:
        limits = self.limits
        if self.running_requests == 0:
            return True
        if limits.max_sequences is not None and self.running_sequences + ticket.sequences > limits.max_sequences:
            return False
        if limits.kv_budget_tokens is None:
            return True
        deviations = DEFAULT_DEVIATIONS if limits.deviations is None else limits.deviations
        spread = deviations * math.sqrt(max(0.0, self._variance + ticket.variance))
        risk = 1.0 if limits.risk is None else limits.risk
        return self.expected_tokens + ticket.tokens + spread <= limits.kv_budget_tokens * risk

    def enter(self, ticket: Ticket) -> bool:
        """True: it runs now. Never past those who wait."""
        if self.queued or not self.fits(ticket):
            return False
        self.take(ticket)
        return True

    def take(self, ticket: Ticket) -> None:
        """It runs, asked or not."""
        ticket.active = True
        self.running_requests += 1
        self.running_sequences += ticket.sequences
        self.expected_tokens += ticket.tokens
        self._variance += ticket.variance

    def release(self, ticket: Ticket) -> None:
        if not ticket.active:
            return
        ticket.active = False
        self.running_requests -= 1
        self.running_sequences -= ticket.sequences
        self.expected_tokens -= ticket.tokens
        self._variance -= ticket.variance
        if self.running_requests == 0:
            self.expected_tokens = self._variance = 0.0  # sums of floats drift
        self.pump()

    def wait(self, waiter: Waiter) -> bool:
        """Queue it; false where the queue is full."""
        most = DEFAULT_MAX_QUEUED if self.limits.max_queued is None else self.limits.max_queued
        if self.queued >= most:
            return False
        self._queues.setdefault(waiter.client, deque()).append(waiter)
        self.queued += 1
        return True

    def leave(self, waiter: Waiter) -> None:
        """It waits no longer (cancelled, or too late). Those behind it may fit."""
        line = self._queues.get(waiter.client)
        if line is None or waiter not in line:
            return
        line.remove(waiter)
        self.queued -= 1
        if not line:
            del self._queues[waiter.client]
        self.pump()

    def pump(self) -> None:
        """Let in whoever fits, clients in turn. The first that does not fit blocks the rest: else large ones starve."""
        while self.queued:
            client, line = next(iter(self._queues.items()))
            waiter = line[0]
            if not self.fits(waiter.ticket):
                return
            line.popleft()
            self.queued -= 1
            del self._queues[client]
            if line:
                self._queues[client] = line
            if not waiter.admitted.done():
                self.take(waiter.ticket)
                waiter.admitted.set_result(None)


class Lengths:
    """Lengths of finished requests of one route: mean and variance of the output, characters per prompt token."""

    def __init__(self, chars_per_token: float) -> None:
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0
        self.chars_per_token = chars_per_token

    @property
    def known(self) -> bool:
        return self.count >= _ENOUGH

    def add(self, output_tokens: float) -> None:
        """A finished sequence's output."""
        self.count += 1
        alpha = max(_ALPHA, 1.0 / self.count)
        step = output_tokens - self.mean
        self.mean += alpha * step
        self.variance = (1 - alpha) * (self.variance + alpha * step * step)

    def prompt(self, chars: int, tokens: int) -> None:
        """A prompt of so many characters had so many tokens, the chat template's included."""
        if chars > 0 and tokens > 0:
            ratio = min(16.0, max(0.25, chars / tokens))
            self.chars_per_token += _ALPHA * 5 * (ratio - self.chars_per_token)
