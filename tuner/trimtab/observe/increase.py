"""How much counters grew over a window, across restarts of the process that counts. Pure.

A restart is seen by `process_start_time_seconds` or, where a pod does not expose it, by a counter that fell. After a
restart *all* counters of the pod count from zero, also one that has meanwhile passed its old value; what the old
process counted after its last sample is lost, so an increase over a restart is a lower bound.

Hazard: with several API-server processes and no shared metrics folder every scrape may reach another process, and
values jump back and forth (vllm issue 18053). That is no restart. It shows as start times that go back, as a counter
that falls while the start time stays, or as two falls in one window; what was counted is then unknown (None). One
single jump cannot be told from a restart.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab.observe.metrics import CUMULATIVE, PROCESS_START
from trimtab.observe.samples import BASELINE_SECONDS, Points, SeriesKey

#: start times nearer than this are one process: some libraries compute them anew from the uptime, which jitters
_SAME_PROCESS_SECONDS = 2.0


@dataclass(frozen=True)
class Timeline:
    """When one pod was sampled in a window.

    times: ascending unix seconds; the first may lie up to BASELINE_SECONDS before the window (the baseline of
    counters). restarts: the times at which another process answered than before. starts_known: those come from process
    start times. trusted: False when several processes seem to answer in turn.
    """

    times: tuple[float, ...]
    restarts: tuple[float, ...] = ()
    starts_known: bool = False
    trusted: bool = True

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[0]

    def clip(self, points: Points) -> Points:
        """The points from the first to the last sample time."""
        return points[bisect_left(points, (self.times[0],)) : bisect_right(points, (self.times[-1], math.inf))]


def timeline(series: Mapping[SeriesKey, Points], start: float, end: float) -> Timeline | None:
    """The sampling times of a pod in [start, end], with a baseline just before it if there is one.

    None without any sample.
    """
    seen = sorted({t for points in series.values() for t, _ in points})
    starts = [points for (name, _), points in series.items() if name == PROCESS_START]
    down = {f for (name, _), points in series.items() if name in CUMULATIVE for f in falls(points)}
    return line_of(seen, starts, sorted(down), start, end)


def line_of(
    seen: Sequence[float], starts: Sequence[Points], down: Sequence[tuple[float, float]], start: float, end: float
) -> Timeline | None:
    """`timeline` from what is the same for all windows: all sample times, ascending; the series of process start
    times; the falls of counters.
    """
    first, stop = bisect_left(seen, start), bisect_right(seen, end)
    if first >= stop:
        return None
    baseline = bisect_right(seen, start) - 1
    if baseline >= 0 and seen[baseline] >= start - BASELINE_SECONDS:
        first = baseline
    line = Timeline(tuple(seen[first:stop]))
    begun = line.clip(starts[0]) if len(starts) == 1 else ()
    if begun:
        return _by_start_times(line.times, begun)
    restarts = sorted({after for before, after in down if before >= line.times[0] and after <= line.times[-1]})
    return Timeline(line.times, tuple(restarts), starts_known=False, trusted=len(restarts) < 2)


def _by_start_times(times: tuple[float, ...], points: Points) -> Timeline:
    steps = [(b[0], b[1] - a[1]) for a, b in pairwise(points)]
    restarts = tuple(t for t, step in steps if abs(step) > _SAME_PROCESS_SECONDS)
    return Timeline(times, restarts, starts_known=True, trusted=all(step > -_SAME_PROCESS_SECONDS for _, step in steps))


def falls(points: Points) -> list[tuple[float, float]]:
    """When a counter fell: the times of the samples before and after."""
    return [(a[0], b[0]) for a, b in pairwise(points) if b[1] < a[1]]


def increase(points: Points, line: Timeline) -> float | None:
    """Growth of one series over the timeline, >= 0; None when it cannot be known.

    A series that appears later than the pod's first sample starts from zero: the pod was scraped before and did not
    have it (labelled children are made on first use).
    """
    if len(line.times) < 2 or not line.trusted:
        return None
    inside = line.clip(points)
    if not inside:
        return 0.0
    before, last = inside[0] if inside[0][0] == line.times[0] else (line.times[0], 0.0)
    total = 0.0
    for at, value in inside:
        if bisect_right(line.restarts, before) < bisect_right(line.restarts, at):
            total += value
        elif value < last:
            return None
        else:
            total += value - last
        before, last = at, value
    return max(0.0, total)


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one part is unknown. The sum of nothing is 0."""
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return math.fsum(known)


def time_average(points: Sequence[tuple[float, float]]) -> float | None:
    """Trapezoidal mean over time of a gauge; the plain mean where the points span no time; None without points."""
    if not points:
        return None
    span = points[-1][0] - points[0][0]
    if span <= 0:
        return math.fsum(v for _, v in points) / len(points)
    area = math.fsum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    return area / span
