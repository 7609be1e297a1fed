"""Small fast emulators and specs for the loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.plan.spec import TunerSpec
from trimtab.tune.options import TuneOptions, build_spec
from trimtab.tune.process import Identity, identity_of
from trimtab.tune.session import SessionOptions
from trimtab.tune.state import Store

Json = dict[str, Any]
#: one sequence at a time is far too few for the load below, 16 are plenty; 200 and more do not start
ENGINE = ["trimtab", "emulate", "serve", "tiny", "--max-num-seqs", "1"]
ENVIRONMENT = {"EMULATE_START_SECONDS": "0.1", "EMULATE_CRASH_IF": "max_num_seqs>200", "EMULATE_STEP_FIXED_MS": "10"}
LOAD = ["--rate=24", "--prompt=20", "--output=16", "--patience=1.5", "--duration=600", "--cancel=0.1"]
SHORT: Json = {
    "targetRef": {"name": "local"},
    "metrics": {"direct": {"intervalSeconds": 1}},
    "objective": {"slo": {"ttftSeconds": 2.5}},
    "rollout": {
        "warmupSeconds": 1,
        "baselineSeconds": 3,
        "measurementSeconds": 20,
        "maxMeasurementSeconds": 20,
        "confirmationSeconds": 0,
        "verificationSeconds": 1,
        "progressDeadlineSeconds": 30,
        "cooldownSeconds": 0,
    },
    "preconditions": {"stableSeconds": 4},
}


@pytest.fixture
def short_spec(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TunerSpec]:
    """`short_spec("max_num_seqs=16", max_trials=2)`: windows of 2 s, so that a trial takes some 15 s."""
    monkeypatch.setattr("trimtab.plan.looks.MIN_WINDOW_SECONDS", 2.0)
    monkeypatch.setattr("trimtab.tune.loop._FIGURES_SECONDS", (5.0, 5.0))

    def made(*candidates: str, max_trials: int) -> TunerSpec:
        return build_spec(TuneOptions(candidates=candidates, max_trials=max_trials), SHORT)

    return made


@pytest.fixture
def session_options(tmp_path: Path, compiled_scheduler: None) -> Callable[[TunerSpec], SessionOptions]:
    def made(spec: TunerSpec) -> SessionOptions:
        environ = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        return SessionOptions(
            command=ENGINE, spec=spec, state=tmp_path / "tune.json", load=LOAD, environ=environ, tick_seconds=0.2,
            drain_seconds=20.0, stop_seconds=5.0,
        )  # fmt: skip

    return made


class TuneProcess:
    """`trimtab tune` as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "tune.json"
        spec = folder / "spec.json"
        spec.write_text(json.dumps(SHORT))
        load = " ".join(LOAD)
        args = ["--spec", str(spec), "--state", str(self.state), "--load", load, "--measure", "300", "--warmup", "1"]
        args += ["--candidate", "max_num_seqs=16", "--", *ENGINE]
        words = [sys.executable, "-m", "trimtab.cli.main", "tune", *args]
        environ = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def phase(self) -> str:
        state = Store(self.state).load() if self.state.exists() else None
        return state.trials[-1].phase.value if state is not None and state.trials else ""

    def processes(self) -> list[Identity]:
        state = Store(self.state).load()
        assert state is not None
        return state.processes


@pytest.fixture
def tune_process(tmp_path: Path, compiled_scheduler: None) -> Iterator[Callable[[], TuneProcess]]:
    """`tune_process()` starts one; all share a state file."""
    made: list[TuneProcess] = []

    def start() -> TuneProcess:
        made.append(TuneProcess(tmp_path))
        return made[-1]

    yield start
    for run in made:
        run.process.kill()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], float], None]:
    """Blocking; fails after the seconds."""

    def wait(condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "waited too long"
            time.sleep(0.1)

    return wait


@pytest.fixture
def alive() -> Callable[[Identity], bool]:
    return lambda identity: identity_of(identity.pid) == identity
