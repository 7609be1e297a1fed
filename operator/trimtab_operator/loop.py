"""When each tuner is reconciled: after an event, and when its last pass asked for it. One pass per tuner at a time.

Kopf's timers and daemons would put a finalizer on every VLLMTuner for ever, and an uninstalled operator would leave
namespaces that
cannot be deleted; so events only poke this loop, and our own finalizer is there only while a trial is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from trimtab.errors import TargetConflict, TrimtabError
from trimtab_operator.lease import Lease
from trimtab_operator.telemetry import Telemetry

Key = tuple[str, str]
_log = logging.getLogger(__name__)
#: passes that run at the same time; each is mostly waiting for the API server or Prometheus
_PARALLEL: Final = 8
#: of these, threads that urgent passes leave free
_FOR_IDLE: Final = 2
_UNEXPECTED_RETRY_SECONDS: Final = 15.0
_RESYNC_SECONDS: Final = 60.0
#: a pass that asks for the next one sooner than this has a trial in flight or a policy on its way: it is never put off
_URGENT_SECONDS: Final = 5.0
#: after an error of a pass whose tuner has a trial in flight: what serves untried settings is looked at again soon,
#: whatever the error says. Below _URGENT_SECONDS
_RETRY_IN_TRIAL_SECONDS: Final = 4.0
#: all other looks together, per second and evenly: with more tuners each is looked at less often (500: every 100 s), so
#: that calls, CPU and memory stay bounded and trials are not kept waiting. docs/faults.md has the measurement
_IDLE_LOOKS_PER_SECOND: Final = 5.0


@dataclass
class Loop:
    """`reconcile(namespace, name)` blocks and returns the seconds until the next pass, or None to forget the tuner."""

    reconcile: Callable[[str, str], float | None]
    #: every tuner there is: asked now and then, so that a watch that died silently delays a tuner but never hides it
    tuners: Callable[[], list[Key]]
    lease: Lease
    telemetry: Telemetry
    monotonic: Callable[[], float]
    due: dict[Key, float] = field(default_factory=dict)
    running: set[Key] = field(default_factory=set)
    poked: set[Key] = field(default_factory=set)
    #: those that go first: a trial is in flight
    urgent: set[Key] = field(default_factory=set)
    #: those whose last pass had nothing to hurry for, and of which nothing was heard since
    calm: set[Key] = field(default_factory=set)
    #: when the next of these may be looked at
    next_calm: float = 0.0
    beat: float = 0.0
    stopping: bool = False

    def poke(self, namespace: str, name: str, *, urgent: bool = False) -> None:
        """Something about this tuner changed: look soon. urgent: before others."""
        key = (namespace, name)
        self.due[key] = self.monotonic()
        self.calm.discard(key)
        if urgent:
            self.urgent.add(key)
        if key in self.running:
            self.poked.add(key)

    async def run(self) -> None:
        """Until cancelled. Also keeps the lease; without it nothing is reconciled."""
        # threads of its own for the lease: passes that wait for a slow API server must not keep it from being renewed
        passes, upkeep = ThreadPoolExecutor(_PARALLEL, "pass"), ThreadPoolExecutor(2, "upkeep")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_lease(upkeep))
                tasks.create_task(self._resync(upkeep))
                while True:
                    now = self.monotonic()
                    self.beat = now
                    if self.lease.held and not self.stopping:
                        for key in self._next(now):
                            self.running.add(key)
                            tasks.create_task(self._pass(key, passes))
                    await asyncio.sleep(0.1)
        finally:
            for pool in (passes, upkeep):
                pool.shutdown(wait=False, cancel_futures=True)

    async def drain(self, seconds: float) -> None:
        """Begin no more passes and wait for those under way, so that a stop cuts none in two; at most so long."""
        self.stopping = True
        end = self.monotonic() + seconds
        while self.running and self.monotonic() < end:  # noqa: ASYNC110 - plain data, changed by tasks of this loop
            await asyncio.sleep(0.05)

    def _next(self, now: float) -> list[Key]:
        """What to begin now: urgent ones first, then those due the longest, as many as there are free threads; some
        threads are kept for those that are not urgent, or many trials would keep a new tuner waiting for ever. Of the
        calm ones one at a time: looked at together once, they would come due together ever after.
        """
        ready = sorted(
            (k for k, at in self.due.items() if at <= now and k not in self.running), key=self.due.__getitem__
        )
        free = max(0, _PARALLEL - len(self.running))
        hasty = [k for k in ready if k in self.urgent]
        hasty = hasty[: max(0, _PARALLEL - _FOR_IDLE - len(self.running & self.urgent))]
        begun = [*hasty, *(k for k in ready if k not in self.urgent and k not in self.calm)][:free]
        calm = next((k for k in ready if k in self.calm), None)
        if calm is not None and len(begun) < free and now >= self.next_calm:
            self.next_calm = max(self.next_calm, now - 1 / _IDLE_LOOKS_PER_SECOND) + 1 / _IDLE_LOOKS_PER_SECOND
            begun.append(calm)
        return begun

    async def _resync(self, pool: ThreadPoolExecutor) -> None:
        while True:
            try:
                for key in await asyncio.get_running_loop().run_in_executor(pool, self.tuners):
                    self.due.setdefault(key, self.monotonic())
                self.telemetry.tuners.set(len(self.due))
            except TrimtabError as error:
                _log.warning("resync: %s", error)
            await asyncio.sleep(_RESYNC_SECONDS)

    async def _keep_lease(self, pool: ThreadPoolExecutor) -> None:
        while True:
            held = await asyncio.get_running_loop().run_in_executor(pool, self.lease.try_hold)
            self.telemetry.leader.set(1 if held else 0)
            await asyncio.sleep(self.lease.renew_seconds if held else 1.0)

    async def _pass(self, key: Key, pool: ThreadPoolExecutor) -> None:
        """One pass; every error ends here, becomes a log line and a delay."""
        delay = self._retry(key, _UNEXPECTED_RETRY_SECONDS)
        try:
            asked = await asyncio.get_running_loop().run_in_executor(pool, self._timed, key)
            self._settle(key, asked)
            return
        except TrimtabError as error:
            delay = self._retry(key, error.retry_seconds if error.retry_seconds is not None else 60.0)
            if isinstance(error, TargetConflict):
                _log.debug("%s/%s: %s", *key, error)
            else:
                self.telemetry.errors.labels(error.reason).inc()
                _log.warning("%s/%s: %s: %s %s Again in %.0f s.", *key, error.reason, error, error.hint, delay)
        except Exception:  # noqa: BLE001 - a bug must not stop the other tuners' safety; it is logged and counted
            self.telemetry.errors.labels("Unexpected").inc()
            _log.exception("%s/%s: unexpected error; again in %.0f s", *key, delay)
        self._settle(key, delay)

    def _retry(self, key: Key, seconds: float) -> float:
        return min(seconds, _RETRY_IN_TRIAL_SECONDS) if key in self.urgent else seconds

    def _timed(self, key: Key) -> float | None:
        with self.telemetry.reconcile_seconds.time():
            return self.reconcile(*key)

    def _settle(self, key: Key, delay: float | None) -> None:
        """When the tuner is due again."""
        self.running.discard(key)
        hasty = delay is not None and delay < _URGENT_SECONDS
        (self.urgent.add if hasty else self.urgent.discard)(key)
        self.calm.discard(key)
        if key in self.poked:
            self.poked.discard(key)
            self.due[key] = self.monotonic()
        elif delay is None:
            self.due.pop(key, None)
        else:
            if not hasty:
                self.calm.add(key)
            self.due[key] = self.monotonic() + delay
