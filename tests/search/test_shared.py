"""A sweep that workers share through a real PostgreSQL: each task once, dead workers' tasks taken over."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from trimtab.cli.main import main
from trimtab.errors import InputError, StorageError
from trimtab.search.shared import (
    MAX_ATTEMPTS,
    Progress,
    SharedSweep,
    Trial,
    database_url,
    owed,
    progress,
    redundant,
    seen,
)

ROOT = Path(__file__).resolve().parents[2]
TASKS = [{"max_num_seqs": n} for n in (8, 16, 32, 64)]
STATES = [TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]


def never(_: float) -> None:
    raise AssertionError("nothing to wait for")


def double(task: int) -> tuple[float, str]:
    return 2.0 * task, str(task)


def work(sweep: SharedSweep, evaluate: Callable[[int], tuple[float, str]] = double, seed: int = 0) -> int:
    return sweep.work(evaluate, wait=never, rng=random.Random(seed))


# --- rules ------------------------------------------------------------------------------------------------------------
trial_lists = st.lists(st.tuples(st.sampled_from(STATES), st.integers(0, 3)), max_size=20).map(
    lambda rows: [Trial(n, state, task) for n, (state, task) in enumerate(rows)]
)


@given(trial_lists)
def test_a_task_is_queued_done_given_up_or_owed_and_of_those_that_stand_one_is_kept(trials: list[Trial]) -> None:
    now, queued = progress(trials, 4), owed(trials, 4)
    standing = [t for t in trials if t.state in STATES[:3]]
    assert len({t.task for t in standing}) + now.lost + len(queued) == 4
    assert len([t for t in standing if not redundant(t, trials)]) == len({t.task for t in standing})


def test_a_task_that_ends_its_workers_is_given_up() -> None:
    failed = [Trial(n, TrialState.FAIL, 0) for n in range(MAX_ATTEMPTS)]
    assert owed(failed[:-1], 1) == [0] and owed(failed, 1) == []
    assert progress(failed, 1) == Progress(0, 0, 1, 1)


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ("postgres://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgresql://u@h/d?sslmode=require", "postgresql+psycopg://u@h/d?sslmode=require"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg://h/d"),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_psycopg_is_the_driver_where_none_is_named(given: str, opened: str) -> None:
    assert database_url(given) == opened


# --- one process ------------------------------------------------------------------------------------------------------
def test_all_tasks_are_done_once_and_a_second_worker_finds_nothing_left(postgres: str) -> None:
    calls: list[int] = []

    def counted(task: int) -> tuple[float, str]:
        calls.append(task)
        return double(task)

    assert work(SharedSweep(postgres, "once", TASKS, "f"), counted) == 4
    later = SharedSweep(postgres, "once", TASKS, "f")
    assert work(later, counted) == 0
    assert sorted(calls) == [0, 1, 2, 3] and later.results() == {0: "0", 1: "1", 2: "2", 3: "3"}


def test_a_task_that_was_queued_twice_is_done_once(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two workers look at an empty queue at the same time."""
    first, second = (SharedSweep(postgres, "twice", TASKS, "f") for _ in range(2))
    with monkeypatch.context() as both_see_nothing:
        both_see_nothing.setattr("trimtab.search.shared.owed", lambda trials, tasks: list(range(tasks)))
        first._look()
        second._look()
    assert len(first.trials()) == 8
    assert work(second, seed=3) == 4
    states = [t.state for t in first.trials()]
    assert states.count(TrialState.COMPLETE) == 4 and states.count(TrialState.PRUNED) == 4


def test_an_error_hands_the_task_to_the_next_worker_at_once(postgres: str) -> None:
    def fails(task: int) -> tuple[float, str]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work(SharedSweep(postgres, "error", TASKS, "f"), fails)
    assert work(SharedSweep(postgres, "error", TASKS, "f")) == 4


def test_a_worker_that_was_frozen_too_long_does_not_overwrite_the_one_that_took_over(postgres: str) -> None:
    slow = SharedSweep(postgres, "frozen", TASKS[:1], "f", lease_seconds=2)
    other = SharedSweep(postgres, "frozen", TASKS[:1], "f", lease_seconds=2)
    waits: list[float] = []

    def frozen(task: int) -> tuple[float, str]:
        # as if no beat had been written: the trial is failed by the other worker's look
        other._storage.set_trial_state_values(other._id(other.trials()[0]), TrialState.FAIL)
        assert work(other) == 1
        return 99.0, "late"

    assert slow.work(frozen, wait=waits.append, rng=random.Random(0)) == 0
    assert slow.results() == {0: "0"}


