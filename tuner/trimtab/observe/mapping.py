"""`Samples` -> `Observation`: the one place that decides what the series mean. Pure; the names are in
`trimtab.observe.metrics`.

Unknown stays None: no sample of a metric, fewer than two sample times, or counters that cannot be trusted (see
`increase`). Zero means: the metric was there and did not move.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.observe.increase import Timeline, increase, time_average, timeline, total
from trimtab.observe.metrics import CACHE_CONFIG, COUNTERS, GAUGES, HISTOGRAMS, HTTP_REQUESTS, INFERENCE_HANDLERS, Rule
from trimtab.observe.observation import Histogram, Observation, combine, merge
from trimtab.observe.samples import Points, Samples, SeriesKey

Labels = dict[str, str]


@dataclass(frozen=True)
class _Series:
    labels: Labels
    points: Points


@dataclass(frozen=True)
class _View:
    """One pod's series by name, clipped to the timeline."""

    names: Mapping[str, Sequence[_Series]]
    line: Timeline
    start: float

    def first(self, names: Iterable[str], suffix: str = "") -> Sequence[_Series]:
        """The series of the first name that has any."""
        return next((found for name in names if (found := self.names.get(name + suffix, ()))), ())

    def counter(self, family: Sequence[_Series], selects: Callable[[Labels], bool]) -> float | None:
        """The summed increase of the selected children.

        None when the family is absent, 0 when only its siblings are there.
        """
        if not family or len(self.line.times) < 2 or not self.line.trusted:
            return None
        return total(increase(s.points, self.line) for s in family if selects(s.labels))

    def inside(self, series: _Series) -> Points:
        """Points inside the window, without the baseline before it."""
        return tuple(p for p in series.points if p[0] >= self.start)


def observe(samples: Samples, pod: str, start: float, end: float) -> Observation | None:
    """What `pod` did in [start, end] (unix seconds); None when no sample of it lies in the window.

    `window_seconds` is what samples really cover. It may begin up to BASELINE_SECONDS early, at the last sample before
    `start`, because counters need one to count from. With a single sample the gauges are known and the counters are
    not.
    """
    series = samples.pods.get(pod)
    line = timeline(series, start, end) if series else None
    if not series or line is None:
        return None
    view = _View(_by_name(series, line), line, start)
    counts = {name: view.counter(view.first(rule.names), rule.selects) for name, rule in COUNTERS.items()}
    counts |= _http(view)
    if counts["requests"] is None:
        counts["requests"] = total((counts["finished"], counts["engine_aborts"], counts["engine_errors"]))
    shapes = {name: _histogram(view, names) for name, names in HISTOGRAMS.items()}
    # the tables' keys are fields of Observation
    known: dict[str, Any] = {**counts, **shapes, **_gauges(view), **_cache_config(view)}
    return Observation(pods=1, window_seconds=line.seconds, **known)


def fleet(samples: Samples, pods: Sequence[str], start: float, end: float) -> Observation | None:
    """One Observation over those of `pods` that have samples in the window (`.pods` says how many); None when none has.

    A pod without samples is left out rather than making all unknown: compare `.pods` with len(pods) where completeness
    matters.
    """
    return combine([seen for pod in sorted(set(pods)) if (seen := observe(samples, pod, start, end)) is not None])


def has_gap(samples: Samples, pod: str, now: float, max_gap_seconds: float) -> bool:
    """Whether the newest sample of `pod` is older than `max_gap_seconds` at `now`, or there is none at all.

    A hung engine may stop to publish while /health stays 200 (vllm issue 42897): a gap is a reason to act, not
    idleness.
    """
    latest = max((points[-1][0] for points in samples.pods.get(pod, {}).values() if points), default=-math.inf)
    return now - latest > max_gap_seconds


def _by_name(series: Mapping[SeriesKey, Points], line: Timeline) -> dict[str, list[_Series]]:
    """Clip, drop what is empty, and join series that differ only in how `le` is spelt (1, 1.0: Prometheus 2, 3)."""
    joined: dict[SeriesKey, list[tuple[float, float]]] = defaultdict(list)
    for (name, pairs), points in series.items():
        joined[name, tuple((k, _edge(v)) if k == "le" else (k, v) for k, v in pairs)].extend(line.clip(points))
    names: dict[str, list[_Series]] = defaultdict(list)
    for (name, pairs), raw in joined.items():
        if raw:
            names[name].append(_Series(dict(pairs), tuple(sorted(raw))))
    return names


def _edge(text: str) -> str:
    try:
        return repr(float(text))
    except ValueError:
        return text


