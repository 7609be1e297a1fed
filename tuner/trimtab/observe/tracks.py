"""The series of one pod, laid out once for any number of windows: a look cuts the same samples into many. Pure.

Scrapes give all series of a pod the same times, so a window is looked up once per set of times, not once per series.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.observe.increase import Timeline, falls, increase, line_of
from trimtab.observe.metrics import CUMULATIVE, PROCESS_START
from trimtab.observe.samples import Points, SeriesKey

Labels = dict[str, str]
Times = tuple[float, ...]
_NOTHING: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class Track:
    """One series over all its samples. `times` is shared by the series that were sampled together.

    falling: the value falls or is below zero, which only a restart may do. edge: of a histogram's bucket, NaN where it
    has none.
    """

    labels: Labels
    points: Points
    times: Times
    falling: bool
    edge: float


@dataclass(frozen=True, slots=True)
class Shape:
    """One engine's histogram: buckets by edge, and its sum."""

    buckets: tuple[Track, ...]
    sum: Track | None


class PodTracks:
    """What all windows over one pod's series share."""

    def __init__(self, series: Mapping[SeriesKey, Points]) -> None:
        shared: dict[Times, Times] = {}
        names: dict[str, list[Track]] = defaultdict(list)
        down: set[tuple[float, float]] = set()
        for (name, pairs), points in series.items():
            if not points:
                continue
            times, values = tuple([t for t, _ in points]), [v for _, v in points]
            falling = values[0] < 0 or values != sorted(values)
            if falling and name in CUMULATIVE:
                down.update(falls(points))
            labels = dict(pairs)
            edge = _number(labels["le"]) if "le" in labels else math.nan
            names[name].append(Track(labels, points, shared.setdefault(times, times), falling, edge))
        self.seen = tuple(sorted(set().union(*shared)))
        self._starts = [points for (name, _), points in series.items() if name == PROCESS_START]
        self._falls = sorted(down)
        self._names = {name: _spelt_once(tracks) for name, tracks in names.items()}
        self._shapes: dict[str, Sequence[Shape]] = {}

    def line(self, start: float, end: float) -> Timeline | None:
        return line_of(self.seen, self._starts, self._falls, start, end)

    def named(self, name: str) -> Sequence[Track]:
        return self._names.get(name, ())

    def shapes(self, name: str) -> Sequence[Shape]:
        """The histograms of that name, one per engine."""
        if name not in self._shapes:
            groups: dict[tuple[tuple[str, str], ...], list[Track]] = defaultdict(list)
            for track in self.named(f"{name}_bucket"):
                groups[tuple(sorted((k, v) for k, v in track.labels.items() if k != "le"))].append(track)
            sums = {tuple(sorted(track.labels.items())): track for track in self.named(f"{name}_sum")}
            self._shapes[name] = [
                Shape(tuple(sorted(buckets, key=lambda t: t.edge)), sums.get(rest)) for rest, buckets in groups.items()
            ]
        return self._shapes[name]


class Window:
    """One pod's tracks in [start, end], with the baseline before it; only what has samples there is seen."""

    def __init__(self, tracks: PodTracks, line: Timeline, start: float) -> None:
        self.line, self._tracks, self._start = line, tracks, start
        self._countable = len(line.times) >= 2 and line.trusted
        self._spans: dict[int, tuple[int, int]] = {}

    def first(self, names: Iterable[str]) -> Sequence[Track]:
        """The series of the first name that has any."""
        for name in names:
            if (known := self._tracks.named(name)) and (here := self._here(known)):
                return here
        return ()

    def shapes(self, names: Iterable[str]) -> Sequence[Shape]:
        """The histograms of the first name that has any buckets; of each the buckets that are here."""
        for name in names:
            cut = ((self._here(s.buckets), s.sum) for s in self._tracks.shapes(name))
            if found := [Shape(tuple(buckets), total) for buckets, total in cut if buckets]:
                return found
        return ()

    def _here(self, tracks: Sequence[Track]) -> Sequence[Track]:
        return [t for t in tracks if self.has(t)]

    def has(self, track: Track) -> bool:
        return self._span(track.times) is not _NOTHING

    def _span(self, times: Times) -> tuple[int, int]:
        """The indices of the samples from the first to the last time of the window."""
        found = self._spans.get(id(times))
        if found is None:
            low, high = bisect_left(times, self.line.times[0]), bisect_right(times, self.line.times[-1])
            found = self._spans[id(times)] = (low, high) if low < high else _NOTHING
        return found

    def increase(self, track: Track) -> float | None:
        """As `increase.increase` of the series over the window."""
        if not self._countable:
            return None
        low, high = self._span(track.times)
        points = track.points
        if track.falling or self.line.restarts or low == high:
            return increase(points[low:high], self.line)
        before = points[low][1] if points[low][0] == self.line.times[0] else 0.0
        return points[high - 1][1] - before

    def counter(self, family: Sequence[Track], selects: Callable[[Labels], bool]) -> float | None:
        """The summed increase of the selected children.

        None when the family is absent, 0 when only its siblings are there.
        """
        if not family or not self._countable:
            return None
        known: list[float] = []
        for track in family:
            if selects(track.labels):
                if (grown := self.increase(track)) is None:
                    return None
                known.append(grown)
        return math.fsum(known)

    def newest(self, track: Track) -> tuple[float, float]:
        """The last sample in the window of a series that has one."""
        return track.points[self._span(track.times)[1] - 1]

    def inside(self, track: Track) -> Points:
        """Points inside the window, without the baseline before it."""
        low, high = self._span(track.times)
        return track.points[bisect_left(track.times, self._start, low, high) : high]


def _spelt_once(tracks: Sequence[Track]) -> Sequence[Track]:
    """Of one name: series that differ only in how `le` is spelt (1, 1.0: Prometheus 2, 3) are one."""
    if len({t.edge for t in tracks}) == len(tracks):
        return tracks
    same: dict[frozenset[tuple[str, str]], list[Track]] = defaultdict(list)
    for track in tracks:
        edge = {} if math.isnan(track.edge) else {"le": repr(track.edge)}
        same[frozenset({**track.labels, **edge}.items())].append(track)
    return [parts[0] if len(parts) == 1 else _joined(parts) for parts in same.values()]


def _joined(parts: Sequence[Track]) -> Track:
    points = tuple(sorted(p for part in parts for p in part.points))
    values = [v for _, v in points]
    falling = values[0] < 0 or values != sorted(values)
    return Track(parts[0].labels, points, tuple([t for t, _ in points]), falling, parts[0].edge)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
