"""One whole `trimtab tune`: what was left by a killed run is ended, everything is started, and everything is ended."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from trimtab.errors import InputError, TrimtabError
from trimtab.load.records import read_records
from trimtab.observe.scrape import ScrapeSource
from trimtab.plan.spec import TunerSpec
from trimtab.tune.argv import CommandLine
from trimtab.tune.frontdoor import WAIT_FOR_READY_SECONDS, FrontDoor
from trimtab.tune.guard import locked, signals
from trimtab.tune.load import LoadProcess
from trimtab.tune.local import LocalOptions, ProcessTarget
from trimtab.tune.loop import TICK_SECONDS, Loop
from trimtab.tune.process import end_leftover
from trimtab.tune.proposals import Proposals
from trimtab.tune.show import Display, print_result, result_json
from trimtab.tune.state import State, Store

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile

Json = dict[str, Any]
_READY_POLL_SECONDS: Final = 0.1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionOptions:
    """`load`: options of `trimtab load`, None for no built-in load. `environ`: added to what the engines inherit.

    profile: of the command, calibrated; None: made from the baseline's metrics where they suffice, if `calibrate`, and
    else no candidate is simulated.
    """

    command: Sequence[str]
    spec: TunerSpec
    state: Path
    replicas: int = 2
    listen: tuple[str, int] = ("127.0.0.1", 0)
    load: Sequence[str] | None = None
    environ: Mapping[str, str] | None = None
    drain_seconds: float = 60.0
    stop_seconds: float = 30.0
    tick_seconds: float = TICK_SECONDS
    seed: int = 0
    profile: Profile | None = None
    calibrate: bool = True

    @property
    def folder(self) -> Path:
        """Logs and records lie beside the state file."""
        return self.state.with_suffix(".d")


@dataclass(frozen=True)
class SessionResult:
    """`command`: the best one found, for a shell. `result`: what --json writes."""

    interrupted: bool
    state: State
    command: str
    result: Json


async def run_session(options: SessionOptions, console: Console) -> SessionResult:
    """Tune until converged or interrupted (SIGINT, SIGTERM, SIGHUP). Nothing that was started is left behind.

    TrimtabError where it cannot go on; the state file then holds what was done.
    """
    command = CommandLine.read(options.command)
    store = Store(options.state)
    with locked(options.state), signals() as stop:
        state, note = await asyncio.to_thread(_state, store, options, command)
        if note:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        session = _Session(options, command, store, state, console)
        try:
            interrupted = await session.run(stop)
        finally:
            await session.close()
            best = command.paste_ready(state.template)
            load = _load_counts(session.load) if session.load is not None else None
            print_result(console, state, best, _load_text(load))
        return SessionResult(interrupted, state, best, result_json(state, best, load, options.spec))


class _Session:
    """The parts and their order of start and end."""

    def __init__(
        self, options: SessionOptions, command: CommandLine, store: Store, state: State, console: Console
    ) -> None:
        self._options, self._command, self._store, self._state = options, command, store, state
        self._console = console
        # one engine alone: its clients wait while it is started anew
        alone = options.spec.rollout.progress_deadline_seconds if options.replicas == 1 else WAIT_FOR_READY_SECONDS
        self._door = FrontDoor(*options.listen, options.seed, wait_seconds=alone)
        local = LocalOptions(
            options.replicas, options.drain_seconds, options.stop_seconds, options.folder,
            {**os.environ, **(options.environ or {})},
        )  # fmt: skip
        self._target = ProcessTarget(command, local, self._door, self._note_processes)
        direct = options.spec.metrics.direct
        assert direct is not None  # build_spec: no other source
        self._source = ScrapeSource(direct.interval_seconds, direct.timeout_seconds)
        self.load: LoadProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, stop: asyncio.Event) -> bool:
        """Whether it was interrupted."""
        try:
            await self._door.start()
        except OSError as error:
            raise InputError("--listen", f"cannot listen ({error.strerror})", "Choose another port.") from error
        await self._target.start(self._state.template)
        proposals = Proposals(None, self._options.profile or self._kept_profile())
        loop = Loop(
            self._options.spec, self._target, self._source, proposals, self._store, self._state,
            tick_seconds=self._options.tick_seconds, calibrate=self._options.calibrate, on_profile=self._keep_profile,
        )  # fmt: skip
        with Display(self._console, self._options.spec, self._header()) as display:
            loop.on_tick = display.tick
            tuning = asyncio.create_task(loop.run())
            self._tasks = [tuning, asyncio.create_task(_wait(stop))]
            if self._options.load is not None:
                self._tasks.append(asyncio.create_task(self._load(self._options.load)))
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        return tuning not in done

    @property
    def _profile_file(self) -> Path:
        return self._options.folder / "profile.json"

    def _keep_profile(self, profile: Profile) -> None:
        self._profile_file.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")

    def _kept_profile(self) -> Profile | None:
        """What this run calibrated before it was killed."""
        if not self._options.calibrate or not self._state.trials or not self._profile_file.exists():
            return None
        from trimtab.simulate.profile import load_profile  # with numba behind it

        return load_profile(self._profile_file)

    def _header(self) -> str:
        count, folder = self._options.replicas, self._options.folder
        return f"trimtab tune: {count} replicas behind {self._door.url}; logs in {folder}"

    async def _load(self, args: Sequence[str]) -> None:
        """Started once every replica answers, so that none begins with the load of the others."""
        while True:
            if len(self._target.ready_refs()) == self._options.replicas:
                break
            await asyncio.sleep(_READY_POLL_SECONDS)
        self.load = LoadProcess(self._door.url, args, self._options.folder, self._note_processes)
        await self.load.run()

    def _note_processes(self) -> None:
        children = [r.child for r in self._target.replicas if r.child is not None]
        running = [c.identity for c in children if c.exit_code is None]
        self._state.processes = running + (self.load.identities() if self.load is not None else [])
        self._store.save(self._state)

    async def close(self) -> None:
        """Load first, so that it sees no engine go; then engines, then the door."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.load is not None:
            await self.load.stop()
        await self._target.close()
        await self._door.close()
        self._source.close()
        self._state.processes = []
        self._store.save(self._state)


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


