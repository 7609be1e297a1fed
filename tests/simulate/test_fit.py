"""Fitted step times predict; too little data is refused."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import RequestLog, fit_step_times
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

TRUE = StepTimes(0.02, 0.00008, 0.0, 0.0002, 2e-7)
CONFIG = EngineConfig(num_gpu_blocks=2000, max_num_seqs=48)


def a_load(seed: int, n: int = 200) -> Workload:
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(5.5, 0.8, n).astype(int) + 1, rng.lognormal(5.0, 0.6, n).astype(int) + 2
    return Workload.of(np.cumsum(rng.exponential(0.1, n)), *lengths)


def a_log(load: Workload, noise: float) -> RequestLog:
    """What an engine with TRUE step times would have written, each time off by some share."""
    rng = np.random.default_rng(0)
    seen = simulate(load, CONFIG, TRUE)
    decode = (seen.last - seen.first) * rng.normal(1.0, noise, len(load))
    return RequestLog(load, seen.scheduled, seen.first, seen.first + decode)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_fit_predicts_another_load_within_two_percent(noise: float) -> None:
    log = a_log(a_load(1), noise)
    times = fit_step_times(log, CONFIG, np.ones(len(log.load), bool), StepTimes())
    other = a_load(2)
    real, ours = simulate(other, CONFIG, TRUE), simulate(other, CONFIG, times)
    assert ours.tpot.mean() == pytest.approx(real.tpot.mean(), rel=0.02)
    assert ours.e2e.mean() == pytest.approx(real.e2e.mean(), rel=0.02)


def test_a_tenth_of_stalled_requests_does_not_spoil_the_fit() -> None:
    log = a_log(a_load(1), 0.0)
    stalled = np.arange(len(log.load)) % 10 == 0
    log = RequestLog(log.load, log.scheduled, log.first, log.last + np.where(stalled, 60.0, 0.0))
    times = fit_step_times(log, CONFIG, np.ones(len(log.load), bool), StepTimes())
    real, ours = simulate(log.load, CONFIG, TRUE), simulate(log.load, CONFIG, times)
    assert ours.tpot.mean() == pytest.approx(real.tpot.mean(), rel=0.03)


def test_too_few_requests_are_refused() -> None:
    log = a_log(a_load(1, 40), 0.0)
    with pytest.raises(InputError, match="too few"):
        fit_step_times(log, CONFIG, np.arange(40) < 5, StepTimes())
