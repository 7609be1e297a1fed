"""Runs in figures: cost until within 3% of the best, regret over cost beside random search, harm, flat targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from claims_base import Picture
from search_run import Run

OURS: Final = ("ours, with a profile", "ours, no profile")
COSTS: Final = ("restarts", "minutes")
#: budgets at which regret is compared: restarts, and minutes of as many trials
BUDGETS: Final[dict[str, tuple[float, ...]]] = {
    "restarts": tuple(range(0, 50, 2)), "minutes": tuple(range(0, 600, 30)), "late": (0, 0.5, 1, 2, 3, 4, 6, 8, 10),
}  # fmt: skip
LABELS: Final = {
    "restarts": "pod restarts", "minutes": "minutes of trials",
    "late": "minutes x share of all requests that miss the SLO because of trials",
}  # fmt: skip
#: (maxTrials, patience): none but the benchmark's own, the spec's defaults, a hurried one
LIMITS: Final = ((24, 24), (20, 8), (12, 5))
#: a search that ends itself before so many trials (the spec's default budget) has ended early
EARLY: Final = 12
_Z: Final = 1.96
#: log regret by which a band must lie above 0 to be called worse
_WORSE: Final = 0.005


@dataclass(frozen=True)
class Band:
    """A mean with its 95% interval; over seeds, each the mean over the targets."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} ± {100 * self.half:.1f}%"


def of(runs: Iterable[Run], method: str, *, flat: bool = False) -> list[Run]:
    return [r for r in runs if r.method == method and r.flat == flat]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that a share q of all do not exceed; inf counts."""
    return sorted(values)[min(len(values) - 1, math.ceil(q * len(values)) - 1)] if values else math.nan


def band(values: Sequence[float]) -> Band:
    v = np.asarray(values)
    return Band(float(v.mean()), float(_Z * v.std(ddof=1) / math.sqrt(len(v))) if len(v) > 1 else math.inf)


def by_seed(runs: Sequence[Run], value: Callable[[Run], float]) -> dict[int, float]:
    """Mean over targets, per seed."""
    seeds = sorted({r.seed for r in runs})
    return {s: float(np.mean([value(r) for r in runs if r.seed == s])) for s in seeds}


def curve(runs: Sequence[Run], cost: str) -> list[Band]:
    return [band(list(by_seed(runs, lambda r, b=b: r.regret(cost, b)).values())) for b in BUDGETS[cost]]  # type: ignore[misc]


def against(ours: Sequence[Run], theirs: Sequence[Run], cost: str) -> list[Band]:
    """Regret of ours less theirs at the same budget, paired by target and seed, over seeds that all targets have."""
    other = {(r.target, r.seed): r for r in theirs}
    pairs = [(r, other[r.target, r.seed]) for r in ours if (r.target, r.seed) in other]
    seeds = {seed: [p for p in pairs if p[0].seed == seed] for seed in {r.seed for r, _ in pairs}}
    most = max(map(len, seeds.values()), default=0)
    whole = [of_seed for of_seed in seeds.values() if len(of_seed) == most]
    return [
        band([_mean([a.regret(cost, b) - c.regret(cost, b) for a, c in one]) for one in whole]) for b in BUDGETS[cost]
    ]


def summary(runs: Sequence[Run], methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """Per method, over all targets where there is something to gain, and over those where there is not."""
    return {m: _figures(of(runs, m), of(runs, m, flat=True)) for m in methods}


def _figures(mine: Sequence[Run], flat: Sequence[Run]) -> dict[str, float]:
    every = [*mine, *flat]
    minutes = sum(r.steps[-1].minutes for r in every)
    out = {
        f"{cost}_{name}": quantile([r.cost(cost) for r in mine], q)
        for cost in COSTS
        for name, q in (("p50", 0.5), ("p90", 0.9))
    }
    out |= {
        # what is never reached counts as the whole search: a lower bound
        "restarts_mean": _mean([min(r.cost("restarts"), r.steps[-1].restarts) for r in mine]),
        "never": _mean([math.isinf(r.cost("restarts")) for r in mine]),
        "regret_end": _mean([r.steps[-1].regret for r in mine]),
        "trials": _mean([r.trials for r in mine]),
        "restarts": _mean([r.steps[-1].restarts for r in mine]),
        "searches": float(len(mine)),
        "crashes": _mean([r.crashes for r in every]),
        "promotions": float(sum(r.promotions for r in every)),
        "wrong": float(sum(r.wrong for r in every)),
        "wrong_by_1_percent": float(sum(r.wrong_by_1_percent for r in every)),
        "worse_than_found": _mean([r.gained < -0.01 for r in every]),
        "late_share": sum(r.steps[-1].late for r in every) / minutes if minutes else 0.0,
        "flat_stopped": _mean([r.stopped and r.trials < EARLY for r in flat]),
        "flat_trials": quantile([float(r.trials) for r in flat], 0.5),
        "flat_restarts": quantile([r.steps[-1].restarts for r in flat], 0.5),
        "flat_changed": _mean([r.promotions > 0 for r in flat]),
    }
    return out


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def number(value: float) -> str:
    return "never" if math.isinf(value) else "-" if math.isnan(value) else f"{value:.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def tables(runs: Sequence[Run], methods: Sequence[str]) -> str:
    """Markdown."""
    found = summary(runs, methods)
    cost = ("method", "restarts until within 3%: p50, p90", "mean, at least", "minutes: p50, p90", "never reached",
            "below the best in the end", "trials", "restarts in all", "searches")  # fmt: skip
    rows = [
        (
            m, f"{number(f['restarts_p50'])}, {number(f['restarts_p90'])}", f"{f['restarts_mean']:.1f}",
            f"{number(f['minutes_p50'])}, {number(f['minutes_p90'])}", f"{f['never']:.0%}", f"{f['regret_end']:.1%}",
            f"{f['trials']:.1f}", f"{f['restarts']:.0f}", number(f["searches"]),
        )
        for m, f in found.items()
    ]  # fmt: skip
    harm = ("method", "failed starts a search", "promotions", "to worse, by over 1%", "ends 1% below what was found",
            "time outside SLO", "flat: ended before 12 trials", "after trials, restarts (p50)",
            "changed something")  # fmt: skip
    others = [
        (
            m, f"{f['crashes']:.2f}", number(f["promotions"]),
            f"{number(f['wrong'])}, {number(f['wrong_by_1_percent'])}", f"{f['worse_than_found']:.1%}",
            f"{f['late_share']:.2%}", f"{f['flat_stopped']:.0%}",
            f"{number(f['flat_trials'])}, {number(f['flat_restarts'])}", f"{f['flat_changed']:.0%}",
        )
        for m, f in found.items()
    ]  # fmt: skip
    return "\n".join([*_table(cost, rows), "", *_table(harm, others)])


def cut(run: Run, trials: int, patience: int) -> Run:
    """As `search.maxTrials` and `search.patience` would have ended it. A promotion restarts a pod more."""
    steps, quiet = [run.steps[0]], 0
    for before, after in pairwise(run.steps):
        if len(steps) > trials or quiet >= patience:
            break
        steps.append(after)
        quiet = 0 if after.restarts - before.restarts > 2 else quiet + 1
    return replace(run, steps=tuple(steps), trials=len(steps) - 1)


def limited(runs: Sequence[Run]) -> str:
    """Ours under other limits than the benchmark's: of what has something to gain, and trials where nothing has."""
    head = ("method", "maxTrials, patience", "restarts until within 3%: p50, p90", "never reached",
            "below the best in the end", "restarts in all", "flat: trials (mean)")  # fmt: skip
    rows = []
    for method in (m for m in OURS if of(runs, m)):
        for trials, patience in LIMITS:
            some, none = ([cut(r, trials, patience) for r in of(runs, method, flat=flat)] for flat in (False, True))
            costs = [r.cost("restarts") for r in some]
            rows.append((
                method, f"{trials}, {patience}", f"{number(quantile(costs, 0.5))}, {number(quantile(costs, 0.9))}",
                f"{_mean([math.isinf(c) for c in costs]):.0%}", f"{_mean([r.steps[-1].regret for r in some]):.1%}",
                f"{_mean([r.steps[-1].restarts for r in some]):.0f}", f"{_mean([r.trials for r in none]):.1f}",
            ))  # fmt: skip
    return "\n".join(_table(head, rows))


