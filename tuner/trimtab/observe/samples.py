"""`Samples`: raw time series of pods, and the `MetricsSource` interface that yields them.

A source only fetches; what the series mean is decided in one pure place (`trimtab.observe.mapping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: (unix seconds, value), ascending in time
Points = tuple[tuple[float, float], ...]
#: metric name and sorted label pairs without pod, instance and job
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class PodRef:
    """Where a pod's metrics are: `name` and `namespace` as labels, `ip` and `port` for a scrape or an `instance` label."""

    name: str
    namespace: str
    ip: str | None
    port: int


@dataclass(frozen=True)
class Samples:
    """Series by pod name. A pod that the source knows nothing of is absent."""

    pods: Mapping[str, Mapping[SeriesKey, Points]] = field(default_factory=dict)


class MetricsSource(Protocol):
    """Fetches series; every call has a timeout. Raises `MetricsUnreachable` or `MetricsRefused`, never returns made-up zeros."""

    def fetch(self, pods: Sequence[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        """Samples of `pods` at about every `step_seconds` in [start, end] (unix seconds).

        A source that holds nothing as old as `start` returns what it has; the Observation then covers fewer seconds.
        """
        ...

    def close(self) -> None: ...
