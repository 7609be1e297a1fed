"""`Samples` -> `Observation`: the one place that decides what the series mean. Pure; the names are in
`trimtab.observe.metrics`.

Unknown stays None: no sample of a metric, fewer than two sample times, or counters that cannot be trusted (see
`increase`). Zero means: the metric was there and did not move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from trimtab.observe.increase import time_average, total
from trimtab.observe.metrics import CACHE_CONFIG, COUNTERS, GAUGES, HISTOGRAMS, HTTP_REQUESTS, INFERENCE_HANDLERS, Rule
from trimtab.observe.observation import Histogram, Observation, combine, merge
from trimtab.observe.samples import Samples
from trimtab.observe.tracks import PodTracks, Shape, Track, Window

Labels = dict[str, str]


def observe(samples: Samples, pod: str, start: float, end: float) -> Observation | None:
    """What `pod` did in [start, end] (unix seconds); None when no sample of it lies in the window.

    `window_seconds` is what samples really cover. It may begin up to BASELINE_SECONDS early, at the last sample before
    `start`, because counters need one to count from. With a single sample the gauges are known and the counters are
    not.
    """
    known: dict[tuple[str, float, float], Observation | None] = samples.derived.setdefault("observed", {})
    if (pod, start, end) not in known:
        known[pod, start, end] = _observe(samples, pod, start, end)
    return known[pod, start, end]


def _observe(samples: Samples, pod: str, start: float, end: float) -> Observation | None:
    view = _window(samples, pod, start, end)
    if view is None:
        return None
    counts = {name: view.counter(view.first(rule.names), rule.selects) for name, rule in COUNTERS.items()}
    counts |= _http(view)
    if counts["requests"] is None:
        counts["requests"] = total((counts["finished"], counts["engine_aborts"], counts["engine_errors"]))
    shapes = {name: _histogram(view, names) for name, names in HISTOGRAMS.items()}
    # the tables' keys are fields of Observation
    values: dict[str, Any] = {**counts, **shapes, **_gauges(view), **_cache_config(view)}
    return Observation(pods=1, window_seconds=view.line.seconds, **values)


def _window(samples: Samples, pod: str, start: float, end: float) -> Window | None:
    series = samples.pods.get(pod)
    if not series:
        return None
    laid_out: dict[str, PodTracks] = samples.derived.setdefault("tracks", {})
    if pod not in laid_out:
        laid_out[pod] = PodTracks(series)
    line = laid_out[pod].line(start, end)
    return None if line is None else Window(laid_out[pod], line, start)


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


def _http(view: Window) -> dict[str, float | None]:
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


def _gauges(view: Window) -> dict[str, float | None]:
    """Engines of one pod: requests are added, KV use is averaged (adding percentages is a known mistake)."""
    averages = {name: _averages(view, rule) for name, rule in GAUGES.items()}
    usages = averages.pop("kv_usage")
    highest = (value for s in view.first(GAUGES["kv_usage"].names) for _, value in view.inside(s))
    return {
        **{name: math.fsum(parts) if parts else None for name, parts in averages.items()},
        "kv_usage": math.fsum(usages) / len(usages) if usages else None,
        "kv_usage_max": max(highest, default=None),
    }


def _averages(view: Window, rule: Rule) -> list[float]:
    """The time average of each series (one per engine of a data-parallel pod)."""
    averages = (time_average(view.inside(s)) for s in view.first(rule.names) if rule.selects(s.labels))
    return [a for a in averages if a is not None]


def _histogram(view: Window, names: Sequence[str]) -> Histogram | None:
    """The increase of the first histogram that has buckets, its engines merged; None when any part of it is unknown."""
    parts = [_one_histogram(view, shape) for shape in view.shapes(names)]
    return None if any(p is None for p in parts) else merge(parts)


def _one_histogram(view: Window, shape: Shape) -> Histogram | None:
    bounds = tuple([t.edge for t in shape.buckets])
    total_sum = view.increase(shape.sum) if shape.sum is not None and view.has(shape.sum) else None
    if total_sum is None or bounds[-1] != math.inf or any(math.isnan(b) for b in bounds):
        return None
    counts: list[float] = []
    for track in shape.buckets:
        count = view.increase(track)
        if count is None:
            return None
        # a scrape is not atomic: a bucket may be one ahead of the next one
        counts.append(max(count, counts[-1] if counts else 0.0))
    return Histogram(bounds, tuple(counts), total_sum)


def _cache_config(view: Window) -> dict[str, float | bool | None]:
    """What the labels of cache_config_info say: per engine the newest series (a restart makes a new one).

    `kv_cache_size_tokens` (vLLM 0.24) is what one engine really has (hybrid models, context parallelism): engines are
    added. Blocks times block size is the fallback. `num_gpu_blocks` is the sum over the engines of the process, and
    each engine's series carries that sum (v1/engine/core_client.py): the largest one counts, they are not added.
    """
    newest: dict[str, Track] = {}
    for s in view.first((CACHE_CONFIG,)):
        engine = s.labels.get("engine", "")
        if engine not in newest or view.newest(s) > view.newest(newest[engine]):
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
