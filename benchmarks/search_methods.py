"""Ways to search, behind one small interface: `next(history, now)` gives what to try, None ends the search.

All but `auto_tune`, `defaults` and `expert` are promoted by the judge, skip what has been tried and what lies above a
crash (`trimtab.search.refuse`), and repeat a trial where the judge asks for another start.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from scipy.stats import norm
from search_targets import SPACE
from search_trial import GUARDRAIL_RATIO, LEAST_GAIN, REPLICAS, START_SECONDS
from search_world import World, model

from trimtab.diagnose.finding import Finding, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation
from trimtab.search.candidate import Outcome, levels
from trimtab.search.foretell import Oracle
from trimtab.search.priors import candidates
from trimtab.search.refuse import refusal
from trimtab.search.space import Space
from trimtab.search.stakes import Stakes, room_of
from trimtab.search.study import Study

#: requests that the oracle simulates per configuration and pair
MODEL_REQUESTS: Final = 150
#: preemptions per request from which the diagnosis speaks of them here
PREEMPTED: Final = 0.05


class Method(Protocol):
    """`history`: finished trials, oldest first. `now`: what runs."""

    def next(self, history: Sequence[Outcome], now: Configuration) -> Configuration | None: ...


Maker = Callable[[World, int], Method]


def _repeat(history: Sequence[Outcome]) -> Configuration | None:
    """What the judge wants to see started again."""
    return history[-1].configuration if history and history[-1].again else None


@dataclass
class Ordered:
    """A fixed order without repeats."""

    space: Space
    order: Sequence[Configuration]

    def next(self, history: Sequence[Outcome], now: Configuration) -> Configuration | None:
        space = self.space
        if (again := _repeat(history)) is not None and refusal(again, history, now, space) is None:
            return again
        tried = {space.cell(o.configuration) for o in history}
        return next(
            (c for c in self.order if space.cell(c) not in tried and refusal(c, history, now, space) is None), None
        )


def random_search(world: World, seed: int) -> Method:
    order = list(world.target.space.all(world.target.baseline))
    random.Random(seed).shuffle(order)
    return Ordered(world.target.space, order)


def fine_grid(world: World, seed: int) -> Method:
    """Every point of the lattice, ascending, caching on before off."""
    every = list(world.target.space.all(world.target.baseline))
    return Ordered(world.target.space, sorted(every, key=lambda c: c.get("enable_prefix_caching") is False))


def grid(world: World, seed: int) -> Method:
    """Powers of two only: 56 points instead of the lattice's 182."""
    space = world.target.space
    known = [c for c in space.all(world.target.baseline) if all(_power_of_two(c, n) for n in space.lattices)]
    return Ordered(space, sorted(known, key=lambda c: c.get("enable_prefix_caching") is False))


def _power_of_two(c: Configuration, name: str) -> bool:
    return math.log2(c.integer(name) or 1).is_integer()


@dataclass
class Sampled:
    """A plain sampler of Optuna behind the same refusals: never stops by itself."""

    space: Space
    study: Study

    def next(self, history: Sequence[Outcome], now: Configuration) -> Configuration | None:
        if (again := _repeat(history)) is not None and refusal(again, history, now, self.space) is None:
            return again
        found = self.study.propose(history, now)
        return None if found is None else found.configuration


def sampled(world: World, seed: int, sampler: str) -> Method:
    space = world.target.space
    return Sampled(space, Study(None, "benchmark", space, seed, sampler=sampler))


@dataclass
class PlainGp:
    """Gaussian process with expected improvement (Jones, Schonlau, Welch 1998), five random trials first; a crash
    counts as one below the worst. Length scale: an octave and a half; noise: that of a trial."""

    space: Space
    seed: int
    start: int = 5
    length: float = 1.5
    noise: float = 0.05

    def next(self, history: Sequence[Outcome], now: Configuration) -> Configuration | None:
        space = self.space
        if (again := _repeat(history)) is not None and refusal(again, history, now, space) is None:
            return again
        tried = {space.cell(o.configuration) for o in history}
        free = [c for c in space.all(now) if space.cell(c) not in tried and refusal(c, history, now, space) is None]
        if not free:
            return None
        if len(history) < self.start:
            return random.Random(f"{self.seed}:{len(history)}").choice(free)
        known = [(m.configuration, m.value) for m in levels(history)]
        worst = min((v for _, v in known), default=0.0) - 1.0
        known += [(o.configuration, worst) for o in history if o.infeasible]
        at, of = np.array([_place(c, space) for c, _ in known]), np.array([_place(c, space) for c in free])
        y = np.array([v for _, v in known])
        mean, sd = float(y.mean()), max(0.05, float(y.std()))
        gram = self._kernel(at, at) + (self.noise / sd) ** 2 * np.eye(len(at))
        cross = self._kernel(of, at)
        middle = cross @ np.linalg.solve(gram, (y - mean) / sd)
        spread = np.sqrt(np.maximum(1e-9, 1 - np.einsum("ij,ji->i", cross, np.linalg.solve(gram, cross.T))))
        z = (middle - (float(y.max()) - mean) / sd) / spread
        return free[int(np.argmax(spread * (z * norm.cdf(z) + norm.pdf(z))))]

    def _kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(-1) / (2 * self.length**2))