def _state(store: Store, options: SessionOptions, command: CommandLine) -> tuple[State, str]:
    """The state to go on from, and what to tell about it. Ends processes that a killed run left."""
    fresh = State(list(options.command), options.replicas, command.template)
    old = store.load()
    if old is None:
        return fresh, ""
    ended = sum(end_leftover(p) for p in old.processes)
    left = f"ended {ended} processes that an earlier run left; " if ended else ""
    if old.done or old.command != fresh.command or old.replicas != fresh.replicas:
        fresh = old.anew(fresh.command, fresh.replicas, fresh.template)
        return fresh, f"{left}starting anew".capitalize() if left else ""
    active = old.active
    trial = f"; {active.name} was in flight and is rolled back" if active is not None else ""
    text = f"{left}going on after {sum(t.ended for t in old.trials)} finished trials{trial}"
    return old, text[0].upper() + text[1:]


def _load_counts(load: LoadProcess) -> Json | None:
    """Endings of the load's requests so far; None when no record can be read."""
    try:
        records = read_records(load.records)
    except TrimtabError as error:
        _log.warning("%s", error)
        return None
    return {
        "requests": len(records),
        "endings": dict(Counter(r.ending for r in records)),
        "failed_by_cause": dict(Counter(r.cause or "unknown" for r in records if r.ending == "failed")),
    }


def _load_text(load: Json | None) -> str:
    if not load:
        return ""
    endings = ", ".join(f"{count} {name}" for name, count in sorted(load["endings"].items()))
    return f"The load sent {load['requests']} requests: {endings}."
