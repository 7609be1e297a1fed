"""`Samples`: raw time series of pods, and the `MetricsSource` interface that yields them.

A source only fetches; what the series mean is decided in one pure place (`trimtab.observe.mapping`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: (unix seconds, value), ascending in time
Points = tuple[tuple[float, float], ...]
#: metric name and sorted label pairs without pod, instance and job
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
#: A counter needs a sample to count from: sources return samples from this much before `start`, where they have them,
#: and an Observation counts from the last one at or before `start`. Above the usual scrape intervals (15 to 60 s).
BASELINE_SECONDS = 90.0
#: every sample of the last seconds is returned as it was scraped, so that guardrails see true times
RECENT_SECONDS = 300.0
#: a series may have at most about this many points before that; above it, older ones are thinned
MAX_POINTS = 240


def older_step(start: float, end: float, step_seconds: float) -> float:
    """The step in whole seconds to which samples older than RECENT_SECONDS are thinned where there are too many."""
    return float(max(1, math.ceil(step_seconds), math.ceil((end - start) / MAX_POINTS)))


@dataclass(frozen=True)
class PodRef:
    """Where a pod's metrics are.

    `name` and `namespace` as labels, `ip` and `port` for a scrape or an `instance` label.
    """

    name: str
    namespace: str
    ip: str | None
    port: int


@dataclass(frozen=True)
class Samples:
    """Series by pod name. A pod that the source knows nothing of is absent."""

    pods: Mapping[str, Mapping[SeriesKey, Points]] = field(default_factory=dict)
    #: what readers have worked out of these samples, so that they work it out once; goes with them
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


class MetricsSource(Protocol):
    """Fetches series; every call has a timeout.

    Raises `MetricsUnreachable` or `MetricsRefused`, never returns made-up zeros.
    """

    def fetch(self, pods: Sequence[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        """Samples of `pods` in [start - BASELINE_SECONDS, end] (unix seconds), at least about every `step_seconds` if
        held.

        A source that holds nothing as old as `start` returns what it has; the Observation then covers fewer seconds.
        """
        ...

    def close(self) -> None: ...