@pytest.mark.parametrize(
    ("change", "field"),
    [({"fingerprint": "g"}, "--study"), ({"lease_seconds": 1}, "--lease"), ({"url": "study.db"}, "--storage"),
     ({"url": "nosuch://h/d"}, "--storage"), ({"tasks": []}, "tasks")],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused_by_name(postgres: str, change: dict[str, object], field: str) -> None:
    work(SharedSweep(postgres, "mine", TASKS, "f"))
    given: dict[str, object] = {"url": postgres, "name": "mine", "tasks": TASKS, "fingerprint": "f"} | change
    with pytest.raises(InputError) as refused:
        SharedSweep(**given)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_database_that_is_away_is_an_error_without_the_password() -> None:
    with pytest.raises(StorageError) as failed:
        SharedSweep("postgresql://u:secret@127.0.0.1:1/d", "s", TASKS, "f")
    assert "secret" not in str(failed.value) and "--storage" in failed.value.hint


# --- real workers -----------------------------------------------------------------------------------------------------
GRID = (
    "--blocks", "900", "--set", "max_num_seqs=8,16,32,64", "--set", "max_num_batched_tokens=512,1024",
    "--rate", "30", "--duration", "100", "--slo-ttft", "2", "--cancel", "0.1",
)  # fmt: skip


def start(*options: str, url: str, json_file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli.main", "sweep", *GRID, *options, "--json", str(json_file)],
        env=os.environ | {"TRIMTAB_STORAGE_URL": url}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def call(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (0, None)


def new_database(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty")
    return url.replace("/postgres?", "/empty?")


def watch(url: str, name: str) -> Callable[[], list[Trial]]:
    """Trials as they stand, none while there is no study yet."""
    opened: list[RDBStorage] = []

    def look() -> list[Trial]:
        try:
            if not opened:
                opened.append(RDBStorage(database_url(url), skip_compatibility_check=True, skip_table_creation=True))
            found = optuna.load_study(study_name=name, storage=opened[0]).get_trials(deepcopy=False)
        except (KeyError, StorageInternalError):
            return []
        return [seen(trial) for trial in found]

    return look


def kill_while_it_works(victim: subprocess.Popen[str], running: Callable[[], list[Trial]]) -> Trial:
    """Frozen first, so that what it was doing when it died is known."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert victim.poll() is None, victim.communicate()[0]
        if running():
            victim.send_signal(signal.SIGSTOP)
            if found := running():
                victim.kill()
                victim.wait(10)
                return found[0]
            victim.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("the worker never began")


def test_two_workers_share_a_sweep_and_a_killed_ones_task_is_taken_over(postgres: str, tmp_path: Path) -> None:
    call(["simulate", *GRID, "--processes", "1", "--json", str(tmp_path / "alone")])
    # both start on a database without tables, and race to make them
    url = new_database(postgres)
    options = ("--study", "shared", "--lease", "2")
    victim, survivor = (start(*options, url=url, json_file=tmp_path / name) for name in ("v", "s"))
    watched = watch(url, "shared")

    def of_victim() -> list[Trial]:
        return [t for t in watched() if t.state == TrialState.RUNNING and t.worker.endswith(f":{victim.pid}")]

    try:
        died = kill_while_it_works(victim, of_victim)
        said = survivor.communicate(timeout=120)[0]
        assert survivor.returncode == 0, said
    finally:
        for process in (victim, survivor):
            process.kill()
    done = [t for t in watched() if t.state == TrialState.COMPLETE]
    assert sorted(t.task for t in done if t.task is not None) == list(range(8))
    (again,) = [t for t in done if t.task == died.task]
    assert again.worker.endswith(f":{survivor.pid}")
    assert json.loads((tmp_path / "s").read_text()) == json.loads((tmp_path / "alone").read_text())


# --- the manifest -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """kind -> document of the example."""
    return {d["kind"]: d for d in yaml.safe_load_all((ROOT / "examples/sweep.yaml").read_text())}


def test_the_jobs_command_is_a_sweep_of_the_grid_it_lists(
    manifest: dict[str, Any], postgres: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the pod: the image's entry point and the URL from the Secret, but a shorter load."""
    (container,) = manifest["Job"]["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    key = variable["valueFrom"]["secretKeyRef"]
    secret = manifest["Secret"]
    assert key["name"] == secret["metadata"]["name"]
    assert database_url(secret["stringData"][key["key"]]).startswith("postgresql+psycopg://")
    assert 'ENTRYPOINT ["trimtab"]' in (ROOT / "Dockerfile").read_text() and "command" not in container
    monkeypatch.setenv(variable["name"], postgres)
    call([a if not a.startswith("--duration") else "--duration=2" for a in container["args"]])
    assert "48 of 48 simulated by this worker" in capsys.readouterr().out


def test_the_jobs_pods_wait_for_each_other_and_survive_eviction(manifest: dict[str, Any]) -> None:
    job = manifest["Job"]["spec"]
    assert "completions" not in job and job["parallelism"] > 1
    assert job["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    # Kubernetes takes a podFailurePolicy only with this
    assert job["template"]["spec"]["restartPolicy"] == "Never"
