"""What is asked about: an engine, its limits, and pairs of load and step times that are all possible.

Two configurations are compared pair by pair, so what the pairs share cancels; what is left is the uncertainty of the
comparison. Pair 0 is the best estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np

from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.measure import Measure, measure
from trimtab.simulate.profile import Profile
from trimtab.simulate.simulator import simulate
from trimtab.simulate.summary import Limits
from trimtab.simulate.workload import Workload

#: relative error of the engine's speed where a profile has no held-out part; the largest mean TPOT error on the four
#: ground-truth runs (docs/simulator.md)
SPEED_ERROR: Final = 0.03
_MOST_SPEED_ERROR: Final = 0.5
#: 90% of a normal distribution lie within so many standard deviations
_Z: Final = 1.645
_COEFFICIENTS: Final = tuple(f.name for f in fields(StepTimes))[:6]


@dataclass(frozen=True)
class Interval:
    """A share of change, 0.1 is +10%; 90% of what is possible lies between `low` and `high`. nan: unknown."""

    low: float
    middle: float
    high: float

    @classmethod
    def of_logs(cls, logs: list[float]) -> Interval:
        """From the log ratios of the pairs; predictive, so it holds with few pairs, too."""
        known = [v for v in logs if not math.isnan(v)]
        if not known:
            return cls(math.nan, math.nan, math.nan)
        middle = float(np.mean(known))
        spread = float(np.std(known, ddof=1)) * math.sqrt(1 + 1 / len(known)) if len(known) > 1 else 0.0
        return cls(math.expm1(middle - _Z * spread), math.expm1(middle), math.expm1(middle + _Z * spread))


@dataclass(frozen=True)
class Situation:
    """`loads` and `times` are pairs. `limits` are a client's, seconds. What was simulated once is remembered."""

    config: EngineConfig
    limits: Limits
    loads: tuple[Workload, ...]
    times: tuple[StepTimes, ...]
    _known: dict[tuple[EngineConfig, int, float], Measure] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.loads or len(self.loads) != len(self.times):
            raise InputError("loads", "and times are no pairs", "Give one load for each set of step times.")

    @property
    def pairs(self) -> int:
        return len(self.loads)

    @classmethod
    def of_profile(
        cls, profile: Profile, limits: Limits, *, seconds: float = 300.0, seed: int = 0, pairs: int = 8
    ) -> Situation:
        """Pairs of possible step times and loads drawn by different seeds."""
        loads = tuple(profile.load(seconds, seed + i) for i in range(pairs))
        return cls(profile.engine, limits, loads, possible_times(profile, pairs, seed))

    @classmethod
    def of_load(cls, config: EngineConfig, limits: Limits, load: Workload, times: StepTimes) -> Situation:
        """One load and one set of step times, taken as true: intervals have no width."""
        return cls(config, limits, (load,), (times,))

    def measure(self, config: EngineConfig, pair: int = 0, *, speed: float = 1.0) -> Measure:
        """What `config` gives; `speed` 2: every step takes half the time."""
        key = (config, pair, speed)
        if key not in self._known:
            times = self.times[pair] if speed == 1.0 else scaled(self.times[pair], 1 / speed)
            self._known[key] = measure(simulate(self.loads[pair], config, times), self.limits)
        return self._known[key]

    def change(self, config: EngineConfig, of: Callable[[Measure, Measure], float]) -> Interval:
        """`of(with config, now)`, a log ratio, over all pairs."""
        return Interval.of_logs([of(self.measure(config, i), self.measure(self.config, i)) for i in range(self.pairs)])


def scaled(times: StepTimes, factor: float) -> StepTimes:
    """Every step `factor` times as long."""
    return replace(times, **{name: getattr(times, name) * factor for name in _COEFFICIENTS})


def possible_times(profile: Profile, count: int, seed: int = 0) -> tuple[StepTimes, ...]:
    """The estimate, then others that fit as well: the profile's own draws, else by its standard errors; each faster or
    slower by the error that the held-out part showed."""
    rng = np.random.default_rng([seed, 17])
    error = speed_error(profile)
    others = []
    for i in range(count - 1):
        if profile.times_draws:
            drawn = profile.times_draws[i % len(profile.times_draws)]
        else:
            drawn = _jittered(profile, rng)
        others.append(scaled(drawn, math.exp(rng.normal(0.0, error))))
    return (profile.times, *others)


def speed_error(profile: Profile) -> float:
    """Relative error of the mean time per token, or of the mean latency, on the part that was not fitted."""
    for name in ("tpot_mean_seconds", "e2e_mean_seconds"):
        if name in profile.heldout and math.isfinite(profile.heldout[name].error):
            return min(_MOST_SPEED_ERROR, abs(profile.heldout[name].error))
    return SPEED_ERROR


def _jittered(profile: Profile, rng: np.random.Generator) -> StepTimes:
    """Coefficients moved by their standard errors, independently: too wide where they share their sum."""
    moved = {
        name: max(0.0, getattr(profile.times, name) + rng.normal() * (profile.times_stderr.get(name) or 0.0))
        for name in _COEFFICIENTS
    }
    return replace(profile.times, **moved) if any(moved.values()) else profile.times
