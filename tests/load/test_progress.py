"""What is shown while a run lasts, on a terminal and elsewhere."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from trimtab.load import progress
from trimtab.load.records import Record
from trimtab.load.summary import Slo, Summary


def ended(at: float, cause: str | None = None) -> Record:
    ending = "failed" if cause else "ok"
    return Record(0, at - 2, at - 2, at - 1.5, at, at, 10, 6, 6, 6, ending, cause)  # type: ignore[arg-type]


def test_recent_forgets_what_ended_before_its_window() -> None:
    recent = progress.Recent(Slo(), seconds=30.0)
    for at in (101.0, 110.0, 135.0):
        recent.add(ended(at))
    young, old = recent.summary(100.0, 120.0), recent.summary(100.0, 136.0)
    assert (young.ok, young.seconds) == (2, 20.0)
    assert (old.ok, old.seconds, recent.total) == (2, 30.0, 3)


@pytest.mark.parametrize("live", [True, False])
async def test_shows_rates_latencies_and_causes(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.01)
    recent = progress.Recent(Slo())
    recent.add(ended(102.0))
    recent.add(ended(103.0, "abort"))
    out = io.StringIO()
    drawn = asyncio.Event()
    calls = 0

    def draw() -> tuple[Summary, int, float]:
        nonlocal calls
        calls += 1
        if calls == 3:
            drawn.set()
        return recent.summary(100.0, 104.0), 7, 4.0

    task = asyncio.create_task(progress.show(Console(file=out, force_terminal=live, width=200), live, draw))
    await asyncio.wait_for(drawn.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    text = out.getvalue()
    assert all(word in text for word in ("0.50", "7", "1 (abort 1)", "0.500 s", "300.0 ms"))
    assert ("\x1b[" in text) is live
