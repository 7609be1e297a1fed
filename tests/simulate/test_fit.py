"""Fitted step times predict, say how sure they are, and too little data is refused."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import FITTED, WEAK, Fitted, Prior, RequestLog, Run, coefficients_of, fit_step_times, times_of
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

TRUE = StepTimes(0.02, 0.00008, 0.0, 0.0002, 2e-7, per_prefill_step=0.004)
CONFIG = EngineConfig(num_gpu_blocks=2000, max_num_seqs=48)


def a_load(seed: int, n: int = 200, gap: float = 0.1) -> Workload:
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(5.5, 0.8, n).astype(int) + 1, rng.lognormal(5.0, 0.6, n).astype(int) + 2
    return Workload.of(np.cumsum(rng.exponential(gap, n)), *lengths)


def a_log(load: Workload, noise: float, config: EngineConfig = CONFIG) -> RequestLog:
    """What an engine with TRUE step times would have written, each time off by some share."""
    rng = np.random.default_rng(0)
    seen = simulate(load, config, TRUE)
    decode = (seen.last - seen.first) * rng.normal(1.0, noise, len(load))
    return RequestLog(load, seen.scheduled, seen.first, seen.first + decode)


def fitted_on(log: RequestLog, config: EngineConfig = CONFIG) -> Fitted:
    return fit_step_times([Run(log, config, np.ones(len(log.load), bool))])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_fit_predicts_another_load_within_two_percent(noise: float) -> None:
    times = fitted_on(a_log(a_load(1), noise)).times
    other = a_load(2)
    real, ours = simulate(other, CONFIG, TRUE), simulate(other, CONFIG, times)
    assert ours.tpot.mean() == pytest.approx(real.tpot.mean(), rel=0.02)
    assert ours.e2e.mean() == pytest.approx(real.e2e.mean(), rel=0.02)


def test_a_clients_log_without_admission_times_is_enough() -> None:
    log = a_log(a_load(1), 0.01)
    times = fitted_on(RequestLog(log.load, np.full(len(log.load), np.nan), log.first, log.last)).times
    other = a_load(2)
    real, ours = simulate(other, CONFIG, TRUE), simulate(other, CONFIG, times)
    assert ours.tpot.mean() == pytest.approx(real.tpot.mean(), rel=0.02)
    assert ours.ttft.mean() == pytest.approx(real.ttft.mean(), rel=0.05)


def test_time_beside_the_engine_is_told_apart() -> None:
    """20 ms in the API server before each first token: not prefill's."""
    log = a_log(a_load(1), 0.0)
    none = np.full(len(log.load), np.nan)
    client = RequestLog(log.load, none, log.first + 0.02, log.last + 0.02)
    run = Run(client, CONFIG, np.ones(len(log.load), bool))
    with_it, without = fit_step_times([run], api=True), fit_step_times([run])
    assert with_it.api_seconds == pytest.approx(0.02, abs=0.006) and without.api_seconds == 0
    real = simulate(log.load, CONFIG, TRUE).ttft.mean()
    ours = (simulate(log.load, CONFIG, fitted.times).ttft.mean() for fitted in (with_it, without))
    assert abs(next(ours) - real) < abs(next(ours) - real)


def test_several_runs_separate_what_one_does_not() -> None:
    """One busy and one idle run: the fixed part and the part per sequence are known to a fifth."""
    configs = [EngineConfig(2000, max_num_seqs=s, max_num_batched_tokens=512) for s in (4, 48)]
    runs = [
        Run(a_log(load, 0.0, config), config, np.ones(len(load), bool))
        for load, config in ((a_load(1, 80, 0.5), configs[0]), (a_load(2, 200, 0.05), configs[1]))
    ]
    found = fit_step_times(runs).times
    assert found.fixed == pytest.approx(TRUE.fixed, rel=0.1)
    assert found.per_decode_seq == pytest.approx(TRUE.per_decode_seq, rel=0.2)
    assert found.per_prefill_token == pytest.approx(TRUE.per_prefill_token, rel=0.2)


def test_a_tenth_of_stalled_requests_does_not_spoil_the_fit() -> None:
    log = a_log(a_load(1), 0.0)
    stalled = np.arange(len(log.load)) % 10 == 0
    log = RequestLog(log.load, log.scheduled, log.first, log.last + np.where(stalled, 60.0, 0.0))
    times = fitted_on(log).times
    real, ours = simulate(log.load, CONFIG, TRUE), simulate(log.load, CONFIG, times)
    assert ours.tpot.mean() == pytest.approx(real.tpot.mean(), rel=0.03)


def test_the_draws_hold_what_the_log_says_and_spread_where_it_says_nothing() -> None:
    log = a_log(a_load(1), 0.02)
    fitted = fitted_on(log)
    real = simulate(log.load, CONFIG, TRUE).tpot.mean()
    predicted = [simulate(log.load, CONFIG, draw).tpot.mean() for draw in fitted.draws]
    assert min(predicted) < real < max(predicted)
    assert np.std(predicted) < 0.03 * real
    # at short prompts nothing tells attention over the prompt from the prompt's tokens
    assert fitted.stderr["per_pair"] > fitted.times.per_pair / 3


def test_a_prior_decides_what_the_log_does_not_separate() -> None:
    """All requests alike and always as many: only a sum is known, and the prior splits it."""
    n = 120
    load = Workload.of(np.zeros(n), np.full(n, 64), np.full(n, 100))
    config = EngineConfig(10_000, max_num_seqs=20)
    true = StepTimes(0.01, 1e-5, 0.0, 0.0005, 0.0)
    seen = simulate(load, config, true)
    run = Run(RequestLog(load, seen.scheduled, seen.first, seen.last), config, np.ones(n, bool))
    median = coefficients_of(StepTimes(0.01, 1e-5, 1e-12, 1e-5, 1e-12, per_prefill_step=1e-12))
    spread = WEAK.spread.copy()
    spread[FITTED.index("fixed")] = 0.01
    found = fit_step_times([run], Prior(median, spread)).times
    assert found.fixed == pytest.approx(0.01, rel=0.05)
    assert simulate(load, config, found).e2e.mean() == pytest.approx(seen.e2e.mean(), rel=0.01)


def test_too_few_requests_are_refused() -> None:
    log = a_log(a_load(1, 40), 0.0)
    with pytest.raises(InputError, match="too few"):
        fit_step_times([Run(log, CONFIG, np.arange(40) < 5)])


def test_coefficients_go_there_and_back() -> None:
    assert times_of(coefficients_of(TRUE)) == TRUE
