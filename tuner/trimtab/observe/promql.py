"""Queries to Prometheus and their answers. Pure.

Raw samples are asked for (`selector[range]` at one instant): they carry the true scrape times, so rates over short
windows are right and a dead pod simply has no newer sample. A plain range query would repeat the last value for up to 5
minutes (lookback), and such repeats cannot be told from an idle engine. Long windows of quick scrapes would be too big
raw: their older part is asked on a grid with `last_over_time(selector[step])`, which has no lookback either, but rounds
times up to the grid.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.observe.metrics import CACHE_CONFIG, PREFIX, WANTED, own_labels
from trimtab.observe.samples import BASELINE_SECONDS, MAX_POINTS, RECENT_SECONDS, PodRef, Points, SeriesKey, older_step
from trimtab.text import whole_number

By = Literal["pod", "instance"]
#: what the scrape job added to a series: says which target it came from
Target = frozenset[tuple[str, str]]
_Targets = defaultdict[Target, defaultdict[SeriesKey, list[Points]]]
#: characters of pods in one query: common proxies accept URLs of 8 KiB, and the metric names take 2
_MAX_PODS_CHARS = 2_000
#: until samples show the scrape interval (Prometheus' default is 60 s, the usual charts set 15 to 30 s)
_ASSUMED_INTERVAL_SECONDS = 15.0


@dataclass(frozen=True)
class Ask:
    """One query. step_seconds 0: raw samples in (start, end]; else a grid of that step that ends at `end`."""

    start: float
    end: float
    step_seconds: float = 0.0

    def query(self, selector: str) -> str:
        if self.step_seconds:
            return f"last_over_time({selector}[{_milliseconds(self.step_seconds)}])"
        return f"{selector}[{_milliseconds(self.end - self.start)}]"


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def plan(start: float, end: float, step_seconds: float, interval_seconds: float | None) -> list[Ask]:
    """Raw if that gives at most MAX_POINTS per series at the scrape interval last seen; else a grid and the recent part
    raw.

    Grid times are whole seconds because the client library rounds them.
    """
    start -= BASELINE_SECONDS
    recent = end - RECENT_SECONDS
    if start >= recent or (end - start) / (interval_seconds or _ASSUMED_INTERVAL_SECONDS) <= MAX_POINTS:
        return [Ask(start, end)]
    step, border = older_step(start, recent, step_seconds), math.floor(recent)
    return [Ask(border - step * math.floor((border - start) / step), border, step), Ask(border, end)]


def selectors(pods: Sequence[PodRef], by: By) -> list[str]:
    """PromQL selectors that together name all `pods`, each short enough for a URL."""
    parts: list[list[str]] = [[]]
    for value in sorted({_value(p, by) for p in pods}):
        if sum(len(v) + 2 for v in parts[-1]) + len(value) > _MAX_PODS_CHARS:
            parts.append([])
        parts[-1].append(value)
    namespaces = sorted({p.namespace for p in pods})
    space = f'namespace=~"{_any(namespaces)}",' if by == "pod" else ""
    return [f'{{__name__=~"{_NAMES}",{space}{by}=~"{_any(part)}"}}' for part in parts if part]


#: what every vLLM has: a pod without it has no vLLM
FOUND_BY = f'__name__="{PREFIX}num_requests_running",'


def pod_of(labels: Mapping[str, str]) -> PodRef | None:
    """The pod, or the target without a `pod` label, that a series' labels name; None if they name none."""
    host, _, port = labels.get("instance", "").rpartition(":")
    number = whole_number(port) or 0
    name = labels.get("pod") or labels.get("instance")
    ip = host.strip("[]") or None
    return PodRef(name, labels.get("namespace", ""), ip, number) if name else None


def instance(pod: PodRef) -> str:
    """ip:port as Prometheus writes it; IPv6 in brackets."""
    return f"[{pod.ip}]:{pod.port}" if ":" in (pod.ip or "") else f"{pod.ip}:{pod.port}"


def _value(pod: PodRef, by: By) -> str:
    return pod.name if by == "pod" else instance(pod)