def beside_random(runs: Sequence[Run], cost: str) -> str:
    """Is ours ever worse than random search at the same budget? Over all targets that are not flat, and per target."""
    shown = [m for m in OURS if of(runs, m)]
    rows = [against(of(runs, m), of(runs, "random"), cost) for m in shown]
    each = zip(BUDGETS[cost], *rows, strict=True)
    table = [(f"{b:g}", *map(str, bands)) for i, (b, *bands) in enumerate(each) if i % 3 == 0]
    lines = _table((f"{cost} spent", *(f"{m}, less random" for m in shown)), table)
    for m in shown:
        bad = []
        for target in sorted({r.target for r in of(runs, m)}):
            pair = [[r for r in of(runs, x) if r.target == target] for x in (m, "random")]
            if any(b.mean - b.half > _WORSE for b in against(pair[0], pair[1], cost)):
                bad.append(target)
        lines.append(f"\n{m}: worse beyond doubt at some budget on: {', '.join(bad) or 'none'}")
    return "\n".join(lines)


def by_target(runs: Sequence[Run], methods: Sequence[str]) -> str:
    """Per target: restarts until within 3% (p50), share never reached, restarts in all (mean)."""
    rows = []
    for target in dict.fromkeys(r.target for r in runs):
        cells = []
        for m in methods:
            mine = [r for r in runs if r.method == m and r.target == target]
            costs = [r.cost("restarts") for r in mine]
            never = _mean([math.isinf(c) for c in costs])
            spent = _mean([r.steps[-1].restarts for r in mine])
            cells.append(f"{number(quantile(costs, 0.5))} ({never:.0%}; {spent:.0f})")
        rows.append((target, *cells))
    return "\n".join(_table(("target", *methods), rows))


def picture(runs: Sequence[Run], cost: str, methods: Sequence[str]) -> Picture:
    x = tuple(float(b) for b in BUDGETS[cost])
    lines = []
    for m in methods:
        bands = curve(of(runs, m), cost)
        lines.append((m, tuple(100 * b.mean for b in bands), tuple(100 * b.half for b in bands)))
    title = "How far below the best what runs is (95% bands)"
    return Picture(f"search-{cost}", title, LABELS[cost], "log %, mean over targets", x, tuple(lines))
