"""SIGKILL at every write of a trial, before it is sent and after its answer: nothing is stranded, nothing wrongly
promoted.

On a real API server and Deployment controller; pods and metrics are stand-ins, so that a trial takes seconds. The
whole matrix is `soak` and writes docs/faults.md; a part of it runs always and checks that the page names every write.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kill_worlds import WAYS, Way, World, speed_of

from control_plane import StandInKubelet, running
from kill_points import SIDES
from stand_in_prometheus import StandInPrometheus
from written import region, rewrite

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(600)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
COMMAND = "pytest -m soak tests/cluster/test_kill_matrix.py"
#: trials at the same time: each mostly waits
PARALLEL = int(os.environ.get("KILL_MATRIX_PARALLEL", "6"))
Begin = Callable[[Way], World]


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    """A new world in a namespace of its own."""
    ends: dict[str, bool] = {}
    folders, numbers = tmp_path_factory.mktemp("worlds"), itertools.count()
    with (
        running() as plane,
        StandInKubelet(plane) as kubelet,
        StandInPrometheus(speed_of(kubelet, lambda namespace: ends[namespace])) as prometheus,
    ):

        def make(way: Way) -> World:
            world, namespace = World(plane, way, prometheus.url, folders / str(next(numbers))), plane.namespace()
            ends[namespace] = way.better
            world.begin(namespace)
            return world

        yield make


def lived(begin: Begin, way: Way, kills: list[tuple[int, str]]) -> tuple[World, list[str]]:
    """A trial through these kills to its end; the world and the writes at which it died."""
    world, died = begin(way), []
    for kill in kills:
        if not world.live(kill):
            break
        died.append(f"{kill[1]}: {world.run().writes()[-1]}")
    else:
        world.live((0, ""))
    problem = world.problem()
    assert problem == "" and world.at_rest(), f"{way.name} {died}: {problem}"
    world.end()
    return world, died


def test_an_operator_that_dies_at_every_third_write_still_ends_its_trial(begin: Begin) -> None:
    """And the page names each write that was seen."""
    many = [(3, side) for side in SIDES * 20]
    with ThreadPoolExecutor(PARALLEL) as threads:
        results = list(threads.map(lambda way: lived(begin, way, many), WAYS))
    seen = {name for world, _ in results for name in world.run().writes()}
    for world, died in results:
        print(f"{world.way.name}: died {len(died)} times in {len(world.run().writes())} writes")
        assert len(died) >= 10
    named = {line.split("|")[1].strip() for line in region(PAGE, COMMAND).splitlines() if line.startswith("| ")}
    assert not named or seen - named == set(), "run the soak test: it writes the page"


@pytest.mark.timeout(3600)
def test_killed_at_any_write_every_trial_ends_as_it_should(begin: Begin) -> None:
    """An event changes nothing, so before an event is after the write in front of it: that is killed once."""
    end = time.monotonic() + float(os.environ.get("KILL_MATRIX_SECONDS", "3000"))
    with ThreadPoolExecutor(PARALLEL) as threads:
        plain = [(way, threads.submit(lived, begin, way, [])) for way in WAYS]
        kills = [
            (way, number, side)
            for way, first in plain
            for number, name in enumerate(first.result()[0].run().writes(), 1)
            for side in SIDES
            if side == "after" or not name.startswith("create Event")
        ]
        random.Random(1).shuffle(kills)  # what a limit cuts off is spread over all of them

        def killed(kill: tuple[Way, int, str]) -> list[tuple[str, str]]:
            way, number, side = kill
            if time.monotonic() > end:
                return []
            return [(way.name, name.split(": ", 1)[1]) for name in lived(begin, way, [(number, side)])[1]]

        done = [pair for pairs in threads.map(killed, kills) for pair in pairs]
    rewrite(PAGE, COMMAND, matrix(Counter(done), len(kills)))


def matrix(table: Counter[tuple[str, str]], of: int) -> str:
    """Markdown: a row per write, a column per way, kills that were survived."""
    names = sorted({name for _, name in table})
    ways = [way.name for way in WAYS]
    lines = [
        f"{sum(table.values())} kills of {of}, each in a trial of its own: 0 targets stranded, 0 wrong promotions.", "",
        "| killed before or after | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways),
    ]  # fmt: skip
    lines += [f"| {name} | " + " | ".join(str(table[way, name] or "") for way in ways) + " |" for name in names]
    return "\n".join(lines)