def _any(values: Iterable[str]) -> str:
    """A regular expression for exactly these values (RE2, anchored by Prometheus), escaped for a PromQL string."""
    return "|".join(re.escape(v).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for v in values)


def _names() -> str:
    ours = sorted(n.removeprefix(PREFIX) for n in WANTED if n.startswith(PREFIX))
    return f"{PREFIX}({'|'.join(ours)})|" + "|".join(sorted(n for n in WANTED if not n.startswith(PREFIX)))


_NAMES = _names()


def decode(results: Iterable[Sequence[Any]], pods: Sequence[PodRef], by: By) -> dict[str, dict[SeriesKey, Points]]:
    """Series per pod from the results of one or several queries. Raises KeyError, TypeError or ValueError for other
    shapes.

    Where a pod has several targets (scraped by two jobs, or a side-car with metrics of its own), the one with most vLLM
    samples is taken: adding them would double every count. NaN and Inf are dropped.
    """
    wanted = {_identity(p, by): p.name for p in pods}
    plain: dict[str, _Targets] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    infos: dict[str, list[tuple[dict[str, str], Points]]] = defaultdict(list)
    pair = ("namespace", "pod") if by == "pod" else ("", "instance")
    for item in (item for result in results for item in result):
        labels, points = {str(k): str(v) for k, v in item["metric"].items()}, _points(item["values"])
        pod, name = wanted.get((labels.get(pair[0], ""), labels.get(pair[1], ""))), labels.pop("__name__", "")
        if pod is None or not points or name not in WANTED:
            continue
        if name == CACHE_CONFIG:
            infos[pod].append((labels, points))
        else:
            own = own_labels(name, labels)
            plain[pod][frozenset(labels.items()).difference(own)][name, own].append(points)
    return {pod: _one_target(targets, infos[pod]) for pod, targets in plain.items()}


def _identity(pod: PodRef, by: By) -> tuple[str, str]:
    return (pod.namespace, pod.name) if by == "pod" else ("", instance(pod))


def _points(values: Sequence[Sequence[Any]]) -> Points:
    """As Prometheus gave them, ascending in time; only finite ones."""
    if not values:
        return ()
    at, value = (list(map(float, column)) for column in zip(*values, strict=True))
    points = zip(at, value, strict=True)
    if at == sorted(set(at)) and math.isfinite(sum(at)) and math.isfinite(sum(value)):
        return tuple(points)
    return _in_time([tuple(p for p in points if math.isfinite(p[0]) and math.isfinite(p[1]))])


def _one_target(targets: _Targets, infos: Sequence[tuple[dict[str, str], Points]]) -> dict[SeriesKey, Points]:
    """cache_config_info has many labels of its own, so it belongs to a target whose identity it contains."""

    def vllm_samples(target: Target) -> tuple[int, list[tuple[str, str]]]:
        own = (parts for (name, _), parts in targets[target].items() if name.startswith(PREFIX))
        return sum(len(p) for parts in own for p in parts), sorted(target)

    chosen = max(targets, key=vllm_samples) if len(targets) > 1 else next(iter(targets))
    series = targets[chosen]
    for labels, points in infos:
        if chosen <= frozenset(labels.items()):
            series[CACHE_CONFIG, own_labels(CACHE_CONFIG, labels)].append(points)
    return {key: parts[0] if len(parts) == 1 else _in_time(parts) for key, parts in series.items()}


def _in_time(parts: Sequence[Points]) -> Points:
    """Several answers about one series as one, ascending; of two samples of one time the later answer's."""
    known = {at: value for part in parts for at, value in part}
    return tuple(sorted(known.items()))


def scrape_interval(pods: Iterable[Mapping[SeriesKey, Points]]) -> float | None:
    """The smallest typical spacing of samples over the pods, in seconds; None when nothing has three samples."""
    spacings = []
    for series in pods:
        longest = max(series.values(), key=len, default=())
        if len(longest) >= 3:
            spacings.append((longest[-1][0] - longest[0][0]) / (len(longest) - 1))
    return min((s for s in spacings if s > 0), default=None)
