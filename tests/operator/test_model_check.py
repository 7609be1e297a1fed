"""Every state that a trial can reach, with a kill after each write and interference at any time, explored to the end.

From each of them the target must come to rest: on its baseline or on a configuration judged better, unpaused, with the
owner's strategy, within a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from control_plane_model import World, controller, kubelet, look, moves, remember, start, time_passes, write

from trimtab.judge.verdict import Kind
from trimtab.observe.observation import Observation
from trimtab.plan import trial as machine
from trimtab.plan.record import Phase

#: passes of operator, controller, kubelet and a unit of time, by which every trial must have ended
ROUNDS = 60


Key = tuple[object, ...]


def violation(world: World) -> str:
    """What is wrong with a target whose trial has ended, "" when nothing is."""
    verdict = world.record.verdict
    if not world.template:
        return ""
    if world.marked or world.strategy != "owner" or world.hold:
        return "Trimtab's marks are still there"
    if world.paused and not world.paused_by_other:
        return "left paused"
    promoted = world.record.phase is Phase.PROMOTED and verdict is not None and verdict.kind is Kind.BETTER
    if world.template == "C" and not promoted:
        return "left on a configuration that nothing proved better"
    return ""


def trespass(before: World, move: str, after: World) -> str:
    """What the operator did in this move that is never its to do."""
    if "operator" not in move:
        return ""
    if before.template == "F" and after.template != "F":
        return "overwrites someone's template"
    if before.paused and before.paused_by_other and not before.marked and not after.paused:
        return "lifts a pause that is not its own"
    if before.paused and not after.paused and after.template == "C" and after.record.phase is not Phase.PROMOTING:
        return "spreads a configuration that nothing proved better"
    return ""


class Explorer:
    """Breadth first over all states. `act` is the second half of the operator's pass, for bugs planted on purpose."""

    def __init__(self, act: Callable[[World], World] = write) -> None:
        self.act = act
        self.came: dict[Key, tuple[Key | None, str]] = {}
        self.transitions = 0
        self.found: list[str] = []
        #: states from which an undisturbed world was seen to come to rest, by what the metrics go on to say
        self.restful: set[tuple[str, Key]] = set()

    def run(self, first: World) -> None:
        todo = deque([first])
        self.came[first.key()] = (None, "")
        while todo and len(self.found) < 3:
            world = todo.popleft()
            key = world.key()
            if problem := self._at_rest(world, key):
                self.found.append(f"{problem}: {self._way(key)}")
            if world.record.ended:
                continue
            for name, after in moves(world, self.act):
                self.transitions += 1
                if problem := trespass(world, name, after):
                    self.found.append(f"{problem}: {self._way(key)} > {name}")
                there = after.key()
                if there not in self.came:
                    self.came[there] = (key, name)
                    todo.append(after)

    def _at_rest(self, world: World, key: Key) -> str:
        """What is wrong where this state leads when nobody interferes any more; "" for nothing."""
        if world.record.ended:
            return violation(world)
        for gain in ("same", "better"):
            passed: list[tuple[str, Key]] = []
            while not world.record.ended:
                here = (gain, world.key())
                if here in self.restful:
                    break
                passed.append(here)
                if len(passed) > ROUNDS:
                    return f"never ends, in {world.record.phase}"
                world = self._undisturbed(world, gain)
            else:
                if problem := violation(world):
                    return problem
            self.restful.update(passed)
        return ""

    def _undisturbed(self, world: World, gain: str) -> World:
        """A pass of the operator, some work of controller and kubelet, a unit of time."""
        world = remember(self.act(look(world, gain)))
        for step in (controller, controller, kubelet):
            world = next((after for name, after in step(world) if "crash" not in name), world)
        return time_passes(world)

    def _way(self, key: Key) -> str:
        names: list[str] = []
        at: Key | None = key
        while at is not None:
            at, name = self.came[at]
            names.append(name)
        return " > ".join(names[::-1][1:])


@pytest.fixture(autouse=True)
def one_judgement_per_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is asked a million times about the same four measurements."""
    judge, known = machine.evaluate, {}

    def evaluate(pairs: Any, *others: Any, **options: Any) -> Any:
        key = (id(pairs), *(id(o) if isinstance(o, Observation) else repr(o) for o in (*others, *options.items())))
        if key not in known:
            known[key] = judge(pairs, *others, **options)
        return known[key]

    monkeypatch.setattr(machine, "evaluate", evaluate)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("surge", "trouble", "approve"),
    [
        (0, 0, False),
        (1, 0, True),
        (0, 1, False),
        pytest.param(1, 1, False, marks=pytest.mark.soak),
    ],
)
def test_from_every_state_the_target_comes_to_rest(surge: int, trouble: int, approve: bool) -> None:
    """trouble: how often somebody interferes. Printed: what docs/safety.md says."""
    explorer = Explorer()
    explorer.run(start(surge=surge, trouble=trouble, approve=approve))
    print(
        f"surge {surge}, interferences {trouble}: {len(explorer.came):,} states, {explorer.transitions:,} transitions"
    )
    assert explorer.found == []
    assert len(explorer.came) > 5_000


def _forgets_the_pause(world: World) -> World:
    """Takes Trimtab's annotation off without lifting the pause."""
    after = write(world)
    return replace(after, paused=True) if world.paused and world.marked and not after.marked else after


def _goes_on_after_a_rollback_began(world: World) -> World:
    """Lifts the pause of a canary instead of putting the template back."""
    if world.record.phase is Phase.ROLLING_BACK and world.template == "C" and world.paused:
        return replace(world, paused=False, seen=False)
    return write(world)


def _overwrites(world: World) -> World:
    if world.record.phase is Phase.ROLLING_BACK and world.template == "F":
        return replace(world, template="B", seen=False)
    return write(world)


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        (_overwrites, "overwrites someone's template"),
        (_goes_on_after_a_rollback_began, "spreads a configuration"),
        (_forgets_the_pause, "left paused"),
    ],
)
def test_a_planted_bug_is_found(bug: Callable[[World], World], found: str) -> None:
    explorer = Explorer(bug)
    explorer.run(start(surge=0, trouble=1))
    assert explorer.found and found in explorer.found[0]
