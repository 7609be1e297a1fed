"""A whole tuning in virtual time: the real plan, search and judge on simulated engines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simulated_worlds import profile, spread
from trimtab.plan.record import Phase
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.profile import LoadModel, Profile
from trimtab.tune.dry_run import DryRun, command_of, dry_run
from trimtab.tune.options import TuneOptions, build_spec

pytestmark = pytest.mark.usefixtures("compiled_scheduler")
BASE: dict[str, Any] = {
    "targetRef": {"name": "local"},
    "metrics": {"direct": {"intervalSeconds": 2}},
    "objective": {"slo": {"ttftSeconds": 2.5}},
    "search": {"prefixCaching": "Keep"},
    "rollout": {
        "warmupSeconds": 10, "measurementSeconds": 60, "maxMeasurementSeconds": 120, "confirmationSeconds": 0,
        "verificationSeconds": 10, "progressDeadlineSeconds": 200, "cooldownSeconds": 0,
    },
    "preconditions": {"stableSeconds": 30},
}  # fmt: skip


def starved(patience: float | None = 1.5) -> Profile:
    """One sequence at a time serves 6 requests/s of 12; sixteen serve all."""
    load = LoadModel(
        requests_per_second=12.0, prompt_tokens=spread(20), output_tokens=spread(16), patience_seconds=patience
    )
    engine = EngineConfig(num_gpu_blocks=2000, max_num_seqs=1)
    return Profile(engine=engine, times=StepTimes(0.01, 1e-5, 1e-5, 0.0), workload=load)


async def tuned(known: Profile, replicas: int, *candidates: str, calibrate: bool = False) -> tuple[Any, str]:
    spec = build_spec(TuneOptions(candidates=candidates, max_trials=max(1, len(candidates))), BASE, replicas)
    shown = io.StringIO()
    run = DryRun(known, spec, replicas=replicas, start_seconds=20.0, calibrate=calibrate)
    return await dry_run(run, Console(file=shown, width=160), 1e9), shown.getvalue()


@pytest.mark.parametrize(("replicas", "restarts"), [(2, 2), (1, 3)])
async def test_what_is_better_is_promoted_with_a_control_or_in_turn(replicas: int, restarts: int) -> None:
    done, text = await tuned(starved(), replicas, "max_num_seqs=16")
    (trial,) = done.state.trials
    assert trial.phase is Phase.PROMOTED, text
    assert trial.restarts == restarts and f"{restarts} restarts" in text
    assert "--max-num-seqs=16" in done.command and done.command in text
    before, after = (done.result[k]["goodput_tokens_per_second"] for k in ("before", "after"))
    assert after > 1.4 * before


async def test_the_same_seed_is_the_same_run() -> None:
    first, second = [await tuned(starved(), 2, "max_num_seqs=4") for _ in range(2)]
    assert first == second


async def test_the_baselines_own_metrics_make_the_profile_that_candidates_are_simulated_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done, text = await tuned(profile("arrivals"), 2, calibrate=True)
    assert done.state.screened.startswith("candidates are simulated first: calibrated from"), text
    assert "Nothing better" in text and "Candidates are simulated first" in text
    assert not any(tmp_path.glob("*"))  # noqa: ASYNC240 - nothing is left behind


async def test_clients_that_wait_for_answers_are_not_simulated() -> None:
    """Nobody leaves and the queue stands: the load follows the engine, so a simulation of it would mislead."""
    done, _ = await tuned(starved(patience=None), 2, "max_num_seqs=16", calibrate=True)
    assert "clients wait for answers" in done.state.screened


def test_the_command_is_made_of_the_profile() -> None:
    assert command_of(starved())[3:] == [
        "--max-num-seqs=1", "--max-num-batched-tokens=2048", "--enable-prefix-caching"
    ]  # fmt: skip
