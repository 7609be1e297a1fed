"""`Ring`: the last samples of one pod in memory, bounded by age and number.

Snapshots share one tuple of keys while the engine's series stay the same: about 1.3 KB per scrape of vLLM 0.32.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.observe.samples import MAX_POINTS, RECENT_SECONDS, Points, SeriesKey, older_step


@dataclass(frozen=True)
class _Snapshot:
    at: float
    keys: tuple[SeriesKey, ...]
    values: array[float]


class Ring:
    """Not thread-safe: the owner locks."""

    def __init__(self, retain_seconds: float, max_snapshots: int = 20_000) -> None:
        self._retain = retain_seconds
        self._snapshots: deque[_Snapshot] = deque(maxlen=max_snapshots)

    def add(self, at: float, values: Mapping[SeriesKey, float]) -> None:
        """A clock that was set back makes the later samples wrong: they are dropped."""
        while self._snapshots and self._snapshots[-1].at >= at:
            self._snapshots.pop()
        while self._snapshots and self._snapshots[0].at < at - self._retain:
            self._snapshots.popleft()
        keys = tuple(values)
        if self._snapshots and self._snapshots[-1].keys == keys:
            keys = self._snapshots[-1].keys
        self._snapshots.append(_Snapshot(at, keys, array("d", values.values())))

    def __len__(self) -> int:
        return len(self._snapshots)

    def read(self, start: float, end: float, step_seconds: float) -> dict[SeriesKey, Points]:
        """All samples in [start, end]; those older than RECENT_SECONDS thinned when there are more than MAX_POINTS."""
        held = [s for s in self._snapshots if start <= s.at <= end]
        if len(held) > MAX_POINTS:
            held = _thin(held, end - RECENT_SECONDS, older_step(start, end, step_seconds))
        series: dict[SeriesKey, list[tuple[float, float]]] = {}
        for s in held:
            for key, value in zip(s.keys, s.values, strict=True):
                series.setdefault(key, []).append((s.at, value))
        return {key: tuple(points) for key, points in series.items()}


def _thin(held: list[_Snapshot], recent: float, step: float) -> list[_Snapshot]:
    kept: list[_Snapshot] = []
    for s in held:
        if s.at >= recent or not kept or s.at - kept[-1].at >= step:
            kept.append(s)
    return kept
