"""The page of claims says what its commands say: each is run small, and every verdict compared."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import claims
from claims_base import CHEAP, Picture, Report
from claims_picture import svg
from claims_texts import TEXTS
from reading import ROOT, rows

del sys.path[0]  # `simulate` and `middleware` there hide the tests' folders of that name

PAGE = (ROOT / "docs/claims.md").read_text()
TABLE = rows(PAGE.partition(claims.BEGIN)[2].partition(claims.END)[0])[1:]


@pytest.fixture(autouse=True)
def _no_data_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_DATA", raising=False)


def _verdicts(command: str) -> dict[str, str]:
    """Of the page: claim -> verdict."""
    return {claim: verdict.strip("*") for claim, name, verdict, _, _ in TABLE if name == f"`{command}`"}


@pytest.mark.parametrize("command", claims.COMMANDS)
def test_a_command_comes_to_the_verdicts_that_the_page_gives(command: str) -> None:
    report = claims.COMMANDS[command](CHEAP)
    assert {claims.title(a.key): a.verdict for a in report.answers} == _verdicts(command)


def test_every_claim_is_in_the_table_once_and_no_other() -> None:
    assert sorted(row[0] for row in TABLE) == sorted(claims.title(key) for key in TEXTS)


def test_the_page_gives_the_reasons_of_today() -> None:
    assert {row[0]: row[4] for row in TABLE} == {claims.title(key): text.why for key, text in TEXTS.items()}


def test_the_page_shows_pictures_that_a_full_run_draws() -> None:
    shown = set(re.findall(r"\(pictures/(claims-[\w-]+\.svg)\)", PAGE))
    assert shown and shown == {p.name for p in (ROOT / "docs/pictures").glob("claims-*.svg")}


def test_a_run_of_one_command_rewrites_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "claims.md"
    page.write_text(PAGE)
    monkeypatch.setattr(claims, "PAGE", page)
    monkeypatch.setattr(claims, "PICTURES", tmp_path)
    answer = claims.COMMANDS["arithmetic"](CHEAP).answers[0]
    changed = type(answer)(answer.key, "contradicted", "42")
    claims.write("arithmetic", Report((), (changed,)))
    after = rows(page.read_text().partition(claims.BEGIN)[2].partition(claims.END)[0])[1:]
    assert [row for row in after if row[1] != "`arithmetic`"] == [row for row in TABLE if row[1] != "`arithmetic`"]
    assert [row[2:4] for row in after if row[1] == "`arithmetic`"] == [["**contradicted**", "42"]]


def test_a_picture_keeps_every_point_inside_its_frame() -> None:
    drawn = svg(Picture("p", "a < b", "x", "y", (0.0, 1.0, 4.0), (("line", (-20.0, 0.0, 35.5), (1.0, 0.5, 2.0)),)))
    assert "a &lt; b" in drawn
    points = [tuple(map(float, p.split())) for p in re.search(r'd="M([^"]+ L[^"]+)"', drawn)[1].split(" L")]  # type: ignore[index]
    assert len(points) == 3 and all(0 < x < 720 and 0 < y < 400 for x, y in points)
    assert points[0][1] > points[1][1] > points[2][1]