def _place(c: Configuration, space: Space) -> tuple[float, ...]:
    octaves = [math.log2(c.integer(n) or 1) for n in space.lattices]
    return (*octaves, 2.0 * (c.get("enable_prefix_caching") is not False))


@dataclass
class Ours:
    """The product's search as the operator drives it: guesses from what is observed, stakes, and what room there is.
    `oracle`: with a calibrated profile, whose step times are not quite the target's."""

    world: World
    seed: int
    oracle: Oracle | None
    study: Study = field(init=False)

    def __post_init__(self) -> None:
        self.study = Study(None, "benchmark", self.world.target.space, self.seed)

    def next(self, history: Sequence[Outcome], now: Configuration) -> Configuration | None:
        seen = self.world.observe(now)
        guesses = candidates(now, seen, findings(seen), self.world.target.space)
        limits = self.world.target.limits
        ttft, tpot = (v if math.isfinite(v) else None for v in (limits.ttft_seconds, limits.tpot_seconds))
        room = room_of(seen, ttft, tpot)
        stakes = Stakes(replicas=REPLICAS, start_seconds=START_SECONDS, least_gain=LEAST_GAIN)
        found = self.study.propose(
            history, now, guesses if self.oracle is None else (), self.oracle, stakes=stakes, room=room
        )
        return None if found is None else found.configuration


def ours(world: World, seed: int) -> Method:
    return Ours(world, seed, None)


def ours_with_profile(world: World, seed: int) -> Method:
    limits = world.target.limits
    watched = (GUARDRAIL_RATIO if math.isfinite(v) else math.inf for v in (limits.ttft_seconds, limits.tpot_seconds))
    return Ours(world, seed, Oracle(model(world.target, MODEL_REQUESTS), world.target.space, tuple(watched)))


def findings(seen: Observation) -> list[Finding]:
    """As `trimtab.diagnose` names it where preemption is plain."""
    often = (seen.preemptions or 0.0) / max(1.0, seen.requests or 0.0)
    if often < PREEMPTED:
        return []
    text = f"{often:.2f} preemptions a request"
    return [Finding("Preemption", Severity.WARNING, 0.9, text, "", {"preemptions_per_request": often})]


def defaults(world: World) -> Configuration:
    """What vLLM takes when nothing is said, within the space: 8192 tokens and 1024 sequences from 70 GiB on (not on an
    A100), else 2048 and 256; caching on. Source: vLLM 0.32, `EngineArgs.get_batch_defaults`."""
    large = any(gpu in world.target.profile.source for gpu in ("H100", "MI300X"))
    return _of(world, 1024 if large else 256, 8192 if large else 2048)


def expert(world: World) -> Configuration:
    """Rules that are passed on, applied once: as many sequences as fit the KV cache at mean length (the arithmetic of
    vLLM's start-up line "Maximum concurrency"); `max_num_batched_tokens` 2048 where the time between tokens matters,
    above 8192 where throughput does, and prefix caching on (docs.vllm.ai, Optimization and Tuning)."""
    load, engine = world.target.profile.workload, world.target.profile.engine
    fits = engine.usable_blocks * engine.block_size / (load.prompt_tokens.mean + load.output_tokens.mean)
    return _of(world, fits, 2048 if math.isfinite(world.target.limits.tpot_seconds) else 8192)


def _of(world: World, seqs: float, tokens: float) -> Configuration:
    numbers = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    values = {n: SPACE.snap(n, v) for n, v in numbers.items()}
    return SPACE.point(world.target.baseline, {**values, "enable_prefix_caching": True})


JUDGED: Final[dict[str, Maker]] = {
    "ours, with a profile": ours_with_profile,
    "ours, no profile": ours,
    "random": random_search,
    "grid": grid,
    "grid, every point": fine_grid,
    "TPE": lambda world, seed: sampled(world, seed, "TPE"),
    "GP": lambda world, seed: PlainGp(world.target.space, seed),
    "CMA-ES": lambda world, seed: sampled(world, seed, "CMA-ES"),
}
APPLIED: Final = {"defaults": defaults, "expert": expert}
