"""`Case`: what every rule reads, whether it came from an operator's Observations, a /metrics page or a written report.

A time series of `Point`s in which anything may be missing. Gauges and rates are those of one engine where the source
knows engines apart; a report may hold sums over replicas (see `Case.slot_share`). Unknown is None and stays None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final

from trimtab.diagnose.engines import Engine, vllm
from trimtab.diagnose.facts import Facts
from trimtab.diagnose.finding import Limits

#: every series that a rule may ask for; seconds, tokens, shares from 0 to 1, rates per second
FIELDS: Final = frozenset({
    "running", "waiting", "waiting_deferred", "waiting_capacity", "swapped", "kv_usage", "kv_usage_max",
    "preemptions_per_second", "prompt_tokens_per_second", "generation_tokens_per_second", "requests_per_second",
    "finished_per_second", "errors_per_second", "steps_per_second", "prefix_hit_ratio", "prefix_queries_per_second",
    "ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_mean_seconds", "tpot_p99_seconds",
    "e2e_p50_seconds", "e2e_p99_seconds", "queue_p50_seconds", "queue_p99_seconds", "abort_rate", "useful_token_ratio",
    "wasted_token_ratio", "completion_ratio", "client_in_flight", "replicas", "gpu_utilization", "cpu_utilization",
    "prompt_tokens_mean", "prompt_tokens_p50", "prompt_tokens_p99", "output_tokens_mean", "output_tokens_p50",
    "output_tokens_p99", "max_tokens_mean", "kv_capacity_tokens", "block_size_tokens", "restarts",
})  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One moment or window. t_seconds: its end, None if the report does not say. healthy: what a health check said."""

    t_seconds: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    healthy: bool | None = None
    settings: Mapping[str, float] = field(default_factory=dict)

    def get(self, name: str) -> float | None:
        if name not in FIELDS:
            raise KeyError(name)
        return self.values.get(name)


