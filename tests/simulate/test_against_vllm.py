"""Step by step against vLLM's own scheduler in a live vLLM 0.32 (CPU, tiny model): the same decisions at each call.

TRIMTAB_RECORD=1 puts what was seen into data/, for `test_recorded_vllm.py`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulate.live_vllm import Live, started
from simulate.replay import compare
from simulate.scenarios import SCENARIOS, STROLLS, Scenario, Stroll, drawn

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
RECORDED = Path(__file__).parent / "data" / "vllm-0.32-decisions.json.gz"


@pytest.fixture(scope="module")
def live(vllm: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with started(vllm, tmp_path_factory.mktemp("scenarios") / "live") as server:
        yield server
    if os.environ.get("TRIMTAB_RECORD"):
        logs = sorted(server.folder.glob("*.log"))
        seen = {log.stem: [json.loads(line) for line in log.read_text().splitlines()] for log in logs}
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_bytes(gzip.compress(json.dumps(seen, separators=(",", ":")).encode(), 9, mtime=0))


@MODES
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_every_decision_of_a_scripted_scenario_is_vllms(live: Live, scenario: Scenario, asynchronous: bool) -> None:
    config = scenario.config(async_scheduling=asynchronous)
    compare(live.play(scenario, config), scenario.requests, config)


@MODES
@pytest.mark.parametrize("stroll", STROLLS, ids=lambda s: s.name)
def test_every_decision_under_free_arrivals_and_clients_that_hang_up_is_vllms(
    live: Live, stroll: Stroll, asynchronous: bool
) -> None:
    config = stroll.config(async_scheduling=asynchronous)
    lines = live.stroll(stroll, config)
    ended = {reason for line in lines for _, reason in line.get("finished", ())}
    left = [event for line in lines for event in (*line["events"], *line.get("meanwhile", ())) if event[0] == "abort"]
    assert ended == {"stop", "length"} and left
    compare(lines, stroll.requests, config)


@pytest.mark.soak
@MODES
@pytest.mark.parametrize("seed", range(60))
def test_every_decision_under_settings_and_loads_drawn_by_lot_is_vllms(
    live: Live, seed: int, asynchronous: bool
) -> None:
    scenario = drawn(seed)
    config = scenario.config(async_scheduling=asynchronous)
    compare(live.play(scenario, config), scenario.requests, config)
