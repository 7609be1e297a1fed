"""The search's benchmark counts what it says: costs, promotions, regret; and ours beats random search in it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # the modules import each other by name, as scripts do
try:
    import search_methods
    import search_report
    import search_run
    import search_targets
    import search_trial
    import search_world
finally:
    sys.path.remove(str(BENCHMARKS))

TARGET = search_targets.tuned()[0]
QUIET = search_trial.Noise(window=0.01, rho=0.0, pod=0.001, start=0.001)


def made_up(crash_from: int = 10_000) -> search_world.World:
    """Best at 64 sequences and 4096 tokens, 40% above the baseline's 24 and 2048; starts with fewer sequences only."""

    def truth(c: Configuration) -> search_world.Truth | None:
        if (c.integer("max_num_seqs") or 0) >= crash_from:
            return None
        away = [
            abs(math.log2((c.integer(n) or 1) / best))
            for n, best in (("max_num_seqs", 64), ("max_num_batched_tokens", 4096))
        ]
        return search_world.Truth(0.41 - 0.2 * away[0] - 0.09 * away[1], 0.95 - 0.1 * away[0], 1.0, 0.05, 0.5)

    every = [TARGET.baseline, *search_targets.SPACE.all(TARGET.baseline)]
    return search_world.World(TARGET, {c.key(): truth(c) for c in every})


def test_a_search_pays_for_each_restart_and_ends_where_the_judge_led_it() -> None:
    world = made_up()
    (run,) = search_run.search("random", world, 1, 0, QUIET)
    assert run.trials == search_run.MOST_TRIALS["random"]
    assert run.steps[-1].restarts == 2 * run.trials + (search_trial.REPLICAS - 2) * run.promotions
    regrets = [s.regret for s in run.steps]
    assert regrets[0] == pytest.approx(world.best - world.score(TARGET.baseline))
    assert regrets[-1] < math.log1p(search_trial.LEAST_GAIN) + 0.03
    assert run.wrong == 0
    assert run.cost("restarts") == run.steps[[r <= search_run.REACHED for r in regrets].index(True)].restarts


def test_what_does_not_start_is_a_crash_and_serves_nobody() -> None:
    world = made_up(crash_from=96)
    (run,) = search_run.search("grid", world, 1, 0, QUIET)
    assert run.crashes >= 1
    result = search_trial.trial(
        None, replace(next(t for t in world.truth.values() if t)), QUIET, np.random.default_rng(0), ()
    )
    assert (result.kind, result.score, result.late) == (Kind.ERROR, None, 0.0)


def test_users_that_a_trial_makes_miss_the_slo_are_counted_and_a_guardrail_ends_it() -> None:
    now = search_world.Truth(0.0, 0.9, 1.0, 0.05, 0.1)
    mild = search_trial.trial(replace(now, score=-0.3, attainment=0.6), now, QUIET, np.random.default_rng(0), ())
    harsh = search_trial.trial(
        replace(now, score=-3.0, attainment=0.0, ttft_p99=9.0), now, QUIET, np.random.default_rng(0), ()
    )
    assert mild.kind is harsh.kind is Kind.WORSE
    assert mild.late > 0 < harsh.late
    assert harsh.minutes < mild.minutes
    assert harsh.score == search_trial.BREACHED


def test_equal_arms_are_not_promoted() -> None:
    now = search_world.Truth(0.0, 0.9, 1.0, 0.05, 0.1)
    kinds = [search_trial.trial(now, now, search_trial.SEEN, np.random.default_rng(i), ()).kind for i in range(150)]
    assert kinds.count(Kind.BETTER) <= 0.05 * len(kinds)


@pytest.mark.parametrize("method", ["random", "grid", "GP"])
def test_controls_repeat_nothing_and_try_nothing_above_a_crash(method: str) -> None:
    world = made_up(crash_from=96)
    proposer, history, crashed = search_run.JUDGED[method](world, 3), [], []
    for i in range(12):
        tried = proposer.next(history, TARGET.baseline)
        assert tried is not None
        assert all(search_targets.SPACE.cell(o.configuration) != search_targets.SPACE.cell(tried) for o in history)
        assert not any(
            c["max_num_seqs"] <= tried["max_num_seqs"]
            and c["max_num_batched_tokens"] <= tried["max_num_batched_tokens"]
            for c in crashed
        )
        truth = world.truth[tried.key()]
        crashed += [tried] if truth is None else []
        history.append(search_methods.Outcome(str(i), tried, truth and truth.score, truth is None))


def test_never_reached_is_never_a_number() -> None:
    step = search_run.Step(4.0, 60.0, 0.1, 0.5)
    run = search_run.Run("random", "t", 0, False, (step,), 2, 0, 0, 0, 0, 0.0, True)
    assert run.cost("restarts") == math.inf
    assert search_report.quantile([2.0, 4.0, math.inf], 0.5) == 4.0
    assert "never" in search_report.tables([run], ["random"])


def test_patience_ends_a_search_after_so_many_trials_without_a_promotion() -> None:
    restarts = (0, 3, 5, 7, 10, 12, 14, 16)  # promoted by the first and the fourth
    steps = tuple(search_run.Step(float(r), 0.0, 0.0, 0.5) for r in restarts)
    run = search_run.Run("random", "t", 0, False, steps, 7, 0, 2, 0, 0, 0.0, True)
    assert search_report.cut(run, 24, 24) == run
    assert [search_report.cut(run, t, p).trials for t, p in ((24, 2), (24, 3), (5, 9))] == [3, 7, 5]


def test_beside_itself_random_search_is_neither_better_nor_worse() -> None:
    runs = [r for seed in range(4) for r in search_run.search("random", made_up(), seed, 0, QUIET)]
    assert all(b.mean == b.half == 0 for b in search_report.against(runs, runs, "restarts"))


@pytest.mark.soak
def test_ours_is_cheaper_than_random_search_on_the_quick_targets(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [
        sys.executable,
        str(BENCHMARKS / "search.py"),
        "--quick",
        "--methods",
        "ours, no profile;random",
        "--json",
        str(file),
    ]
    subprocess.run(command, check=True, timeout=280, capture_output=True)
    found = json.loads(file.read_text())["tuned"]["summary"]
    assert found["ours, no profile"]["restarts_mean"] < found["random"]["restarts_mean"]
    assert found["ours, no profile"]["flat_trials"] < found["random"]["flat_trials"]
