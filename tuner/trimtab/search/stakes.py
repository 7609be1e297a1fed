"""Is a trial worth its restarts? What it may bring against what it costs, both in pod-hours of served goodput. Pure.

A gain is worth its share of all pods for the hours it is expected to last. A trial costs the capacity that is away
while pods restart, and what the users of the canary lose while it serves worse. The search stops when the best
candidate's expected gain is worth less than its trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trimtab.observe.observation import Observation

_HOUR: Final = 3600.0
#: users' loss in a trial counts this many times a later gain: it is certain and now
CAUTION: Final = 3.0
#: waiting requests per running one below which nothing is said to wait
_WAITING: Final = 0.02
#: a latency ratio beyond e^1.5 moves the score no further (`trimtab.judge.verdict`)
_LATENCY_LIMIT: Final = 1.5


@dataclass(frozen=True)
class Stakes:
    """`horizon_hours`: how long a setting is expected to stay right. replicas: pods of the target. start_seconds: until
    a restarted engine serves. measure_seconds: of one trial, warm-up included. restarts: pods started anew by a trial
    that is rolled back, 0 where it needs none. least_gain: a share; less is not promoted.
    """

    horizon_hours: float = 72.0
    replicas: int = 2
    start_seconds: float = 120.0
    measure_seconds: float = 600.0
    restarts: float = 2.0
    least_gain: float = 0.03

    def worth(self, gain: float) -> float:
        """Pod-hours that a gain (log, expected) brings."""
        return gain * self.replicas * self.horizon_hours

    def cost(self, loss: float, crash: float) -> float:
        """Pod-hours of a trial. loss: expected log goodput that the canary lacks; crash: probability of no start.

        A canary that does not start serves nobody, so it loses restarts only.
        """
        away = self.restarts * self.start_seconds * (1.0 + crash)
        harm = CAUTION * loss * (1.0 - crash) * self.measure_seconds
        return (away + harm) / _HOUR

    def compare(self, worth: float, cost: float) -> str:
        """In words."""
        return (
            f"a trial of it is worth {worth:.2g} pod-hours within {self.horizon_hours:g} h (gains of "
            f"{self.least_gain:.0%} and more) and costs {cost:.2g}"
        )


def room_of(
    observation: Observation, ttft_seconds: float | None, tpot_seconds: float | None, ttft_weight: float = 0.1
) -> float | None:
    """Log score that any setting can bring at most, from what is seen now; None where that is not known.

    Where no request waits, what arrives is served: goodput can only grow by the requests that miss the SLO or whose
    clients leave, and the time to the first token can only fall by the time spent in the queue, or by all of it where
    prefix caching is off.
    """
    running, waiting = observation.running, observation.waiting
    if running is None or waiting is None or waiting > _WAITING * max(1.0, running):
        return None
    if observation.preemptions is None or observation.preemptions > 0:
        return None
    met = observation.attainment(ttft_seconds, tpot_seconds)
    if met is None or met <= 0:
        return None
    queued, first = observation.queue_seconds, observation.ttft_seconds
    share = 0.0
    if queued is not None and first is not None and queued.mean is not None and first.mean:
        share = min(0.99, max(0.0, queued.mean / first.mean))
    if observation.prefix_caching is False or observation.prefix_queries == 0:
        share = 1.0 - math.exp(-_LATENCY_LIMIT)
    stayed = 1.0 - min(0.99, max(0.0, observation.abort_rate or 0.0))
    return -math.log(min(1.0, met) * stayed) + ttft_weight * min(_LATENCY_LIMIT, -math.log1p(-share))
