"""The search in a child process: it gives the answer that it gives here, and where it dies or hangs that is told."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks import shown_metrics

from simulated_worlds import profile
from trimtab.engine.settings import Configuration
from trimtab.errors import SearchFailed
from trimtab.plan.preconditions import FleetView
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload
from trimtab.tune import apart
from trimtab.tune.apart import Apart, Question, think
from trimtab.tune.argv import configuration_of, template_of
from trimtab.tune.calibrated import AtRest
from trimtab.tune.options import TuneOptions, build_spec

TEMPLATE = template_of(["vllm", "serve", "m", "--max-num-seqs", "16", "--enable-prefix-caching"])
SPEC = build_spec(TuneOptions(search=["max_num_seqs=8:64"], prefix_caching="keep", slo_ttft=5.0))
QUESTION = Question("ns/llm", SPEC, TEMPLATE, FleetView(exists=True, configuration=configuration_of(TEMPLATE)), [])


def in_child(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_CHILD", code)


@pytest.fixture
def described() -> Question:
    """With a profile in which 16 slots are too few."""
    return replace(QUESTION, text=profile("slots").model_dump_json(), where="llm-profile/profile.json")


def test_the_child_says_what_this_process_would_say(described: Question, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        here, there = think(described), Apart()(described)
    assert here.proposed is not None and here.proposed.configuration["max_num_seqs"] != 16
    assert replace(there, kept=None) == replace(here, kept=None)
    # and goes on from what it has kept
    again = Apart()(replace(described, kept=there.kept))
    assert again.proposed == here.proposed


def test_what_is_kept_spares_the_simulations_and_is_small(described: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    first = think(described)
    assert first.kept is not None and len(first.kept) < 50_000

    def never(*_: Any) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr("trimtab.search.predict.Simulated._one", never)
    assert think(replace(described, kept=first.kept)).proposed == first.proposed


def test_a_profile_that_changed_is_read_anew(described: Question) -> None:
    first = think(described)
    other = replace(described, text=profile("arrivals").model_dump_json(), kept=first.kept)
    found, alone = think(other), think(replace(other, kept=None))
    assert found.proposed == alone.proposed != first.proposed


@pytest.mark.parametrize(("text", "named"), [("{", "llm-profile/profile.json"), ('{"version": 1}', "engine")])
def test_a_profile_that_cannot_be_read_is_told_with_its_place(described: Question, text: str, named: str) -> None:
    answer = think(replace(described, text=text))
    (said,) = answer.said
    assert said.reason == "ProfileUnreadable" and said.warning and named in said.text
    assert answer.proposed is not None and answer.kept is None


# --- calibrated from the target's own metrics -------------------------------------------------------------------------
def at_rest(seconds: float) -> Question:
    """One pod's metrics as a Prometheus would have them of a simulated run."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.2, int(5 * seconds)))
    prompt = np.clip(rng.lognormal(6.0, 0.7, len(arrivals)), 1, 3000).astype(int)
    output = np.clip(rng.lognormal(4.5, 0.8, len(arrivals)), 2, 900).astype(int)
    config = EngineConfig(4000, max_num_seqs=64)
    times = StepTimes(0.012, 4e-5, 1e-10, 4e-5, 8e-8, per_prefill_step=0.005)
    run = simulate(Workload.of(arrivals, prompt, output), config, times, marks=True)
    samples = shown_metrics.as_samples(shown_metrics.scrapes(shown_metrics.Run.of_outcome(run), config, 10.0))
    configuration = Configuration.of(max_num_seqs=64, max_num_batched_tokens=2048)
    begin = shown_metrics.BEGIN
    return replace(QUESTION, rest=AtRest([("pod", samples)], configuration, None, begin, begin + 300.0))


def test_a_search_is_calibrated_by_the_targets_own_metrics() -> None:
    answer = Apart()(at_rest(240))
    (said,) = answer.said
    assert said.reason == "Calibrated" and said.text.startswith("candidates are simulated first: calibrated from")
    assert answer.kept is not None


def test_too_little_traffic_is_told_and_the_search_goes_on() -> None:
    answer = think(at_rest(2))
    (said,) = answer.said
    assert said.reason == "NotCalibrated" and said.text.startswith("not simulated: ")
    assert answer.proposed is not None and answer.kept is None


# --- faults -----------------------------------------------------------------------------------------------------------
def test_a_child_that_dies_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_child("raise SystemExit('no space left')", monkeypatch)
    with pytest.raises(SearchFailed, match="ended with code 1: no space left"):
        Apart()(QUESTION)


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    in_child("import time; time.sleep(60)", monkeypatch)
    with pytest.raises(SearchFailed, match="no answer within 1 s"):
        Apart(most_seconds=1.0)(QUESTION)


def test_where_the_simulator_takes_the_child_along_the_search_goes_on_without(
    described: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does where memory is short: the child is killed as soon as it loads the simulator."""
    in_child(
        "import os, trimtab.tune.apart as a\na._read = lambda *_: os.kill(os.getpid(), 9)\na.main()",
        monkeypatch,
    )
    answer = Apart()(described)
    assert answer.proposed is not None
    (said,) = answer.said
    assert said.reason == "NotSimulated" and "by signal 9" in said.text


def test_closing_ends_what_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_child("import time; time.sleep(60)", monkeypatch)
    search, errors = Apart(), []

    def ask() -> None:
        try:
            search(QUESTION)
        except SearchFailed as error:
            errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.5)
    search.close()
    thread.join(10)
    assert not thread.is_alive() and "by signal 9" in errors[0]
    with pytest.raises(SearchFailed, match="stopping"):
        search(QUESTION)


def test_what_asks_loads_neither_the_simulator_nor_optuna() -> None:
    """The reason for all this: the operator does not hold them in memory."""
    heavy = ("numba", "optuna", "sqlalchemy", "scipy.stats")
    code = f"import json, sys, trimtab_operator.app; print(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
