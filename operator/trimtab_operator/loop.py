"""When each tuner is reconciled: after an event, and when its last pass asked for it. One pass per tuner at a time.

Kopf's timers and daemons would put a finalizer on every VLLMTuner for ever, and an uninstalled operator would leave
namespaces that
cannot be deleted; so events only poke this loop, and our own finalizer is there only while a trial is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from trimtab.errors import TargetConflict, TrimtabError
from trimtab_operator.lease import Lease
from trimtab_operator.telemetry import Telemetry

Key = tuple[str, str]
_log = logging.getLogger(__name__)
#: passes that run at the same time; each is mostly waiting for the API server or Prometheus
_PARALLEL: Final = 8
_UNEXPECTED_RETRY_SECONDS: Final = 15.0
_RESYNC_SECONDS: Final = 60.0


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
    beat: float = 0.0

    def poke(self, namespace: str, name: str) -> None:
        """Something about this tuner changed: look soon."""
        key = (namespace, name)
        self.due[key] = self.monotonic()
        if key in self.running:
            self.poked.add(key)

    async def run(self) -> None:
        """Until cancelled. Also keeps the lease; without it nothing is reconciled."""
        slots = asyncio.Semaphore(_PARALLEL)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_lease())
            tasks.create_task(self._resync())
            while True:
                now = self.monotonic()
                self.beat = now
                if self.lease.held:
                    for key in [k for k, at in self.due.items() if at <= now and k not in self.running]:
                        self.running.add(key)
                        tasks.create_task(self._pass(key, slots))
                await asyncio.sleep(0.1)

    async def _resync(self) -> None:
        while True:
            try:
                for key in await asyncio.to_thread(self.tuners):
                    self.due.setdefault(key, self.monotonic())
            except TrimtabError as error:
                _log.warning("resync: %s", error)
            await asyncio.sleep(_RESYNC_SECONDS)

    async def _keep_lease(self) -> None:
        while True:
            held = await asyncio.to_thread(self.lease.try_hold)
            self.telemetry.leader.set(1 if held else 0)
            await asyncio.sleep(self.lease.renew_seconds if held else 1.0)

    async def _pass(self, key: Key, slots: asyncio.Semaphore) -> None:
        """One pass; every error ends here, becomes a log line and a delay."""
        delay: float | None = _UNEXPECTED_RETRY_SECONDS
        async with slots:
            try:
                with self.telemetry.reconcile_seconds.time():
                    delay = await asyncio.to_thread(self.reconcile, *key)
            except TargetConflict as error:
                delay = error.retry_seconds
                _log.debug("%s/%s: %s", *key, error)
            except TrimtabError as error:
                delay = error.retry_seconds if error.retry_seconds is not None else 60.0
                self.telemetry.errors.labels(error.reason).inc()
                _log.warning("%s/%s: %s: %s %s Again in %.0f s.", *key, error.reason, error, error.hint, delay)
            except Exception:  # noqa: BLE001 - a bug must not stop the other tuners' safety; it is logged and counted
                self.telemetry.errors.labels("Unexpected").inc()
                _log.exception("%s/%s: unexpected error; again in %.0f s", *key, _UNEXPECTED_RETRY_SECONDS)
        self.running.discard(key)
        if key in self.poked:
            self.poked.discard(key)
            self.due[key] = self.monotonic()
        elif delay is None:
            self.due.pop(key, None)
        else:
            self.due[key] = self.monotonic() + delay
