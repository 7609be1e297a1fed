"""The lease on fake time and the loop, with a small stand-in for the API server's Lease: faults are the point."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from trimtab.errors import ClusterUnavailable, TargetConflict, TargetRefused, TrimtabError
from trimtab_operator.cluster import Cluster
from trimtab_operator.lease import Lease
from trimtab_operator.loop import Loop
from trimtab_operator.telemetry import Telemetry

Json = dict[str, Any]


class Leases:
    """One Lease with resourceVersions, and a switch to make it unreachable."""

    def __init__(self) -> None:
        self.stored: Json | None = None
        self.version, self.down = 0, False

    def get(self, *_: str) -> Json | None:
        if self.down:
            raise ClusterUnavailable("down")
        return copy.deepcopy(self.stored)

    def _write(self, body: Json) -> Json:
        self.version += 1
        self.stored = copy.deepcopy(body)
        self.stored["metadata"]["resourceVersion"] = str(self.version)
        return self.stored

    def create(self, _kind: str, _namespace: str, body: Json) -> Json:
        if self.stored is not None:
            raise TargetConflict("exists")
        return self._write(body)

    def replace(self, _kind: str, body: Json) -> Json:
        assert self.stored is not None
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise TargetConflict("changed")
        return self._write(body)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def holder(api: Leases, name: str, clock: Clock) -> Lease:
    return Lease(cast(Cluster, api), "ns", name, clock, duration_seconds=15.0)


def test_only_one_holds_and_a_dead_one_is_replaced_after_its_time() -> None:
    api, clock = Leases(), Clock()
    a, b = holder(api, "a", clock), holder(api, "b", clock)
    assert a.try_hold() and not b.try_hold()
    for _ in range(4):
        clock.now += 5
        assert a.try_hold() and not b.try_hold()
    for _ in range(4):  # a is dead from here on
        clock.now += 5
        held = b.try_hold()
        assert not (held and a.held), "two holders at one time"
    assert b.held and not a.held


def test_a_restarted_holder_of_the_same_name_goes_on_at_once() -> None:
    api, clock = Leases(), Clock()
    assert holder(api, "pod-1", clock).try_hold()
    clock.now += 1
    assert holder(api, "pod-1", clock).try_hold()


def test_a_released_lease_is_free() -> None:
    api, clock = Leases(), Clock()
    a, b = holder(api, "a", clock), holder(api, "b", clock)
    assert a.try_hold() and not b.try_hold()
    a.release()
    assert not a.held and b.try_hold()


def test_an_unreachable_server_ends_the_hold_before_another_may_take_it() -> None:
    api, clock = Leases(), Clock()
    a = holder(api, "a", clock)
    assert a.try_hold()
    api.down = True
    clock.now += 11
    assert a.try_hold()  # still inside its own time
    clock.now += 2
    assert not a.try_hold()


def _loop(reconcile: Any, tuners: Any = lambda: []) -> Loop:
    clock = Clock()
    lease = holder(Leases(), "a", clock)
    return Loop(reconcile, tuners, lease, Telemetry(), asyncio.get_running_loop().time)


async def _run_until(loop: Loop, done: Callable[[], bool]) -> None:
    """Runs the loop until `done`; a loop that never gets there fails by timeout."""
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - what it waits for is plain data, written by threads
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_poked_tuner_is_reconciled_and_a_gone_one_forgotten() -> None:
    seen: list[str] = []

    def reconcile(_namespace: str, name: str) -> float | None:
        seen.append(name)
        return None if name == "gone" else 60.0

    loop = _loop(reconcile)
    loop.poke("ns", "gone")
    loop.poke("ns", "here")
    await _run_until(loop, lambda: len(seen) == 2 and not loop.running)
    assert sorted(seen) == ["gone", "here"] and list(loop.due) == [("ns", "here")]


async def test_a_tuner_that_no_event_told_of_is_found() -> None:
    seen: list[str] = []
    loop = _loop(lambda _ns, name: seen.append(name) or 60.0, lambda: [("ns", "silent")])
    await _run_until(loop, lambda: bool(seen))
    assert seen == ["silent"]


@pytest.mark.parametrize("error", [TrimtabError("typed"), TargetConflict("again"), RuntimeError("a bug")])
async def test_an_error_in_one_tuner_stops_no_other(error: Exception) -> None:
    seen: list[str] = []

    def reconcile(_namespace: str, name: str) -> float | None:
        seen.append(name)
        if name == "bad":
            raise error
        return 0.1

    loop = _loop(reconcile)
    loop.poke("ns", "bad")
    loop.poke("ns", "good")
    await _run_until(loop, lambda: seen.count("good") >= 3 and "bad" in seen)
    assert ("ns", "bad") in loop.due


@pytest.mark.parametrize("error", [TargetRefused("422"), RuntimeError("a bug")])
async def test_a_trial_in_flight_is_looked_at_again_soon_whatever_the_error(error: Exception) -> None:
    """Untried settings serve meanwhile; a tuner without a trial waits for as long as the error says."""
    seen: list[str] = []

    def reconcile(_namespace: str, name: str) -> float | None:
        seen.append(name)
        raise error

    loop = _loop(reconcile)
    loop.poke("ns", "trial", urgent=True)
    loop.poke("ns", "idle")
    await _run_until(loop, lambda: len(seen) >= 2 and not loop.running)
    assert loop.due["ns", "trial"] - loop.monotonic() <= 4.0 and ("ns", "trial") in loop.urgent
    assert loop.due["ns", "idle"] - loop.monotonic() > 4.0


async def test_an_event_during_a_pass_does_not_make_a_trial_less_urgent() -> None:
    loop = _loop(lambda *_: None)
    loop.running.add(("ns", "trial"))
    loop.poke("ns", "trial")
    loop._settle(("ns", "trial"), 1.5)
    assert ("ns", "trial") in loop.urgent and loop.due["ns", "trial"] <= loop.monotonic()


async def test_many_trials_leave_room_for_a_new_tuner() -> None:
    seen: list[str] = []

    def reconcile(_namespace: str, name: str) -> float | None:
        seen.append(name)
        return 0.0 if name.startswith("trial") else 10.0

    loop = _loop(reconcile)
    for i in range(20):
        loop.poke("ns", f"trial-{i}", urgent=True)
    loop.poke("ns", "new")
    await _run_until(loop, lambda: "new" in seen and seen.count("trial-19") >= 2)


def _begun(loop: Loop, seconds: float, passes: float = 0.0) -> list[tuple[float, str]]:
    """When which look begins, each taking `passes` seconds, on a clock of steps of 0.1 s from 1,000 on."""
    begun: list[tuple[float, str]] = []
    ends: list[tuple[float, tuple[str, str]]] = []
    for step in range(round(seconds * 10)):
        now = 1000.0 + step / 10
        loop.monotonic = lambda now=now: now  # type: ignore[misc]
        for end, key in [e for e in ends if e[0] <= now]:
            ends.remove((end, key))
            loop._settle(key, 1.5 if key[1].startswith("trial") else 10.0)
        for key in loop._next(now):
            loop.running.add(key)
            ends.append((now + passes, key))
            begun.append((now, key[1]))
    return begun


async def test_idle_looks_are_spread_also_after_all_were_looked_at_together() -> None:
    """500 tuners at the start: at once, on eight threads. From then on five a second, each tuner every 100 s."""
    loop = _loop(lambda *_: None)
    loop.monotonic = lambda: 1000.0
    for i in range(500):
        loop.poke("ns", f"idle-{i}")
    begun = _begun(loop, 240.0, 0.1)
    first = [at for at, _ in begun[:500]]
    assert first[-1] - first[0] < 30
    later = [at for at, _ in begun[500:]]
    assert max(sum(a <= at < a + 1.0 for at in later) for a in range(1020, 1230, 10)) <= 6
    by_name: dict[str, list[float]] = {}
    for at, name in begun:
        by_name.setdefault(name, []).append(at)
    assert max(b - a for times in by_name.values() for a, b in pairwise(times)) < 130


async def test_what_was_poked_waits_for_no_pace_and_few_tuners_keep_their_own() -> None:
    loop = _loop(lambda *_: None)
    loop.monotonic = lambda: 1000.0
    for i in range(3):
        loop.poke("ns", f"idle-{i}")
    begun = _begun(loop, 60.0)
    assert [sum(name == f"idle-{i}" for _, name in begun) for i in range(3)] == [6, 6, 6]
    for i in range(200):
        loop._settle(("ns", f"late-{i}"), 10.0)
        loop.due["ns", f"late-{i}"] = 0.0
    loop.poke("ns", "asked")
    assert ("ns", "asked") in loop._next(2000.0)


async def test_a_stop_waits_for_the_passes_under_way_and_begins_no_other() -> None:
    began, ended = threading.Event(), threading.Event()

    def reconcile(_namespace: str, _name: str) -> float | None:
        began.set()
        ended.wait(5)
        return 60.0

    loop = _loop(reconcile)
    loop.poke("ns", "slow")
    task = asyncio.create_task(loop.run())
    await asyncio.to_thread(began.wait, 10)
    stop = asyncio.create_task(loop.drain(10.0))
    await asyncio.sleep(0.2)
    assert not stop.done()
    loop.poke("ns", "late")
    ended.set()
    await stop
    assert not loop.running and ("ns", "late") in loop.due
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
