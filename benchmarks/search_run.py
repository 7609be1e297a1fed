"""One search from beginning to end: trials, promotions, what they cost, and how far from the best what runs then is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import search_autotune
from search_methods import APPLIED, JUDGED
from search_trial import BREACHED, COOLDOWN_SECONDS, REPLICAS, START_SECONDS, Noise, trial
from search_world import World

from trimtab.engine.settings import Configuration
from trimtab.judge.bias import Start
from trimtab.judge.verdict import Kind
from trimtab.search.candidate import Outcome

#: trials of one search at most; what draws without a model is let go on to the end of its points
TRIALS: Final = 24
MOST_TRIALS: Final = {"random": 56, "grid": 56, "grid, every point": 182}
#: trials until the load drifts, where it does
DRIFT_TRIALS: Final = 10
REACHED: Final = math.log1p(0.03)


@dataclass(frozen=True)
class Step:
    """After a trial, everything since the search began. `late`: minutes times the share of all requests that miss the
    SLO because of trials. `regret`: log score of the best less that of what runs."""

    restarts: float
    minutes: float
    late: float
    regret: float


@dataclass(frozen=True)
class Run:
    """`steps[0]` is before any trial. `gained`: true log score of what runs in the end against the beginning.
    `wrong`: promotions to what is truly worse than what ran; of them by more than 1%."""

    method: str
    target: str
    seed: int
    flat: bool
    steps: tuple[Step, ...]
    trials: int
    crashes: int
    promotions: int
    wrong: int
    wrong_by_1_percent: int
    gained: float
    stopped: bool

    def cost(self, of: str) -> float:
        """Until what runs is within 3% of the best, and stays so; inf: never."""
        bad = [i for i, s in enumerate(self.steps) if s.regret > REACHED]
        last = bad[-1] + 1 if bad else 0
        return float(getattr(self.steps[last], of)) if last < len(self.steps) else math.inf

    def regret(self, of: str, budget: float) -> float:
        """Of what runs once so much is spent."""
        return [s for s in self.steps if getattr(s, of) <= budget][-1].regret


@dataclass
class _Search:
    """What has been spent, and what runs."""

    world: World
    now: Configuration
    rng: np.random.Generator
    noises: Noise
    restarts: float = 0.0
    minutes: float = 0.0
    late: float = 0.0

    def step(self) -> Step:
        return Step(self.restarts, self.minutes, self.late, self.world.best - self.world.score(self.now))


def search(method: str, world: World, seed: int, worlds_seed: int, noises: Noise) -> list[Run]:
    """One run; two where the load drifts: what runs then is where the second begins. All methods are told of it."""
    runs, now, part = [], world.target.baseline, world
    while True:
        most = MOST_TRIALS.get(method, TRIALS)
        trials = DRIFT_TRIALS if part.later is not None else most
        name = f"{world.target.name}{', before' if part.later else ', after' if world.later else ''}"
        run, now = _one(method, name, part, now, seed, worlds_seed, noises, trials)
        runs.append(run)
        if part.later is None:
            return runs
        part = part.later


def _one(
    method: str, name: str, world: World, now: Configuration, seed: int, worlds_seed: int, noises: Noise, trials: int
) -> tuple[Run, Configuration]:
    # the same noise for all methods at the same trial of the same seed
    s = _Search(world, now, np.random.default_rng([seed, *name.encode()]), noises)
    first = world.score(now)
    flat = world.best - first < REACHED
    told = _judged(method, s, seed, trials) if method in JUDGED else _applied(method, s, seed, worlds_seed)
    gained = world.score(s.now) - first
    by_1_percent = sum(loss > 0.01 for loss in told.losses)
    wrong = sum(loss > 0 for loss in told.losses)
    run = Run(
        method, name, seed, flat, tuple(told.steps), told.trials, told.crashes, len(told.losses), wrong, by_1_percent,
        gained, told.stopped,
    )  # fmt: skip
    return run, s.now


@dataclass
class _Told:
    """`losses`: true log score that each promotion lost, below 0 where it gained."""

    steps: list[Step]
    trials: int = 0
    crashes: int = 0
    losses: list[float] = field(default_factory=list)
    stopped: bool = False


def _judged(method: str, s: _Search, seed: int, trials: int) -> _Told:
    proposer = JUDGED[method](s.world, seed)
    history: list[Outcome] = []
    starts: dict[str, list[Start]] = {}
    told = _Told([s.step()])
    for i in range(trials):
        tried = proposer.next(history, s.now)
        if tried is None:
            told.stopped = True
            break
        told.trials += 1
        truth, now = s.world.truth[tried.key()], s.world.truth[s.now.key()]
        assert now is not None
        result = trial(truth, now, s.noises, s.rng, starts.get(tried.key(), ()))
        if result.measured is not None:
            starts.setdefault(tried.key(), []).append(result.measured)
        unclear = result.kind is Kind.INCONCLUSIVE
        outcome = Outcome(f"t{i}", tried, result.score, truth is None, unclear, s.now, result.deviation, result.again)
        history.append(replace(outcome, breached=result.score == BREACHED))
        told.crashes += truth is None
        s.minutes, s.late, s.restarts = s.minutes + result.minutes, s.late + result.late, s.restarts + 2.0
        if result.kind is Kind.BETTER and truth is not None:
            told.losses.append(now.score - truth.score)
            s.restarts += REPLICAS - 2.0
            s.minutes += (REPLICAS - 1) * START_SECONDS / 60
            s.now, starts = tried, {}
        else:
            s.minutes += START_SECONDS / 60
        told.steps.append(s.step())
    return told


def _applied(method: str, s: _Search, seed: int, worlds_seed: int) -> _Told:
    """Rolled out whole, without a trial of its own. What does not start is taken back after the first pod."""
    told = _Told([s.step()], stopped=True)
    if method == "auto_tune":
        chosen, starts, minutes = search_autotune.run(s.world, seed, worlds_seed, s.noises)
        s.restarts, s.minutes, told.trials = float(starts), minutes, starts
        told.steps.append(s.step())
    else:
        chosen = APPLIED[method](s.world)
    if chosen is None or chosen == s.now:
        return told
    truth, before = s.world.truth[chosen.key()], s.world.score(s.now)
    s.minutes += (START_SECONDS + COOLDOWN_SECONDS) / 60
    if truth is None:
        s.restarts, told.crashes = s.restarts + 2.0, 1
    else:
        s.restarts, s.minutes = s.restarts + REPLICAS, s.minutes + (REPLICAS - 1) * START_SECONDS / 60
        s.now = chosen
        told.losses.append(before - truth.score)
    told.steps.append(s.step())
    return told


METHODS: Final[tuple[str, ...]] = (*JUDGED, "auto_tune", *APPLIED)
