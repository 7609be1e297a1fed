"""`trimtab tune --simulate PROFILE`: a whole tuning in virtual time, in seconds: what the real one would try and find.

The plan, the search and the judge are the real ones. Hazard: it is as right as the profile is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from trimtab.plan.spec import TunerSpec
from trimtab.simulate.profile import Profile
from trimtab.tune.argv import CommandLine
from trimtab.tune.loop import Loop
from trimtab.tune.proposals import Proposals
from trimtab.tune.session import SessionResult
from trimtab.tune.show import Display, print_result, result_json
from trimtab.tune.simulated import SimulatedTarget, Simulation
from trimtab.tune.state import State, Store

#: virtual time between two looks of the loop: ten times the real one's, which costs most of the seconds
TICK_SECONDS: Final = 5.0
#: after so much virtual time something is wrong with the spec
MOST_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True)
class DryRun:
    """profile: what is simulated. screen: of the search, None: nothing is simulated before it is tried. command: as a
    person would start the engine, empty: made from the profile. Seconds: of a start of the engine. calibrate: from the
    simulated baseline's metrics where `screen` is None."""

    profile: Profile
    spec: TunerSpec
    command: Sequence[str] = ()
    screen: Profile | None = None
    replicas: int = 2
    start_seconds: float = 60.0
    seed: int = 0
    calibrate: bool = False


class _Nowhere(Store):
    """A dry run leaves nothing behind."""

    def __init__(self) -> None:
        super().__init__(Path())

    def save(self, state: State) -> None:
        """Nothing is kept."""


async def dry_run(run: DryRun, console: Console, at_start: float | None = None) -> SessionResult:
    """`at_start`: virtual unix seconds of the beginning, None: now. TrimtabError where it cannot go on."""
    command = CommandLine.read(run.command or command_of(run.profile))
    target = SimulatedTarget(command.template, simulation_of(run), time.time() if at_start is None else at_start)
    state = State(list(run.command or command_of(run.profile)), run.replicas, command.template)
    began = target.now

    async def sleep(seconds: float) -> None:
        target.advance(seconds)

    header = f"trimtab tune --simulate: {run.replicas} simulated replicas; times are virtual"
    with Display(console, run.spec, header, clock=lambda: target.now) as display:
        loop = Loop(
            run.spec, target, target.source, Proposals(None, run.screen), _Nowhere(), state, display.tick,
            clock=lambda: target.now, sleep=sleep, tick_seconds=TICK_SECONDS, calibrate=run.calibrate,
        )  # fmt: skip
        await loop.run()
    best = command.paste_ready(state.template)
    print_result(console, state, best, "")
    minutes = (target.now - began) / 60
    console.print(f"On engines this would have taken {minutes:.0f} minutes and {_restarts(state)} restarts.")
    result = {**result_json(state, best, None, run.spec), "simulated": True, "minutes": minutes}
    return SessionResult(False, state, best, result)


def simulation_of(run: DryRun) -> Simulation:
    return Simulation(
        run.profile.engine, run.profile.times, _load(run.profile, run.replicas, run.seed), run.replicas,
        run.start_seconds, seed=run.seed,
    )  # fmt: skip


def _load(profile: Profile, replicas: int, seed: int) -> Callable[[int, float], Any]:
    """A profile is of one engine."""
    return lambda piece, seconds: profile.load(seconds, seed * 1_000_003 + piece, scale=replicas)


def command_of(profile: Profile) -> list[str]:
    """The settings that are searched, as flags: as the profile has them."""
    engine = profile.engine
    caching = "--enable-prefix-caching" if engine.enable_prefix_caching else "--no-enable-prefix-caching"
    return [
        "vllm", "serve", "MODEL", f"--max-num-seqs={engine.max_num_seqs}",
        f"--max-num-batched-tokens={engine.max_num_batched_tokens}", caching,
    ]  # fmt: skip


def _restarts(state: State) -> int:
    return sum(t.restarts for t in state.trials)
