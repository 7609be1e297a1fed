"""A run killed in any phase, in virtual time: the next one rolls back what was in flight, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulated_worlds import spread
from trimtab.plan.record import Phase, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.profile import LoadModel, Profile
from trimtab.tune.argv import configuration_of, template_of
from trimtab.tune.dry_run import DryRun, command_of, simulation_of
from trimtab.tune.loop import Loop
from trimtab.tune.options import TuneOptions, build_spec
from trimtab.tune.proposals import Proposals
from trimtab.tune.simulated import SimulatedTarget
from trimtab.tune.state import State, Store

pytestmark = pytest.mark.usefixtures("compiled_scheduler")
#: one at a time serves 2.5 requests/s of 5
PROFILE = Profile(
    engine=EngineConfig(num_gpu_blocks=2000, max_num_seqs=1),
    times=StepTimes(0.04, 1e-5, 1e-5, 0.0),
    workload=LoadModel(
        requests_per_second=5.0, prompt_tokens=spread(20), output_tokens=spread(8), patience_seconds=1.5
    ),
)
BASE: dict[str, Any] = {
    "targetRef": {"name": "local"},
    "metrics": {"direct": {"intervalSeconds": 2}},
    "objective": {"slo": {"ttftSeconds": 2.5}, "maxLatencyRegressionPercent": 100},
    "search": {"prefixCaching": "Keep", "maxTrials": 1, "candidates": [{"maxNumSeqs": 16}]},
    "rollout": {
        "warmupSeconds": 10, "measurementSeconds": 60, "maxMeasurementSeconds": 60, "confirmationSeconds": 0,
        "verificationSeconds": 15, "progressDeadlineSeconds": 200, "cooldownSeconds": 0,
    },
    "preconditions": {"stableSeconds": 20},
}  # fmt: skip
START = 1e9


class Killed(Exception):
    """The process is gone."""


async def run(store: Store, state: State, spec: TunerSpec, at: float, until: Callable[[State], bool]) -> Loop:
    """From the processes' start to the end of the search; Killed as soon as `until` holds of the state."""
    target = SimulatedTarget(state.template, simulation_of(DryRun(PROFILE, spec, replicas=state.replicas)), at)

    async def sleep(seconds: float) -> None:
        if until(state):
            raise Killed
        target.advance(seconds)

    loop = Loop(
        spec, target, target.source, Proposals(None), store, state, clock=lambda: target.now, sleep=sleep,
        tick_seconds=5.0,
    )  # fmt: skip
    await loop.run()
    return loop


def active_in(phase: Phase) -> Callable[[State], bool]:
    return lambda state: state.active is not None and state.active.phase is phase


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "phase"),
    [
        *((2, p) for p in (Phase.STARTING, Phase.WARMING_UP, Phase.MEASURING, Phase.PROMOTING, Phase.VERIFYING)),
        *((1, p) for p in (Phase.MEASURING_BEFORE, Phase.STARTING, Phase.MEASURING, Phase.RETURNING)),
        *((1, p) for p in (Phase.MEASURING_AFTER, Phase.PROMOTING)),
    ],
)
async def test_the_next_run_rolls_back_and_ends_with_the_better_setting(
    replicas: int, phase: Phase, tmp_path: Path
) -> None:
    spec = build_spec(TuneOptions(), BASE, replicas)
    store, command = Store(tmp_path / "tune.json"), command_of(PROFILE)
    with pytest.raises(Killed):
        await run(store, State(command, replicas, template_of(command)), spec, START, active_in(phase))
    left = await asyncio.to_thread(store.load)
    assert left is not None and left.active is not None and left.active.phase is phase
    loop = await run(store, left, spec, START + 5000.0, lambda _: False)
    state = await asyncio.to_thread(store.load)
    assert state == loop.state and state.done
    killed, again = state.trials
    assert _ended(killed) == (Phase.ROLLED_BACK, "Stopped") and _ended(again)[0] is Phase.PROMOTED
    assert killed.configuration == again.configuration  # what a kill stopped is not counted as tried
    view = loop.target.view()
    assert view.settled and not view.canary and not view.held and len(view.control) == replicas
    assert configuration_of(state.template)["max_num_seqs"] == 16


def _ended(trial: TrialRecord) -> tuple[Phase, str]:
    return trial.phase, trial.verdict.reason if trial.verdict is not None else ""