def _http(view: _View) -> dict[str, float | None]:
    """Answers to inference requests; unknown when no inference handler was ever called.

    Status labels are "2xx" or "200". A streamed request whose client left counts with the status it began with.
    """
    family = [
        s
        for s in view.first((HTTP_REQUESTS,))
        if s.labels.get("method", "POST") == "POST" and s.labels.get("handler") in INFERENCE_HANDLERS
    ]

    def of(first_digit: str) -> float | None:
        return view.counter(family, lambda labels: labels.get("status", "").startswith(first_digit))

    return {"requests": of(""), "http_errors": of("5"), "http_rejected": of("4")}


def _gauges(view: _View) -> dict[str, float | None]:
    """Engines of one pod: requests are added, KV use is averaged (adding percentages is a known mistake)."""
    averages = {name: _averages(view, rule) for name, rule in GAUGES.items()}
    usages = averages.pop("kv_usage")
    highest = (value for s in view.first(GAUGES["kv_usage"].names) for _, value in view.inside(s))
    return {
        **{name: math.fsum(parts) if parts else None for name, parts in averages.items()},
        "kv_usage": math.fsum(usages) / len(usages) if usages else None,
        "kv_usage_max": max(highest, default=None),
    }


def _averages(view: _View, rule: Rule) -> list[float]:
    """The time average of each series (one per engine of a data-parallel pod)."""
    averages = (time_average(view.inside(s)) for s in view.first(rule.names) if rule.selects(s.labels))
    return [a for a in averages if a is not None]


def _histogram(view: _View, names: Sequence[str]) -> Histogram | None:
    """The increase of the first histogram that has buckets, its engines merged; None when any part of it is unknown."""
    name = next((n for n in names if view.first((n,), "_bucket")), None)
    if name is None:
        return None
    engines: dict[tuple[tuple[str, str], ...], dict[float, float | None]] = defaultdict(dict)
    for s in view.first((name,), "_bucket"):
        rest = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
        engines[rest][_bound(s.labels.get("le", ""))] = increase(s.points, view.line)
    sums = {tuple(sorted(s.labels.items())): increase(s.points, view.line) for s in view.first((name,), "_sum")}
    parts = [_one_histogram(buckets, sums.get(rest)) for rest, buckets in engines.items()]
    return None if any(p is None for p in parts) else merge(parts)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _one_histogram(buckets: Mapping[float, float | None], total_sum: float | None) -> Histogram | None:
    bounds = sorted(b for b in buckets if not math.isnan(b))
    if total_sum is None or not bounds or bounds[-1] != math.inf or len(bounds) != len(buckets):
        return None
    counts: list[float] = []
    for bound in bounds:
        count = buckets[bound]
        if count is None:
            return None
        # a scrape is not atomic: a bucket may be one ahead of the next one
        counts.append(max(count, counts[-1] if counts else 0.0))
    return Histogram(tuple(bounds), tuple(counts), total_sum)


def _cache_config(view: _View) -> dict[str, float | bool | None]:
    """What the labels of cache_config_info say: per engine the newest series (a restart makes a new one).

    `kv_cache_size_tokens` (vLLM 0.24) is what one engine really has (hybrid models, context parallelism): engines are
    added. Blocks times block size is the fallback. `num_gpu_blocks` is the sum over the engines of the process, and
    each engine's series carries that sum (v1/engine/core_client.py): the largest one counts, they are not added.
    """
    newest: dict[str, _Series] = {}
    for s in view.first((CACHE_CONFIG,)):
        engine = s.labels.get("engine", "")
        if engine not in newest or s.points[-1] > newest[engine].points[-1]:
            newest[engine] = s
    labels = [s.labels for s in newest.values()]
    blocks = max(_each(labels, "num_gpu_blocks"), default=None)
    sizes = set(_each(labels, "block_size"))
    size = sizes.pop() if len(sizes) == 1 else None
    real = _each(labels, "kv_cache_size_tokens")
    stated = {text for one in labels if (text := one.get("enable_prefix_caching", "").lower()) in ("true", "false")}
    return {
        "kv_capacity_tokens": _capacity(real if len(real) == len(labels) else [], blocks, size),
        "num_gpu_blocks": blocks,
        "block_size_tokens": size,
        "prefix_caching": stated == {"true"} if len(stated) == 1 else None,
    }


def _capacity(real: Sequence[float], blocks: float | None, size: float | None) -> float | None:
    if real:
        return math.fsum(real)
    return blocks * size if blocks is not None and size is not None else None


def _each(labels: Iterable[Labels], name: str) -> list[float]:
    return [value for one in labels if (value := _positive(one.get(name))) is not None]


def _positive(text: str | None) -> float | None:
    """A positive finite number, or None for an absent label, "None", 0 and the like."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
