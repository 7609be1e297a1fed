"""Requests that only decode are counted, not visited: the figures are the same to the bit as when all are visited."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from tests.simulate.random_loads import TIMES, configs, loads

from trimtab.simulate.config import EngineConfig
from trimtab.simulate.outcome import Counters
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

PER_REQUEST = ("ending", "scheduled", "first", "last", "end", "tokens", "preemptions", "cached", "recomputed", "marks")


@settings(max_examples=300)
@given(loads(timers=True), configs())
def test_visiting_only_who_needs_it_changes_no_figure(load: Workload, config: EngineConfig) -> None:
    """A run that keeps a trace visits everyone."""
    all_visited = simulate(load, config, TIMES, trace=True, marks=True)
    coasting = simulate(load, config, TIMES, marks=True)
    for name in PER_REQUEST:
        assert np.array_equal(getattr(all_visited, name), getattr(coasting, name), equal_nan=name != "ending"), name
    for field in fields(Counters):
        assert getattr(all_visited.counters, field.name) == getattr(coasting.counters, field.name), field.name
