"""Every command in the pages is run here, or by another test that is named, or is marked as not runnable, with why."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from command_table import TABLE
from command_world import World, world
from commands import PAGES, ROOT, By, Command, Never, Run, commands, missing

from control_plane import ControlPlane, StandInKubelet, running

ALL = [c for page in PAGES for c in commands(page)]
#: pages with something to run in the usual tests
RUN = [p for p, rows in TABLE.items() if any(isinstance(w, Run) and not w.soak for w in rows.values())]
SOAK = [p for p, rows in TABLE.items() if any(isinstance(w, Run) and w.soak for w in rows.values())]


# --- the table --------------------------------------------------------------------------------------------------------
def test_every_command_is_in_the_table() -> None:
    assert [f"{c.page}:{c.line}: {c.text}" for c in ALL if c.text not in TABLE.get(c.page, {})] == []


def test_every_row_is_a_command_of_its_page_in_its_order() -> None:
    for page, rows in TABLE.items():
        there = [c.text for c in ALL if c.page == page]
        assert [text for text in rows if text not in there] == [], page


def test_what_another_test_does_is_done_there() -> None:
    ways = [(text, w) for rows in TABLE.values() for text, w in rows.items() if isinstance(w, By)]
    assert len(ways) > 5
    assert {text: gone for text, way in ways if (gone := missing(way))} == {}


def test_what_is_never_run_has_a_reason() -> None:
    assert all(len(w.why) > 20 for rows in TABLE.values() for w in rows.values() if isinstance(w, Never))


# --- run --------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running() as started, StandInKubelet(started):
        yield started


def of_page(page: str, *, soak: bool) -> list[tuple[Command, Run]]:
    found = [(c, TABLE[page][c.text]) for c in ALL if c.page == page]
    return [(c, w) for c, w in found if isinstance(w, Run) and w.soak == soak]


def run_all(page: str, place: World, *, soak: bool = False) -> None:
    for command, way in of_page(page, soak=soak):
        code, said = place.run(command, way)
        assert code == way.code, f"{page}:{command.line}: {command.text}\n-> {code}\n{said[-2000:]}"
        assert way.says in said, f"{page}:{command.line}: {command.text}\nhas no {way.says!r}:\n{said[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in RUN if any(" kubectl" in f" {t}" or "helm" in t for t in TABLE[p])])
def test_the_commands_of_a_page_work_on_a_real_api_server(page: str, plane: ControlPlane, tmp_path: Path) -> None:
    installs = any(text.startswith("helm install") for text in TABLE[page])
    with world(plane, tmp_path, installed=not installs) as place:
        run_all(page, place)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in RUN if not any(" kubectl" in f" {t}" or "helm" in t for t in TABLE[p])])
def test_the_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    with world(None, tmp_path) as place:
        run_all(page, place)


@pytest.mark.soak
@pytest.mark.parametrize("page", SOAK)
def test_the_long_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    with world(None, tmp_path) as place:
        run_all(page, place, soak=True)


def test_a_command_goes_on_until_its_quotes_and_backslashes_are_closed(tmp_path: Path) -> None:
    page = ROOT / "docs/safety.md"
    (long,) = [c for c in commands(page) if c.text.startswith("kubectl patch deployment $D")]
    assert long.text.endswith('}]"') and "#" not in long.text and os.linesep in long.text
