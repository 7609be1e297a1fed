"""`ProcessTarget`: replicas of an engine as processes of this machine, behind the front door.

One replica is replaced at a time: out of the front door, its connections end (bounded), SIGTERM, wait, SIGKILL, start.
A baseline replica that dies by itself is started again, as Kubernetes would; a canary that dies is evidence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from trimtab.errors import EngineError, InputError, TargetError
from trimtab.judge.guardrail import last_words
from trimtab.observe.samples import PodRef
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Desired, PodView, TargetView, Template
from trimtab.tune.argv import CommandLine, configuration_of
from trimtab.tune.frontdoor import FrontDoor
from trimtab.tune.process import Child
from trimtab.tune.replica import Replica, free_port

Json = dict[str, Any]
NAMESPACE: Final = "local"
#: starts of a baseline that fail in a row before the run gives up, and the pause before each further one
_MAX_FAILED_STARTS: Final = 3
_RESTART_PAUSE_SECONDS: Final = 1.0
_HEALTH_TIMEOUT_SECONDS: Final = 2.0
_LOG_BYTES: Final = 64 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalOptions:
    """Bounds in seconds of a graceful replacement; `environ` is what the engines get."""

    replicas: int
    drain_seconds: float
    stop_seconds: float
    folder: Path
    environ: Mapping[str, str] | None = None


@dataclass
class ProcessTarget:
    """A `trimtab.tune.target.Target`. `on_processes` is called after every start, to write identities down."""

    command: CommandLine
    options: LocalOptions
    door: FrontDoor
    on_processes: Callable[[], None] = lambda: None
    replicas: list[Replica] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._baseline: Mapping[str, Any] = self.command.template
        self._candidate: Mapping[str, Any] | None = None
        self._whose = Template.BASELINE
        self._paused = self._held = False
        self._step: asyncio.Task[None] | None = None
        self._settled_since: float | None = None
        self._http: aiohttp.ClientSession | None = None
        self._ports: dict[str, int] = {}

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
    def template(self) -> Mapping[str, Any]:
        return self._baseline

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
        if not self._all_ready() or self._step is not None:
            self._settled_since = None
        elif self._settled_since is None:
            self._settled_since = now

    def view(self) -> TargetView:
        return TargetView(
            template=self._whose,
            paused=self._paused,
            held=self._held,
            replicas=len(self.replicas),
            settled=self._all_ready() and self._step is None and not self._missing(),
            canary=tuple(r.pod() for r in self.replicas if r.candidate),
            control=tuple(r.pod() for r in self.replicas if not r.candidate),
        )

    def fleet(self, now: float) -> FleetView:
        try:
            configuration, problem = configuration_of(self._baseline), ""
        except (EngineError, InputError) as error:
            configuration, problem = None, error.told
        since = self._settled_since
        return FleetView(
            exists=True,
            replicas=len(self.replicas),
            settled=since is not None,
            stable_seconds=now - since if since is not None else 0.0,
            engine_problem=problem,
            configuration=configuration,
        )

    def ref(self, pod: PodView) -> PodRef:
        return PodRef(pod.name, NAMESPACE, pod.ip, self._ports[pod.name])

    def ready_refs(self) -> list[PodRef]:
        return [PodRef(r.name, NAMESPACE, "127.0.0.1", r.port) for r in self.replicas if r.ready and not r.draining]

    def begin(self, candidate: Mapping[str, Any]) -> None:
        self._candidate = candidate

    def drive(self, wanted: Desired) -> None:
        if wanted is Desired.HOLD:
            self._whose, self._held, self._paused = Template.CANDIDATE, True, True
        elif wanted in (Desired.PROMOTE, Desired.RESTORE):
            self._paused = False
            self._whose = Template.CANDIDATE if wanted is Desired.PROMOTE else Template.BASELINE
        else:
            return
        if self._step is not None:
            return
        replica = self._next(wanted)
        if replica is not None:
            self._step = asyncio.create_task(self._replace(replica, candidate=wanted is not Desired.RESTORE))
        elif wanted is not Desired.HOLD and self._all_ready():
            self._held = False

    def adopt(self) -> None:
        assert self._candidate is not None
        self._baseline, self._candidate, self._whose = self._candidate, None, Template.BASELINE
        for replica in self.replicas:
            replica.candidate = False

    # --- steps --------------------------------------------------------------------------------------------------------
    def _next(self, wanted: Desired) -> Replica | None:
        """The replica to replace now. Never a second one while another is not ready; a broken one goes first."""
        if wanted is Desired.HOLD:
            return None if any(r.candidate for r in self.replicas) else self.replicas[-1]
        missing = sorted(self._missing(), key=lambda r: (r.ready, r.slot))
        if not missing or (missing[0].ready and not self._all_ready()):
            return None
        return missing[0]

    def _missing(self) -> list[Replica]:
        """Replicas that do not run the template that the target has now. While held, that is meant."""
        if self._paused:
            return []
        return [r for r in self.replicas if r.candidate is not (self._whose is Template.CANDIDATE)]

    async def _replace(self, replica: Replica, *, candidate: bool) -> None:
        template = self._candidate if candidate else self._baseline
        assert template is not None
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
        argv = self.command.argv(replica.template, replica.port)
        log = self.options.folder / f"replica-{replica.slot}.log"
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.unlink()
        replica.child = await Child.start(argv, log, self.options.environ)
        replica.draining = False
        self._ports[replica.name] = replica.port
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
        replica.ready = not replica.dead and replica.child is not None and await self._healthy(replica.port)
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

    def _all_ready(self) -> bool:
        return all(r.ready and not r.draining for r in self.replicas)
