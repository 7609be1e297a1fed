"""The samplers: one small interface, so that they can be compared (benchmarks) and chosen (spec.search.sampler).

They say *where* to look next, by the points so far; what may be tried at all, and whether it is worth a restart, is
decided outside. Equal input, equal answer: nothing is kept between calls. The search's own default is none of these
but `prospects`, which knows noise and cost; they are its controls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import optuna
from cmaes import CMA
from scipy.stats import qmc

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.search.sampling import ATTEMPTS, Point, ask, coordinates, nearest, worst
from trimtab.search.space import PREFIX, Space

#: outcomes before a sampler's model is used
STARTUP_TRIALS: Final = 4
_SAMPLER_FIX: Final = "Use Model, TPE, CMA-ES, Random or Grid, or install the extra `gp`, which brings PyTorch."


class Sampler(Protocol):
    """`draw` gives one of `allowed`, None only where there is none. points: oldest first; seed: grows with them."""

    @property
    def name(self) -> str:
        """As in spec.search.sampler."""

    def draw(
        self,
        points: Sequence[Point],
        allowed: Sequence[Configuration],
        space: Space,
        baseline: Configuration,
        seed: int,
    ) -> Configuration | None: ...


class Tpe:
    """Optuna's tree of Parzen estimators; heeds crashes. One observation is its good set up to 10 trials."""

    name = "TPE"

    def draw(
        self, points: Sequence[Point], allowed: Sequence[Configuration], space: Space, baseline: Configuration,
        seed: int,
    ) -> Configuration | None:  # fmt: skip
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
        return ask(sampler, points, allowed, space, baseline)


class Gp:
    """Optuna's Gaussian process with constrained expected improvement. Needs PyTorch: InputError without it."""

    name = "GP"

    def draw(
        self, points: Sequence[Point], allowed: Sequence[Configuration], space: Space, baseline: Configuration,
        seed: int,
    ) -> Configuration | None:  # fmt: skip
        try:
            import torch  # noqa: F401  # Optuna imports it on first use, with an error that names no remedy
        except ImportError as error:
            raise InputError("spec.search.sampler", "GP needs PyTorch, which is not here", _SAMPLER_FIX) from error
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        return ask(sampler, points, allowed, space, baseline)


class CmaEs:
    """Covariance matrix adaptation over the lattice's indices, by Optuna's own implementation (cmaes).

    Optuna's sampler keeps its state in the trials it drew itself; here all points are told again, in generations.
    """

    name = "CMA-ES"

    def draw(
        self, points: Sequence[Point], allowed: Sequence[Configuration], space: Space, baseline: Configuration,
        seed: int,
    ) -> Configuration | None:  # fmt: skip
        if not allowed or not space.names:
            return None
        if len(space.names) < 2:  # the method adapts a covariance: it is not defined for one setting
            return Random().draw(points, allowed, space, baseline, seed)
        sizes = np.array([2 if n == PREFIX else len(space.lattices[n]) for n in space.names], dtype=float)
        evolution = CMA(mean=np.full(len(sizes), 0.5), sigma=0.3, bounds=np.array([[0.0, 1.0]] * len(sizes)), seed=seed)
        known = [(c, p.value) for p in points if (c := coordinates(p.configuration, space)) is not None]
        told = [
            ((np.array([float(c[n]) for n in space.names]) + 0.5) / sizes, -(worst(points) if v is None else v))
            for c, v in known
        ]
        size = evolution.population_size
        for start in range(0, len(told) - size + 1, size):
            evolution.tell(told[start : start + size])
        free = {c.key(): c for c in allowed}
        for _ in range(ATTEMPTS):
            index = np.minimum(evolution.ask() * sizes, sizes - 1).astype(int)
            values = {
                n: bool(i) if n == PREFIX else space.lattices[n][i] for n, i in zip(space.names, index, strict=True)
            }
            found = free.get(space.point(baseline, values).key())
            if found is not None:
                return found
        return nearest(points, allowed, space)


class Random:
    """Uniform over what may still be tried, so never the same twice: a strong control."""

    name = "Random"

    def draw(
        self, points: Sequence[Point], allowed: Sequence[Configuration], space: Space, baseline: Configuration,
        seed: int,
    ) -> Configuration | None:  # fmt: skip
        return random.Random(seed).choice(list(allowed)) if allowed and space.names else None


class Grid:
    """Evenly spread over the lattice, coarse before fine (Halton's sequence); what a careful person would do."""

    name = "Grid"

    def draw(
        self, points: Sequence[Point], allowed: Sequence[Configuration], space: Space, baseline: Configuration,
        seed: int,
    ) -> Configuration | None:  # fmt: skip
        if not allowed or not space.names:
            return None
        places = [coordinates(c, space) or {} for c in allowed]
        sizes = {n: 2 if n == PREFIX else len(space.lattices[n]) for n in space.names}
        wanted = qmc.Halton(len(sizes), scramble=False).random(len(points) + 1)[-1]

        def far(place: Mapping[str, object]) -> float:
            return sum(
                abs((float(place[n]) + 0.5) / sizes[n] - w)  # type: ignore[arg-type]
                for n, w in zip(space.names, wanted, strict=True) if n in place
            )  # fmt: skip

        return allowed[min(range(len(allowed)), key=lambda i: far(places[i]))]


SAMPLERS: Final[Mapping[str, Callable[[], Sampler]]] = {
    "TPE": Tpe, "GP": Gp, "CMA-ES": CmaEs, "Random": Random, "Grid": Grid,
}  # fmt: skip
NAMES: Final = tuple(SAMPLERS)


def sampler(name: str) -> Sampler:
    """By its name; InputError for one that is not there."""
    if name not in SAMPLERS:
        raise InputError("spec.search.sampler", f"{name!r} is no sampler", f"Use Model, {', '.join(NAMES)}.")
    return SAMPLERS[name]()
