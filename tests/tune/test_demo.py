"""The demo is as bad and as good as it says: its load and step costs on the simulated scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab.emulate.environment import read_emulation
from trimtab.emulate.flags import parse_flags
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.summary import Limits, Study
from trimtab.simulate.workload import Workload
from trimtab.tune import demo


@pytest.mark.parametrize("seed", [0, 1])
def test_the_demo_as_found_is_far_below_its_best(seed: int) -> None:
    load = demo.load_shape(1, 200.0, seed=seed)
    times = read_emulation(demo.engine_env()).times
    slo = Limits(demo.DEMO.slo_ttft_seconds, demo.DEMO.slo_tpot_seconds)
    patience = demo.DEMO.patience_seconds
    study = Study(Workload.from_requests(load.requests(), patience_seconds=patience), times, slo)
    found: EngineConfig = parse_flags(demo.engine_args()).limits
    few = replace(found, max_num_seqs=16)
    as_found, better, best = (study.figures(c) for c in (found, few, replace(few, enable_prefix_caching=True)))
    assert as_found.counters.preemptions > 100 and (as_found.slo_attainment or 0) < 0.7
    assert better.goodput_tokens_per_second > 1.3 * as_found.goodput_tokens_per_second
    assert best.goodput_tokens_per_second > 1.3 * as_found.goodput_tokens_per_second
    # three of them fit on two cores
    assert best.counters.generation_tokens / best.counters.end_seconds < 350
