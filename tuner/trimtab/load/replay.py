"""Sends a trace on time, whatever the server does: open loop. Waiting for answers before sending more would hide its
overload. Only where a number of clients is asked for, each waits for its answer, as a batch job's workers do.

Hazard: a process short of CPU sends late and stamps tokens late; `lateness_seconds` of the Summary tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.load.client import Client
from trimtab.load.records import Record
from trimtab.load.trace import Request

#: of a closed loop: a request that ended sooner was refused, or its server is gone
_REFUSED_SECONDS: Final = 0.05


@dataclass(frozen=True)
class ReplayOptions:
    """`max_in_flight`: beyond it requests are dropped and counted, never delayed. `keepalive_share`: of requests over
    kept connections. `clients`: closed loop, each sends its next request when its last one ended; arrivals only end it.
    """

    max_in_flight: int = 1024
    keepalive_share: float = 0.0
    drain_seconds: float = 600.0
    seed: int = 0
    clients: int | None = None


class Replay:
    """One run. `on_record` is called once per request, in order of ending; an error it raises ends the run."""

    def __init__(
        self,
        client: Client,
        options: ReplayOptions,
        on_record: Callable[[Record], None],
        clock: Callable[[], float],
        stop: asyncio.Event,
    ) -> None:
        self._client, self._options, self._on_record, self._clock, self._stop = client, options, on_record, clock, stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None
        self._over = False
        self.sent = 0

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    async def run(self, requests: Sequence[Request]) -> None:
        """Returns when all have ended, `stop` was set, or the drain time after the last arrival is over; what is open
        then is `unfinished`.
        """
        try:
            if self._options.clients is None:
                await self._on_time(requests)
            else:
                await self._in_turn(requests, self._options.clients)
            await self._open_end_within(self._options.drain_seconds)
        finally:
            await self._cancel_open()
        if self._error is not None:
            raise self._error

    async def _on_time(self, requests: Sequence[Request]) -> None:
        start, rng = self._clock(), random.Random(f"{self._options.seed}:keepalive")
        for number, request in enumerate(requests):
            arrival_at = start + request.arrival_seconds
            keepalive = rng.random() < self._options.keepalive_share
            if await self._stopped_within(arrival_at - self._clock()):
                return
            self._launch(request, number, arrival_at, keepalive)

    async def _in_turn(self, requests: Sequence[Request], clients: int) -> None:
        """Until the last arrival's time; a trace that is too short for it begins again. Who is refused waits a while:
        an answer at once would make a closed loop a flood."""
        start, rng, numbers = self._clock(), random.Random(f"{self._options.seed}:keepalive"), itertools.count()
        seconds = requests[-1].arrival_seconds if requests else 0.0

        async def client() -> None:
            while not self._over and not self._stop.is_set() and (began := self._clock()) - start <= seconds:
                number, keepalive = next(numbers), rng.random() < self._options.keepalive_share
                self.sent += 1
                await self._one(requests[number % len(requests)], number, began, keepalive)
                if self._clock() - began < _REFUSED_SECONDS:
                    await self._stopped_within(_REFUSED_SECONDS)

        self._tasks = {asyncio.create_task(client()) for _ in range(clients if requests else 0)}
        await self._open_end_within(seconds)

    def _launch(self, request: Request, number: int, arrival_at: float, keepalive: bool) -> None:
        if len(self._tasks) >= self._options.max_in_flight:
            self._report(_not_sent(request, number, arrival_at, self._clock(), keepalive))
            return
        self.sent += 1
        task = asyncio.create_task(self._one(request, number, arrival_at, keepalive))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, request: Request, number: int, arrival_at: float, keepalive: bool) -> None:
        self._report(await self._client.send(request, number, arrival_at, keepalive))

    def _report(self, record: Record) -> None:
        try:
            self._on_record(record)
        except Exception as error:  # noqa: BLE001 - kept, and raised by run(): a task's own error would go unseen
            self._error = self._error or error
            self._stop.set()

    async def _stopped_within(self, seconds: float) -> bool:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        elif self._tasks:
            await asyncio.sleep(0)  # behind time: let the answers be read between the sends
        return self._stop.is_set()

    async def _open_end_within(self, seconds: float) -> None:
        """Wait for what is open, so long at most, or until `stop`."""
        if self._tasks and not self._stop.is_set():
            stop, everything = asyncio.create_task(self._stop.wait()), asyncio.create_task(asyncio.wait(self._tasks))
            await asyncio.wait({stop, everything}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for waiting in (stop, everything):
                waiting.cancel()
            await asyncio.gather(stop, everything, return_exceptions=True)

    async def _cancel_open(self) -> None:
        await asyncio.sleep(0)  # a task cancelled before its first step would leave no Record
        self._over = True
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _not_sent(request: Request, number: int, arrival_at: float, now: float, keepalive: bool) -> Record:
    return Record(
        number=number,
        arrival_at=arrival_at,
        sent_at=None,
        first_token_at=None,
        last_token_at=None,
        ended_at=now,
        prompt_tokens=request.prompt_tokens,
        planned_tokens=request.planned_tokens,
        max_tokens=request.max_tokens,
        tokens=0,
        ending="not_sent",
        cause="max_in_flight",
        keepalive=keepalive,
    )
