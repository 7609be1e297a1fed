"""What every `Target` on this machine does when it is driven, processes of the emulator and simulated engines alike."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulated_worlds import profile
from trimtab.engine.rewrite import rewrite
from trimtab.observe.samples import MetricsSource
from trimtab.observe.scrape import ScrapeSource
from trimtab.plan.record import Desired, TargetView, Template
from trimtab.tune.argv import CommandLine
from trimtab.tune.frontdoor import FrontDoor
from trimtab.tune.local import LocalOptions, ProcessTarget
from trimtab.tune.simulated import SimulatedTarget, Simulation
from trimtab.tune.slots import SlotTarget

COMMAND = ["trimtab", "emulate", "serve", "tiny", "--max-num-seqs", "4"]
ENVIRONMENT = {"EMULATE_START_SECONDS": "0.05", "EMULATE_CRASH_IF": "max_num_seqs>200"}


@dataclass
class Driven:
    """`tick`: lets time pass and looks. `source`: of its metrics."""

    target: SlotTarget
    tick: Callable[[], Awaitable[None]]
    source: MetricsSource

    async def until(self, wanted: Desired, reached: Callable[[TargetView], bool], ticks: int = 400) -> TargetView:
        for _ in range(ticks):
            await self.tick()
            self.target.drive(wanted)
            view = self.target.view()
            if reached(view):
                return view
        raise AssertionError(f"not reached: {view}")


@pytest.fixture(params=[pytest.param("processes", marks=pytest.mark.slow), "simulated"])
async def driven(request: Any, tmp_path: Path, compiled_scheduler: None) -> AsyncIterator[Callable[[int], Any]]:
    """`await driven(replicas)`: a target whose places all serve."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def made(replicas: int) -> Driven:
        if request.param == "processes":
            found, close = await _processes(replicas, tmp_path)
            closing.append(close)
        else:
            found = _simulated(replicas)
        await found.until(Desired.KEEP, lambda v: v.settled)
        return found

    yield made
    for close in closing:
        await close()


async def _processes(replicas: int, folder: Path) -> tuple[Driven, Callable[[], Awaitable[None]]]:
    door = FrontDoor("127.0.0.1", 0)
    await door.start()
    environ = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    target = ProcessTarget(CommandLine.read(COMMAND), LocalOptions(replicas, 5.0, 5.0, folder, environ), door)
    await target.start()

    async def tick() -> None:
        await asyncio.sleep(0.05)
        await target.look(0.0)

    async def close() -> None:
        await target.close()
        await door.close()

    return Driven(target, tick, ScrapeSource(1.0)), close


def _simulated(replicas: int) -> Driven:
    known = profile("arrivals")
    simulation = Simulation(
        known.engine, known.times, lambda n, seconds: known.load(seconds, n), replicas, start_seconds=3.0,
        fails=lambda engine: "out of memory" if engine.max_num_seqs > 200 else "",
    )  # fmt: skip
    target = SimulatedTarget(CommandLine.read(COMMAND).template, simulation, 1e9)

    async def tick() -> None:
        target.advance(1.0)
        await target.look(target.now)

    return Driven(target, tick, target.source)


def candidate(driven: Driven, seqs: int) -> None:
    driven.target.begin(rewrite(driven.target.template, {"max_num_seqs": seqs}))


def ready(view: TargetView) -> bool:
    return all(p.health.ready for p in (*view.canary, *view.control))


async def test_a_canary_is_held_and_then_taken_back(driven: Any) -> None:
    d = await driven(2)
    before = {p.name for p in d.target.view().control}
    candidate(d, 16)
    held = await d.until(Desired.HOLD, lambda v: bool(v.canary) and ready(v))
    assert (held.template, held.paused, held.held) == (Template.CANDIDATE, True, True)
    assert len(held.canary) == len(held.control) == 1 and held.canary[0].name not in before
    assert {p.name for p in held.control} < before
    back = await d.until(Desired.RESTORE, lambda v: v.settled and not v.held)
    assert back.template is Template.BASELINE and not back.canary and len(back.control) == 2
    assert {p.name for p in held.control} < {p.name for p in back.control}  # the control was left alone


async def test_a_promotion_reaches_all_and_becomes_the_baseline(driven: Any) -> None:
    d = await driven(2)
    candidate(d, 16)
    await d.until(Desired.HOLD, lambda v: bool(v.canary) and ready(v))
    done = await d.until(Desired.PROMOTE, lambda v: v.settled and not v.control and not v.held)
    assert len(done.canary) == 2
    d.target.adopt()
    view = d.target.view()
    assert view.template is Template.BASELINE and len(view.control) == 2 and view.settled
    configuration = d.target.fleet(0.0).configuration
    assert configuration is not None and configuration["max_num_seqs"] == 16


async def test_one_place_alone_goes_there_and_back(driven: Any) -> None:
    d = await driven(1)
    candidate(d, 16)
    there = await d.until(Desired.SPREAD, lambda v: v.settled and ready(v))
    assert (there.template, there.paused, there.held) == (Template.CANDIDATE, False, True)
    assert len(there.canary) == 1 and not there.control
    back = await d.until(Desired.RESTORE, lambda v: v.settled and not v.held)
    assert len(back.control) == 1 and back.control[0].name != there.canary[0].name


async def test_a_candidate_that_does_not_start_is_seen_with_its_last_words(driven: Any) -> None:
    d = await driven(2)
    candidate(d, 300)
    seen = await d.until(Desired.HOLD, lambda v: any(p.health.exit_code is not None for p in v.canary))
    assert "out of memory" in seen.canary[0].health.last_log.lower() and not seen.settled
    back = await d.until(Desired.RESTORE, lambda v: v.settled and not v.held)
    assert ready(back) and len(back.control) == 2


async def test_what_drive_is_told_twice_is_done_once(driven: Any) -> None:
    """A kill between two writes repeats a step."""
    d = await driven(2)
    candidate(d, 16)
    first = await d.until(Desired.HOLD, lambda v: bool(v.canary) and ready(v))
    for _ in range(5):
        await d.tick()
        d.target.drive(Desired.HOLD)
    assert [p.name for p in d.target.view().canary] == [p.name for p in first.canary]


async def test_metrics_of_a_gone_engine_are_still_found_by_its_reference(driven: Any) -> None:
    d = await driven(1)
    pod = d.target.view().control[0]
    ref = d.target.ref(pod)
    candidate(d, 16)
    await d.until(Desired.SPREAD, lambda v: v.settled and ready(v))
    assert d.target.ref(pod) == ref and d.target.ready_refs()[0].name != pod.name