@dataclass(frozen=True)
class Case:
    """points: ascending in time. parts: pods or ranks by name, each with its own points. window_seconds: what one point
    covers where it is a window, else 0. context: fields nobody reads, as they were written."""

    points: tuple[Point, ...]
    engine: Engine = field(default_factory=vllm)
    limits: Limits = field(default_factory=Limits)
    facts: Facts = field(default_factory=Facts)
    parts: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    window_seconds: float = 0.0
    requests_seen: float | None = None
    context: Mapping[str, object] = field(default_factory=dict)

    # --- one series ---------------------------------------------------------------------------------------------------
    def series(self, name: str) -> list[float]:
        """The known values, in time."""
        return [v for p in self.points if (v := p.get(name)) is not None]

    def now(self, name: str) -> float | None:
        """The present level over the later half of the known values: the mean of a rate, the median of all else."""
        values = self.series(name)
        late = values[len(values) // 2 :]
        return (fmean(late) if name.endswith("_per_second") else median(late)) if late else None

    def early(self, name: str) -> float | None:
        """The level at the beginning: the median of the first third of the known values."""
        values = self.series(name)
        return median(values[: math.ceil(len(values) / 3)]) if values else None

    def highest(self, name: str) -> float | None:
        return max(self.series(name), default=None)

    def lowest(self, name: str) -> float | None:
        return min(self.series(name), default=None)

    def last(self, name: str) -> float | None:
        """The newest known value."""
        values = self.series(name)
        return values[-1] if values else None

    def change(self, name: str) -> float | None:
        """Last third over first third, inf from 0 to something; None with fewer than two values or from 0 to 0."""
        values = self.series(name)
        if len(values) < 2:
            return None
        third = math.ceil(len(values) / 3)
        before, after = median(values[:third]), median(values[-third:])
        if before == 0:
            return math.inf if after > 0 else None
        return after / before

    def first_of(self, *names: str) -> tuple[str, float] | None:
        """The first of these that is known, and its present level."""
        return next(((n, v) for n in names if (v := self.now(n)) is not None), None)

    def pairs(self, a: str, b: str) -> list[tuple[float, float]]:
        """Both values of the points that know both."""
        found = [(p.get(a), p.get(b)) for p in self.points]
        return [(x, y) for x, y in found if x is not None and y is not None]

    def tail(self, holds: Callable[[Point], bool | None]) -> tuple[Point, ...]:
        """The points at the end in which `holds` is true without a break; unknown (None) ends it."""
        kept: list[Point] = []
        for point in reversed(self.points):
            if not holds(point):
                break
            kept.append(point)
        return tuple(reversed(kept))

    def seconds(self, points: Sequence[Point] | None = None) -> float | None:
        """How long these points (all if not said) cover; None where the report has no times or only one."""
        points = self.points if points is None else points
        if self.window_seconds:
            return self.window_seconds * len(points)
        times = [p.t_seconds for p in points if p.t_seconds is not None]
        return times[-1] - times[0] if len(times) > 1 else None

    # --- what several rules need --------------------------------------------------------------------------------------
    def certainty(self, points: Sequence[Point], full_seconds: float = 120.0) -> float:
        """0 to 1: how long a standstill has lasted. 120 s without a step: no false alarm and hangs found in 2 minutes
        (gonka#1421). 0 below 25 s; a single moment or a report without times is believed in part."""
        seconds = self.seconds(points)
        if not points:
            return 0.0
        if seconds is None:
            return 0.8 if len(points) > 2 else 0.7 if len(points) > 1 else 0.6
        return 0.0 if seconds < 25.0 else 0.6 + 0.35 * min(1.0, (seconds - 25.0) / (full_seconds - 25.0))

    def engines_in_sum(self, running: float) -> float:
        """By what `running` is divided: a report may add up replicas and data-parallel ranks. 1 where it may not."""
        slots = self.engine.slots
        units = (self.now("replicas") or 1.0) * self.engine.ranks
        return units if slots is not None and units > 1 and running > 1.02 * slots else 1.0

    def slot_share(self, name: str = "running") -> float | None:
        """Running requests / slots of one engine; None where either is unknown."""
        running, slots = self.now(name), self.engine.slots
        if running is None or not slots:
            return None
        return running / self.engines_in_sum(running) / slots

    def slots_full(self) -> bool | None:
        """Nearly all slots taken. Where the limit is unknown: `running` does not move while requests wait."""
        share = self.slot_share()
        if share is not None and self.engine.slots_stated:
            return share >= 0.9
        flat = [r for r, w in self.pairs("running", "waiting") if w >= 1]
        if len(flat) >= 3 and max(flat) >= 4 and max(flat) - min(flat) <= 0.03 * max(flat):
            return True
        return None if share is None else share >= 0.9

    def preemptions_per_request(self) -> float | None:
        """Over finished requests, else over arrived ones; where none ends, over running ones in a minute."""
        preempted = self.now("preemptions_per_second")
        done = self.now("finished_per_second") or self.now("requests_per_second")
        running = self.now("running")
        if preempted is None or (done is None and not running):
            return None
        if not done:
            return 60.0 * preempted / running if running and done is not None else None
        return preempted / done

    def preempting(self) -> bool:
        """More than a stray one: at least one for 20 finished requests, or unknown over what but not nearly none. v0
        also swaps requests out."""
        if (self.now("swapped") or 0.0) >= 1:
            return True
        rate, per_request = self.now("preemptions_per_second") or 0.0, self.preemptions_per_request()
        return per_request >= 0.05 if per_request is not None else rate >= 0.02

    def tokens_per_second(self) -> float | None:
        return self.now("generation_tokens_per_second")

    def fact(self, *topics: str) -> tuple[str, ...]:
        return self.facts.about(*topics)


def evidence(**values: float | None) -> dict[str, float]:
    """The known ones, finite, rounded to what a person reads."""
    return {k: float(f"{v:.4g}") for k, v in values.items() if v is not None and math.isfinite(v)}
