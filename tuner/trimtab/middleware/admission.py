"""What may run in the engine at once, and who waits for it: counts, a bounded queue, clients served in turn.

No I/O, no clock. A request is weighed by its sequences and by the KV tokens it will hold: prompt, what it has
generated, and what it is expected to add, with its variance, since a sum of many lengths is surer than each. When
nothing runs anything may, however large.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable

from .policy_file import Admission

#: asked for by nobody: bounds that keep a queue from hiding an overload
DEFAULT_MAX_QUEUED = 1024
DEFAULT_QUEUE_SECONDS = 60.0
DEFAULT_RETRY_SECONDS = 1.0
DEFAULT_DEVIATIONS = 0.0
#: weight of a new finished request in the observed lengths; about the last 50 count
_ALPHA = 0.02
#: before so many finished requests of a route nothing is known of its lengths
_ENOUGH = 30


class Ticket:
    """A request's weight in the engine. Output mean and variance are of one sequence; its choices share the prompt."""

    __slots__ = ("active", "generated", "mean", "most", "prompt", "sequences", "variance")

    def __init__(
        self, sequences: int, prompt: float = 0.0, mean: float = 0.0, variance: float = 0.0, most: float = math.inf
    ) -> None:
        self.sequences, self.prompt, self.mean, self.variance, self.most = sequences, prompt, mean, variance, most
        self.active = False
        #: tokens of all sequences until now; answers that are not streamed are not seen to grow
        self.generated: Callable[[], int] | None = None

    def now_and_left(self) -> tuple[float, float]:
        """(KV tokens held now, tokens that each sequence will still add).

        One that outlived its expectation is expected to go on for a standard deviation more: heavy tails do.
        """
        done = self.generated() if self.generated is not None else 0
        each = done / self.sequences
        left = max(self.mean - each, min(math.sqrt(self.variance), self.most - each))
        return self.prompt + done, max(0.0, left)


class Waiter:
    """A queued request. `admitted` is resolved when it may run."""

    __slots__ = ("admitted", "client", "ticket")

    def __init__(self, ticket: Ticket, client: int, admitted: asyncio.Future[None]) -> None:
        self.ticket, self.client, self.admitted = ticket, client, admitted


class Gate:
    """The engine's door. Each ticket that entered must be released once."""

    def __init__(self) -> None:
        self.limits = Admission()
        #: tokens of a KV block: on average half of each sequence's last one is empty
        self.block_tokens = 0
        self._running: dict[Ticket, None] = {}
        self.running_sequences = 0
        self.queued = 0
        self._queues: OrderedDict[int, deque[Waiter]] = OrderedDict()

    @property
    def running_requests(self) -> int:
        return len(self._running)

    def fits(self, ticket: Ticket) -> bool:
        limits = self.limits
        if not self._running:
            return True
        if limits.max_sequences is not None and self.running_sequences + ticket.sequences > limits.max_sequences:
            return False
        if limits.kv_budget_tokens is None:
            return True
        risk = 1.0 if limits.risk is None else limits.risk
        return self.peak(ticket) <= limits.kv_budget_tokens * risk

    def peak(self, *more: Ticket) -> float:
        """The most KV tokens that what runs, and `more`, will hold at one time, if nothing else is let in.

        Requests grow together and leave one after the other, so the peak is at the end of one of them: then those that
        last longer hold what they hold now plus what they add until then. O(n log n), some 1 us per running request.
        """
        deviations = DEFAULT_DEVIATIONS if self.limits.deviations is None else self.limits.deviations
        rows = sorted(((*t.now_and_left()[::-1], t) for t in (*self._running, *more)), key=lambda r: r[0], reverse=True)
        held = variance = highest = 0.0
        growing = 0
        for left, now, ticket in rows:
            held += now + ticket.sequences * self.block_tokens / 2
            growing += ticket.sequences
            variance += ticket.sequences * ticket.variance
            highest = max(highest, held + growing * left + deviations * math.sqrt(variance))
        return highest

    def enter(self, ticket: Ticket) -> bool:
        """True: it runs now. Never past those who wait."""
        if self.queued or not self.fits(ticket):
            return False
        self.take(ticket)
        return True

    def take(self, ticket: Ticket) -> None:
        """It runs, asked or not."""
        ticket.active = True
        self._running[ticket] = None
        self.running_sequences += ticket.sequences

    def release(self, ticket: Ticket) -> None:
        if not ticket.active:
            return
        ticket.active = False
        del self._running[ticket]
        self.running_sequences -= ticket.sequences
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
