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
from trimtab.plan import switchback as one_after_the_other
from trimtab.plan import trial as machine
from trimtab.plan.record import Phase, Strategy

#: phases that an exploration must have seen
REACHED = {
    "canary": {p for p in Phase if p not in (Phase.MEASURING_BEFORE, Phase.RETURNING, Phase.MEASURING_AFTER)}
    - {Phase.AWAITING_APPROVAL, Phase.CANCELLED},
    "switchback": set(Phase) - {Phase.AWAITING_APPROVAL, Phase.CONFIRMING, Phase.CANCELLED},
}
#: passes of operator, controller, kubelet and a unit of time, by which every trial must have ended
ROUNDS = 60


#: what does not happen to a world that is left alone
_BAD_LUCK = ("the candidate crashes at start", "no node has room")

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


#: nothing has been proved yet
_UNPROVED = (Phase.STARTING, Phase.WARMING_UP, Phase.MEASURING, Phase.CONFIRMING)


def trespass(before: World, move: str, after: World) -> str:
    """What the operator did in this move that is never its to do, or what it let the controller do."""
    if "controller" in move and before.replicas == 1 and before.record.strategy is Strategy.CANARY:
        alone = before.template == "C" and set(before.old) & set("ra") and not after.old
        return "lets untried settings serve alone" if alone and before.record.phase in _UNPROVED else ""
    if "operator" not in move:
        return ""
    if before.template == "F" and after.template != "F":
        return "overwrites someone's template"
    if before.paused and before.paused_by_other and not before.marked and not after.paused:
        return "lifts a pause that is not its own"
    unproved = after.record.verdict is None or after.record.verdict.kind is not Kind.BETTER
    spread = before.paused and not after.paused
    if after.template == "C" and (spread or before.template == "B") and _may_not_spread(after, unproved, spread):
        return "spreads a configuration that nothing proved better"
    return ""


def _may_not_spread(after: World, unproved: bool, resumed: bool) -> bool:
    """The trial's own beginning needs no proof: one pod of several, or all of a target that asked for a switchback."""
    if after.record.phase is Phase.PROMOTING:
        return unproved
    return resumed or after.record.phase is not Phase.STARTING


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
            world = next((after for name, after in step(world) if name not in _BAD_LUCK), world)
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
    shift, shifts = one_after_the_other.less_drift, {}

    def evaluate(pairs: Any, *others: Any, **options: Any) -> Any:
        key = (id(pairs), *(id(o) if isinstance(o, Observation) else repr(o) for o in (*others, *options.items())))
        if key not in known:
            known[key] = judge(pairs, *others, **options)
        return known[key]

    def less_drift(verdict: Any, drift: Any, goal: Any) -> Any:
        key = (id(verdict), id(drift))
        if key not in shifts:
            shifts[key] = (verdict, shift(verdict, drift, goal))  # kept, so that its id is not used again
        return shifts[key][1]

    monkeypatch.setattr(machine, "evaluate", evaluate)
    monkeypatch.setattr(one_after_the_other, "evaluate", evaluate)
    monkeypatch.setattr(one_after_the_other, "less_drift", less_drift)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "surge", "trouble", "approve"),
    [
        ("canary", 0, 0, False),
        ("canary", 1, 0, True),
        ("canary", 0, 1, False),
        ("canary of one replica", 1, 0, False),
        pytest.param("canary of one replica", 1, 1, False, marks=pytest.mark.soak),
        pytest.param("canary", 1, 1, False, marks=pytest.mark.soak),
        ("switchback", 0, 0, True),
        ("switchback", 1, 0, False),
        ("switchback", 0, 1, False),
        pytest.param("switchback", 1, 1, False, marks=pytest.mark.soak),
        pytest.param("switchback", 0, 2, False, marks=pytest.mark.soak),
    ],
)
def test_from_every_state_the_target_comes_to_rest(strategy: str, surge: int, trouble: int, approve: bool) -> None:
    """trouble: how often somebody interferes. Printed: what docs/safety.md says."""
    explorer = Explorer()
    replicas = 1 if "one" in strategy else 2
    switchback = strategy == "switchback"
    explorer.run(start(surge=surge, trouble=trouble, approve=approve, switchback=switchback, replicas=replicas))
    size = f"{len(explorer.came):,} states, {explorer.transitions:,} transitions"
    print(f"{strategy}, surge {surge}, interferences {trouble}: {size}")
    assert explorer.found == [], "\n".join(explorer.found)
    assert {w[1][0] for w in explorer.came} >= REACHED[strategy.split()[0]]  # the phases really took place


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


def _promotes_before_the_verdict(world: World) -> World:
    """Goes on to the candidate while the baseline is still measured again."""
    if world.record.phase is Phase.MEASURING_AFTER and world.template == "B":
        return replace(world, template="C", seen=False)
    return write(world)


def _keeps_the_narrowed_strategy(world: World) -> World:
    """Takes the mark off and forgets the owner's strategy."""
    after = write(world)
    return replace(after, strategy="ours") if world.marked and not after.marked else after


def _spreads_what_was_put_aside(world: World) -> World:
    """On the way back the pod's template is left."""
    if world.record.phase is Phase.ROLLING_BACK and world.template == "C":
        return replace(world, marked=False, strategy="owner")
    return write(world)


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        (_promotes_before_the_verdict, "that nothing proved better"),
        (_keeps_the_narrowed_strategy, "marks are still there"),
        (_spreads_what_was_put_aside, "never ends"),
    ],
)
def test_a_bug_planted_in_the_switchback_is_found(bug: Callable[[World], World], found: str) -> None:
    explorer = Explorer(bug)
    explorer.run(start(surge=0, trouble=0, switchback=True))
    assert explorer.found and found in explorer.found[0]


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
