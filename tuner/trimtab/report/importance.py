"""Which settings mattered: PED-ANOVA over the measured trials, by Optuna. Few trials say nothing, and that is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.engine.settings import Configuration, Value
from trimtab.plan.record import TrialRecord
from trimtab.report.story import LEAST_FOR_IMPORTANCE, Report
from trimtab.search.candidate import levels
from trimtab.tune.proposals import outcome_of

__all__ = ["shares"]


def shares(report: Report) -> tuple[list[tuple[str, float]], str]:
    """(setting, share), largest first; and why there is none, or "". Scores are put on one level first."""
    measured = _levels(report.tried)
    if len(measured) < LEAST_FOR_IMPORTANCE:
        many = "1 trial was" if len(measured) == 1 else f"{len(measured)} trials were"
        return [], f"{many} measured; below {LEAST_FOR_IMPORTANCE} a share per setting says nothing."
    moved = sorted({n for c, _ in measured for n in c if _values(measured, n) > 1})
    if len(moved) < 2:
        only = f"Only {moved[0]} was" if moved else "No setting was"
        return [], f"{only} changed in these trials, so there is nothing to share out."
    found = _ped_anova(measured, moved)
    if not found:
        return [], "All trials scored alike, so no setting stands out."
    return sorted(found.items(), key=lambda item: -item[1]), ""


def _levels(trials: Sequence[TrialRecord]) -> list[tuple[Configuration, float]]:
    """Configurations and scores on one level, as the search sees them."""
    return [(level.configuration, level.value) for level in levels([outcome_of(t) for t in trials])]


def _values(measured: Sequence[tuple[Configuration, float]], name: str) -> int:
    return len({c.get(name) for c, _ in measured})


def _ped_anova(measured: Sequence[tuple[Configuration, float]], names: Sequence[str]) -> dict[str, float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    spaces = {n: _space(optuna, [c.get(n) for c, _ in measured]) for n in names}
    for c, score in measured:
        params = {n: c.get(n) for n in names}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=score))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=list(names))
    total = sum(found.values())
    return {n: v / total for n, v in found.items()} if total > 0 else {}


def _space(optuna: Any, values: Sequence[Value | None]) -> Any:
    """Numbers as a logarithmic range, anything else (an engine's default among it) as choices."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(values) and min(numbers) > 0:
        kind = optuna.distributions
        if all(isinstance(v, int) for v in numbers):
            return kind.IntDistribution(min(numbers), max(numbers), log=True)
        return kind.FloatDistribution(min(numbers), max(numbers), log=True)
    return optuna.distributions.CategoricalDistribution(sorted(set(values), key=str))
