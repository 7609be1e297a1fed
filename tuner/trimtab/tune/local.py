"""`ProcessTarget`: replicas of an engine as processes of this machine, behind the front door.

One replica is replaced at a time: out of the front door, its connections end (bounded), SIGTERM, wait, SIGKILL, start.
A baseline replica that dies by itself is started again, as Kubernetes would; a canary that dies is evidence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from trimtab.errors import TargetError
from trimtab.judge.guardrail import last_words
from trimtab.tune.argv import CommandLine
from trimtab.tune.frontdoor import FrontDoor
from trimtab.tune.process import Child
from trimtab.tune.replica import Replica, free_port
from trimtab.tune.slots import Slot, SlotTarget

#: starts of a baseline that fail in a row before the run gives up, and the pause before each further one
_MAX_FAILED_STARTS: Final = 3
_RESTART_PAUSE_SECONDS: Final = 1.0
_HEALTH_TIMEOUT_SECONDS: Final = 2.0
#: health checks in a row that an engine that served may miss, as Kubernetes' failureThreshold: a busy machine makes it
#: late, and a replica that counts as gone ends a trial
_MISSED_CHECKS: Final = 3
_LOG_BYTES: Final = 64 << 20
_log = logging.getLogger(__name__)


def _nothing() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class LocalOptions:
    """Bounds in seconds of a graceful replacement; `environ` is what the engines get."""

    replicas: int
    drain_seconds: float
    stop_seconds: float
    folder: Path
    environ: Mapping[str, str] | None = None


class ProcessTarget(SlotTarget):
    """A `trimtab.tune.target.Target`. `on_processes` is called after every start, to write identities down."""

    def __init__(
        self, command: CommandLine, options: LocalOptions, door: FrontDoor, on_processes: Callable[[], None] = _nothing
    ) -> None:
        super().__init__(command.template)
        self.command, self.options, self.door, self.on_processes = command, options, door, on_processes
        self.replicas: list[Replica] = []
        self._step: asyncio.Task[None] | None = None
        self._http: aiohttp.ClientSession | None = None

    # --- life ---------------------------------------------------------------------------------------------------------
    async def start(self, template: Mapping[str, Any] | None = None) -> None:
        """Start every replica with the baseline (or with `template`, the baseline of an earlier run)."""
        self._baseline = template or self._baseline
        timeout = aiohttp.ClientTimeout(total=_HEALTH_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(force_close=True)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        self.replicas = [Replica(slot, self._baseline) for slot in range(self.options.replicas)]
        for replica in self.replicas:
            await self._spawn(replica)

    async def close(self) -> None:
        """End every process. Nothing that was started is left."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        children = [r.child for r in self.replicas if r.child is not None]
        try:
            await asyncio.gather(*(c.stop(self.options.stop_seconds) for c in children))
        finally:
            for child in children:  # a second Ctrl-C cuts the waiting, not this
                child.kill()
        if self._http is not None:
            await self._http.close()

    # --- Target -------------------------------------------------------------------------------------------------------
    @property
    def slots(self) -> Sequence[Slot]:
        return self.replicas

    @property
    def busy(self) -> bool:
        return self._step is not None

    async def look(self, now: float) -> None:
        """Readiness by /health; replicas of the baseline that died are started again."""
        if self._step is not None and self._step.done():
            step, self._step = self._step, None
            step.result()  # a failed step is not to be retried silently
        await asyncio.gather(*(self._probe(r) for r in self.replicas))
        self._open_doors()
        if self._step is None:
            fallen = next((r for r in self.replicas if r.dead and not r.candidate), None)
            if fallen is not None:
                self._revive(fallen)
        self.note_settled(now)

    def replace(self, slot: Slot, template: Mapping[str, Any], *, candidate: bool) -> None:
        self._step = asyncio.create_task(self._replace(self.replicas[slot.slot], template, candidate=candidate))

    # --- steps --------------------------------------------------------------------------------------------------------
    async def _replace(self, replica: Replica, template: Mapping[str, Any], *, candidate: bool) -> None:
        replica.draining = True
        self._open_doors()
        await self._end(replica)
        replica.template, replica.candidate = template, candidate
        replica.failed_starts = 0
        await self._spawn(replica)

    async def _end(self, replica: Replica) -> None:
        child = replica.child
        if child is None:
            return
        if not replica.dead and not await self.door.drained(replica.name, self.options.drain_seconds):
            open_ = self.door.connections(replica.name)
            _log.warning("%s still has %d connections after the drain time; it is ended", replica.name, open_)
        await child.stop(self.options.stop_seconds)

    async def _spawn(self, replica: Replica) -> None:
        replica.port = free_port()
        replica.starts += 1
        replica.ready = replica.was_ready = False
        replica.missed = 0
        argv = self.command.argv(replica.template, replica.port)
        log = self.options.folder / f"replica-{replica.slot}.log"
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.unlink()
        replica.child = await Child.start(argv, log, self.options.environ)
        replica.draining = False
        self.note_port(replica)
        self.on_processes()
        _log.info("%s: pid %d: %s", replica.name, replica.child.identity.pid, " ".join(argv))

    def _revive(self, replica: Replica) -> None:
        replica.failed_starts = 1 if replica.was_ready else replica.failed_starts + 1
        if replica.failed_starts >= _MAX_FAILED_STARTS:
            pod = replica.pod().health
            last = last_words(pod.last_log)
            raise TargetError(
                f"the engine ended with code {pod.exit_code} {replica.failed_starts} times in a row: {last}",
                hint="Run the command by itself first; the log is in the state folder.",
            )
        self._step = asyncio.create_task(self._again(replica))

    async def _again(self, replica: Replica) -> None:
        await asyncio.sleep(_RESTART_PAUSE_SECONDS)
        await self._end(replica)
        await self._spawn(replica)

    async def _probe(self, replica: Replica) -> None:
        running = not replica.dead and replica.child is not None
        answers = running and await self._healthy(replica.port)
        replica.missed = 0 if answers else replica.missed + 1
        replica.ready = answers or (running and replica.ready and replica.missed < _MISSED_CHECKS)
        replica.was_ready = replica.was_ready or replica.ready

    async def _healthy(self, port: int) -> bool:
        assert self._http is not None
        try:
            async with self._http.get(f"http://127.0.0.1:{port}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _open_doors(self) -> None:
        self.door.set_ready({r.name: r.port for r in self.replicas if r.ready and not r.draining})
