"""SIGKILL at every write of a trial, before it is sent and after its answer: nothing is stranded, nothing wrongly
promoted.

On a real API server and Deployment controller; pods, engines and metrics are stand-ins, so that a trial takes seconds.
The whole matrix is `soak` and writes docs/faults.md; a part of it runs always and checks that the page names every
write. KILL_MATRIX_KILLS: kills in one trial, 1 for a trial for each; KILL_MATRIX_PARALLEL: trials at the same time.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from kill_worlds import HOT, WAYS, Kill, Way, World, kills_of, lived, worlds

from kill_points import SIDES
from written import region, rewrite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
COMMAND = "pytest -m soak tests/cluster/test_kill_matrix.py"
#: trials at the same time: each mostly waits
PARALLEL: Final = int(os.environ.get("KILL_MATRIX_PARALLEL", "6"))
KILLS: Final = int(os.environ.get("KILL_MATRIX_KILLS", "8"))
#: of the trial's clock: looks are seconds of a trial apart, as they are in life
HASTE: Final = 20.0
#: what is missed because a trial wrote less this time is tried again so often
ROUNDS: Final = 3
#: of all boundaries, those that must have been met
MOST: Final = 0.95
Begin = Callable[[Way], World]


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    """A new world in a namespace of its own."""
    with worlds(tmp_path_factory.mktemp("worlds"), HASTE) as make:
        yield make


def dies_at_every(number: int, world: World) -> int:
    """The trial to its end, by processes that each make `number` writes; how many died."""
    sides = itertools.cycle(SIDES)
    died = sum(1 for _ in iter(lambda: world.live((number, next(sides))), False))
    assert world.problem() == "", f"{world.way.name}: {world.problem()}\n{world.log()}"
    world.end()
    return died


def test_an_operator_that_dies_at_every_fifth_write_still_ends_its_trial(begin: Begin) -> None:
    """And the page names each write that was seen."""
    ways = [way for way in WAYS if (way.strategy, way.better) in {("canary, maxSurge 0", True), (HOT, False)}]
    with ThreadPoolExecutor(PARALLEL) as threads:
        made = list(threads.map(begin, ways))
        died = list(threads.map(lambda world: dies_at_every(5, world), made))
    print([(world.way.name, times, len(world.run().writes())) for world, times in zip(made, died, strict=True)])
    assert min(died) >= 3
    seen = {name for world in made for name in world.run().writes()}
    named = {line.split("|")[1].strip() for line in region(PAGE, COMMAND).splitlines() if line.startswith("| ")}
    assert seen - named == set(), "run the soak test: it writes the page"


@dataclass
class Matrix:
    """What was killed where, and what went wrong."""

    begin: Begin
    trials: int = 0
    names: set[str] = field(default_factory=set)
    met: dict[Way, list[Kill]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def trial(self, way: Way, kills: Sequence[Kill]) -> list[Kill]:
        """One trial; the writes that it made by itself give the kills of a plain one."""
        world = self.begin(way)
        self.trials += 1
        try:
            self.met.setdefault(way, []).extend(died := lived(world, kills))
        except AssertionError as error:
            self.wrong.append(str(error))
            return []
        self.names.update(world.run().writes())
        return died if kills else kills_of(world.run().writes(), SIDES)

    def left(self, way: Way, wanted: Sequence[Kill]) -> list[Kill]:
        return [kill for kill in wanted if kill not in self.met.get(way, ())]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_any_write_every_trial_ends_as_it_should(begin: Begin) -> None:
    """An event changes nothing, so before an event is after the write in front of it: that is killed once."""
    matrix, started = Matrix(begin), time.monotonic()
    with ThreadPoolExecutor(PARALLEL) as threads:
        wanted = dict(zip(WAYS, threads.map(lambda way: matrix.trial(way, []), WAYS), strict=True))
        for round_ in range(ROUNDS):
            many = KILLS if round_ + 1 < ROUNDS else 1
            chains = [(way, chain) for way in WAYS for chain in cut(matrix.left(way, wanted[way]), many)]
            list(threads.map(lambda pair: matrix.trial(*pair), chains))
            print(f"round {round_}: {len(chains)} trials, {time.monotonic() - started:.0f} s", matrix.wrong)
    assert not matrix.wrong, "\n".join(matrix.wrong)
    print("not met again:", {way.name: matrix.left(way, wanted[way]) for way in WAYS})
    asked = sum(len(kills) for kills in wanted.values())
    assert all(wanted.values()) and sum(len(kills) for kills in matrix.met.values()) >= MOST * asked
    rewrite(PAGE, COMMAND, table(matrix, asked, time.monotonic() - started))


def cut(kills: Sequence[Kill], many: int) -> list[list[Kill]]:
    """Chains of about so many each, whose kills lie as far apart as they can."""
    chains = -(-len(kills) // many)
    return [list(kills[first::chains]) for first in range(chains)]


def table(matrix: Matrix, of: int, seconds: float) -> str:
    """Markdown: a row per write, a column per way, kills that were survived."""
    counts = Counter((way.name, kill.write) for way, kills in matrix.met.items() for kill in kills)
    ways = [way.name for way in WAYS]
    lines = [
        f"{counts.total()} kills (of {of} boundaries) in {matrix.trials} trials: 0 targets stranded, "
        f"0 wrong promotions. {seconds / 60:.0f} minutes.", "",
        "| killed before or after | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways),
    ]  # fmt: skip
    lines += [
        f"| {name} | " + " | ".join(str(counts[way, name] or "") for way in ways) + " |"
        for name in sorted(matrix.names)
    ]
    return "\n".join(lines)
