"""The control beside the demo's result: what random search would have found with as many trials. Exact, because the
demo's engine is simulated for every configuration of a grid.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from trimtab.emulate.environment import read_emulation
from trimtab.emulate.flags import parse_flags
from trimtab.engine.settings import Configuration
from trimtab.search.control import random_control
from trimtab.simulate.summary import Limits, Study, sweep
from trimtab.simulate.workload import Workload
from trimtab.tune.demo import DEMO, DemoScenario, engine_args, engine_env, load_shape

#: half octaves of the demo's search range
_SEQS: Final = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SECONDS: Final = 200.0
_SEEDS: Final = (0, 1)


def demo_control(found: Configuration, trials: int, demo: DemoScenario = DEMO) -> str:
    """One line: simulated goodput of the demo as found, of what this run ended with, and of random search with as many
    trials."""
    engine = parse_flags(engine_args(demo)).limits
    grid = [replace(engine, max_num_seqs=n, enable_prefix_caching=on) for n, on in product(_SEQS, (False, True))]
    ours = replace(
        engine, max_num_seqs=found.integer("max_num_seqs") or engine.max_num_seqs,
        enable_prefix_caching=bool(found.get("enable_prefix_caching", engine.enable_prefix_caching)),
    )  # fmt: skip
    totals = [0.0] * (len(grid) + 2)
    for seed in _SEEDS:
        load = Workload.from_requests(
            load_shape(1, _SECONDS, demo, seed).requests(), patience_seconds=demo.patience_seconds
        )
        study = Study(
            load, read_emulation(engine_env(demo)).times, Limits(demo.slo_ttft_seconds, demo.slo_tpot_seconds)
        )
        for i, figures in enumerate(sweep(study, [*grid, ours, engine])):
            totals[i] += figures.goodput_tokens_per_second / len(_SEEDS)
    *values, mine, before = totals
    tried = [v for v, config in zip(values, grid, strict=True) if config != engine]
    control = random_control(tried, trials, before)
    return (
        f"Control, simulated goodput in tokens/s per replica: as found {before:.0f}, with this result {mine:.0f}, best "
        f"{control.best:.0f}; {control}."
    )
