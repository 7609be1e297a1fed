"""Whether the traffic can show a gain within the time a trial has. An estimate before the trial; the judge has the
say afterwards. Pure.

Requests arrive at random and their answers differ in length, so n requests give tokens with a relative error of
sqrt((1 + cv^2) / n). Two arms, a two-sided 95% interval and 80% power ask for z = 1.96 + 0.84 of it (any textbook on
sample size). Beside the judge's own figures (judge/verdict.py: 30 windows of 60 requests, +10% seen in 67%): by this
formula 52% at a CV of 1, 73% at 0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trimtab.judge.verdict import MIN_WINDOWS
from trimtab.judge.windows import MIN_FINISHED_PER_WINDOW
from trimtab.observe.observation import Observation
from trimtab.observe.profile import coefficient_of_variation

_Z: Final = 1.96 + 0.84
#: of output lengths, where nothing is known: that of an exponential
_USUAL_CV: Final = 1.0
#: times and gains are told in these steps, so that a text does not change on every tick
_TIMES: Final = (
    (60, "a minute"), (300, "5 min"), (900, "15 min"), (1800, "30 min"), (3600, "an hour"), (7200, "2 hours"),
    (18_000, "5 hours"), (43_200, "12 hours"), (86_400, "a day"), (604_800, "a week"),
)  # fmt: skip
_GAINS: Final = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200)


@dataclass(frozen=True)
class Traffic:
    """Requests per second of one pod, and what one answer's length varies by."""

    per_pod: float
    cv: float = _USUAL_CV


def traffic_of(observation: Observation | None, replicas: int) -> Traffic | None:
    """None where the rate is not known or nothing comes."""
    rate = observation.arrivals_per_second if observation is not None else None
    if observation is None or not rate or replicas < 1:
        return None
    lengths = observation.output_length
    cv = coefficient_of_variation(lengths) if lengths is not None else None
    return Traffic(rate / replicas, _USUAL_CV if cv is None else cv)


def seconds_to_see(gain: float, traffic: Traffic, control_pods: int) -> float:
    """How long a canary must serve beside `control_pods` pods until a gain (0.1 is 10%) would be seen, in seconds."""
    arms = 1 + 1 / max(1, control_pods)
    spread = (1 + traffic.cv**2) * arms
    requests = spread * (_Z / math.log1p(gain)) ** 2 if gain > 0 else math.inf
    return max(requests, MIN_WINDOWS * MIN_FINISHED_PER_WINDOW) / traffic.per_pod


def smallest_gain(seconds: float, traffic: Traffic, control_pods: int) -> float:
    """The gain that would be seen after so many seconds; inf where the judge would not even have its windows."""
    requests = traffic.per_pod * seconds
    if requests < MIN_WINDOWS * MIN_FINISHED_PER_WINDOW:
        return math.inf
    return math.expm1(_Z * math.sqrt((1 + traffic.cv**2) * (1 + 1 / max(1, control_pods)) / requests))


def about(seconds: float) -> str:
    """A duration in coarse steps."""
    return next((text for limit, text in _TIMES if seconds <= limit), "more than a week")


def about_gain(gain: float) -> str:
    """A gain in coarse steps, in percent, rounded up."""
    return next((f"{step}%" for step in _GAINS if gain * 100 <= step), "more than 200%")
