"""Which candidate promises most for what its trial costs, by the trials so far and the simulator if there is one. Pure.

The gain that counts is what is expected after the trial has been judged (knowledge gradient: Frazier, Powell and
Dayanik, 2008): a trial whose noise hides the gain brings nothing, and only a gain beyond the least one is promoted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trimtab.engine.settings import Configuration
from trimtab.search.candidate import NOISE, Outcome
from trimtab.search.normal import positive_part
from trimtab.search.posterior import F64, Beliefs, Place, Seen, beliefs
from trimtab.search.space import Space
from trimtab.search.stakes import Stakes

if TYPE_CHECKING:  # it imports the simulator and with it numba, which a search without a profile does not need
    from trimtab.search.foretell import Oracle

#: octaves over which a crash makes another one likely, and a trial that a guardrail ended another such end
_CRASH, _BREACH = 1.5, 1.0
#: probability that a start fails where nothing of the kind has been tried, per octave of memory beyond what runs
_UNKNOWN_START: Final = 0.05
#: octaves beyond what is known to serve: a factor of four
_LEAP: Final = 2.0
#: a configuration that lost more than this (log) is no place to step on from
_HARMFUL: Final = -0.1
_MEMORY: Final = ("max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True)
class Prospect:
    """A candidate. mean and deviation: of its log score over the baseline. gain: expected of a trial, log. cost: of
    that trial, worth of the gain and their difference `net`, in pod-hours. crash: probability that it does not start.
    near: no leap beyond what is known to serve; the far ones wait until nothing near is worth a trial. simulated: with
    the simulator's word. ended: probability, by the simulator, that a guardrail ends the trial.
    """

    configuration: Configuration
    mean: float
    deviation: float
    gain: float
    worth: float
    cost: float
    crash: float
    near: bool = True
    simulated: bool = False
    ended: float = 0.0

    @property
    def net(self) -> float:
        return self.worth - self.cost

    def __str__(self) -> str:
        if self.simulated:
            mean, low, high = (_percent(self.mean + s * self.deviation) for s in (0, -1, 1))
            return f"simulated {mean} ({low} to {high}) against what runs now"
        low, high = (f"{math.expm1(self.mean + s * self.deviation):+.0%}" for s in (-1, 1))
        return f"expected {math.expm1(self.mean):+.1%} ({low} to {high}) against what runs now"


def _percent(log: float) -> str:
    share = math.expm1(log)
    return f"{share:+.0%}" if share < 2 else f"x{1 + share:.0f}"


def prospects(
    allowed: Sequence[Configuration],
    history: Sequence[Outcome],
    baseline: Configuration,
    space: Space,
    *,
    guesses: Sequence[Configuration] = (),
    stakes: Stakes | None = None,
    room: float | None = None,
    context: Place = (),
    oracle: Oracle | None = None,
) -> list[Prospect]:
    """All of them, the one to try first in front. room: log score that any setting can bring at most, None: unknown.

    With an oracle, which says what this load would do, the history is of this load only.
    """
    if not allowed:
        return []
    stakes = stakes or Stakes()
    at = space.place if oracle is None else oracle.place
    here, places = at(baseline), [at(c) for c in allowed]
    measured = [o for o in history if o.measured and not o.breached]
    foretold, ends = None, np.zeros((len(allowed), 1))
    if oracle is not None:
        foretold, ends = oracle.foretell(allowed, measured, baseline)
    found = beliefs(seen_of(measured, at), places, here, [at(g) for g in guesses], context, foretold)
    breaches = [at(o.configuration) for o in history if o.breached]
    again = np.array([1.0 - _spared(place, breaches, _BREACH) for place in places])[:, None]
    ended = np.maximum(again, np.where(found.worlds >= 0, ends[:, np.maximum(found.worlds, 0)], 0.0))
    crashes = [at(o.configuration) for o in history if o.infeasible]
    noise = float(np.median([o.noise for o in measured] or [NOISE]))
    gains = expected_gains(found, noise, math.log1p(stakes.least_gain), room, ended)
    losses = 1.0 - np.exp(-(positive_part(-found.means, found.deviations) @ found.weights))
    serves = [at(o.configuration) for o in measured if (o.score or 0.0) > _HARMFUL]
    best = [] if foretold is None else [places[i] for i in np.unique(foretold.candidates.argmax(axis=0))]
    steps = [here, *(at(g) for g in guesses), *serves, *best]
    out = []
    for i, (configuration, place) in enumerate(zip(allowed, places, strict=True)):
        crash = crash_probability(place, here, crashes, space)
        gain = (1.0 - crash) * float(gains[i])
        cost = stakes.cost(float(losses[i]), crash)
        out.append(Prospect(
            configuration, found.mean(i), found.deviation(i), gain, stakes.worth(gain), cost, crash,
            any(_apart(place, s) <= _LEAP for s in steps), oracle is not None, float(ended[i] @ found.weights),
        ))  # fmt: skip
    return sorted(out, key=lambda p: (-p.net, -p.mean, p.configuration.key()))


def expected_gains(found: Beliefs, noise: float, least: float, room: float | None, ended: F64) -> F64:
    """Per candidate: expected log gain beyond `least` of promoting by what a trial with this noise will say, unless a
    guardrail ends it first (`ended`: probability, per candidate and hypothesis)."""
    if room is not None and room <= least:
        return np.zeros(len(found.means))
    learned = found.deviations**2 / np.hypot(found.deviations, noise)
    beyond = positive_part(found.means - least, learned)
    if room is not None:
        beyond -= positive_part(found.means - room, learned)
    return np.maximum(0.0, (beyond * (1.0 - ended)) @ found.weights)


def _apart(first: Place, second: Place) -> float:
    return max((abs(a - b) for a, b in zip(first, second, strict=True)), default=0.0)


def crash_probability(place: Place, here: Place, crashes: Sequence[Place], space: Space) -> float:
    """Near a crash another is likely; more memory than what runs now is a risk of its own."""
    starts = _spared(place, crashes, _CRASH)
    beyond = sum(max(0.0, a - b) for n, a, b in zip(space.names, place, here, strict=True) if n in _MEMORY)
    return 1.0 - starts * (1.0 - _UNKNOWN_START) ** beyond


def _spared(place: Place, ends: Sequence[Place], octaves: float) -> float:
    """Probability that it does not end like one of those near by."""
    spared = 1.0
    for end in ends:
        squared = sum((a - b) ** 2 for a, b in zip(place, end, strict=True))
        spared *= 1.0 - math.exp(-squared / (2 * octaves**2))
    return spared


def seen_of(measured: Sequence[Outcome], at: Callable[[Configuration], Place]) -> list[Seen]:
    """A control that is not known is the first one that is."""
    controls = (o.control for o in measured if o.control is not None)
    first = next(controls, Configuration.of())
    return [Seen(at(o.configuration), at(o.control or first), o.score or 0.0, o.noise, o.context) for o in measured]
