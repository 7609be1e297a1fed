"""Optuna's samplers over the lattice. The study is built anew from the outcomes on every call: equal input, equal
proposal.

A crash is never told as FAIL: samplers ignore FAIL and propose it again (19.4 crashes in 25 trials on a toy cliff,
8.6 with a violated constraint). It gets a violated constraint and a value below every measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from trimtab.engine.settings import Configuration, Value
from trimtab.search.space import PREFIX, Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

#: the one constraint: > 0 is infeasible. Every trial carries it, because GP samplers demand equal constraints
CONSTRAINT = "starts_and_serves"
#: attempts to draw a configuration that is not refused, before the lattice is searched in order of nearness
ATTEMPTS = 32


@dataclass(frozen=True)
class Point:
    """An outcome as the sampler sees it: `value` on the common scale, None where infeasible."""

    configuration: Configuration
    value: float | None


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Lattice indices, so that equal steps are equal ratios."""
    out: dict[str, BaseDistribution] = {n: IntDistribution(0, len(p) - 1) for n, p in space.lattices.items()}
    if space.tune_prefix_caching:
        out[PREFIX] = CategoricalDistribution([False, True])
    return out


def coordinates(configuration: Configuration, space: Space) -> dict[str, Value] | None:
    """Lattice coordinates; None when an integer setting is unset, so that nobody knows where it stands.

    Unset prefix caching is placed at "on", vLLM V1's default. A wrong guess costs the sampler insight, never safety.
    """
    out: dict[str, Value] = {}
    for name in space.names:
        if name == PREFIX:
            out[name] = configuration.get(name) is not False
        elif (value := configuration.integer(name)) is None:
            return None
        else:
            out[name] = space.index(name, value)
    return out


def ask(
    sampler: optuna.samplers.BaseSampler, points: Sequence[Point], allowed: Sequence[Configuration], space: Space,
    baseline: Configuration,
) -> Configuration | None:  # fmt: skip
    """One of `allowed` (points of the lattice), or None when there is none."""
    if not allowed or not space.names:
        return None
    study = _study(sampler, points, space)
    free = {c.key(): c for c in allowed}
    shape = distributions(space)
    for _ in range(ATTEMPTS):
        trial = study.ask(shape)
        values = {n: v if n == PREFIX else space.lattices[n][int(v)] for n, v in trial.params.items()}
        # drawn, not tried: no evidence, so the sampler must ignore it
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        found = free.get(space.point(baseline, values).key())
        if found is not None:
            return found
    return nearest(points, allowed, space)


def _study(sampler: optuna.samplers.BaseSampler, points: Sequence[Point], space: Space) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    shape = distributions(space)
    poor = worst(points)
    for point in points:
        params = coordinates(point.configuration, space)
        if params is None:
            continue
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=shape, value=poor if point.value is None else point.value,
                constraints={CONSTRAINT: 1.0 if point.value is None else -1.0},
            )
        )  # fmt: skip
    return study


def worst(points: Sequence[Point]) -> float:
    """What a crash counts as: below everything measured."""
    return min((p.value for p in points if p.value is not None), default=0.0) - 1.0


def nearest(points: Sequence[Point], allowed: Sequence[Configuration], space: Space) -> Configuration:
    """The allowed point closest to the best measured one; the sampler keeps drawing what is known already."""
    best = max((p for p in points if p.value is not None), key=lambda p: p.value or 0.0, default=None)
    centre = coordinates(best.configuration, space) if best is not None else None
    if centre is None:
        return allowed[len(allowed) // 2]

    def distance(configuration: Configuration) -> float:
        place = coordinates(configuration, space) or {}
        return sum(abs(float(place[n]) - float(centre[n])) for n in space.names if n in place)

    return min(allowed, key=distance)
