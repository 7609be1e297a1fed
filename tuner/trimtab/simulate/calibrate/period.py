"""A stretch of one target's metrics, made ready: segments, when requests came, how long they were. Pure.

vLLM counts a request when it ends, so arrivals are: ended so far + in flight now. Hazard: clients that left are counted
nowhere but in http_requests_total; without it they are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from trimtab.errors import InputError
from trimtab.observe.increase import timeline
from trimtab.observe.mapping import observe
from trimtab.observe.metrics import COUNTERS, GAUGES, Rule
from trimtab.observe.observation import Observation
from trimtab.observe.samples import Points, Samples, SeriesKey
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.profile import LoadModel, SharedPrefix
from trimtab.simulate.state import F64, I64

Series = Mapping[SeriesKey, Points]
#: finished requests that make a segment's means worth fitting, and the most segments
SEGMENT_REQUESTS: Final = 50
MOST_SEGMENTS: Final = 12
MINIMUM_REQUESTS: Final = 100
#: where scrapes are many, only their latest part with about this many requests is simulated
MOST_REQUESTS: Final = 8_000
#: a share by which sums that must not exceed each other may, because a scrape is not atomic
SLACK: Final = 0.05


@dataclass(frozen=True)
class Period:
    """`edges`: segment borders in seconds from the first, one more than `segments`. `clock`, `came`: how many requests
    had come by then; the first `begun` were in flight at the start. `most_running`: highest sample of the gauge.
    Per segment: `scrapes` of that gauge in it, and `always_busy`, whether the engine computed all the time.
    """

    edges: F64
    segments: tuple[Observation, ...]
    whole: Observation
    clock: F64
    came: I64
    load: LoadModel
    most_running: float
    scrapes: tuple[int, ...]
    always_busy: tuple[bool, ...]

    @property
    def begun(self) -> int:
        return int(self.came[0])

    def arrivals(self, rng: np.random.Generator) -> F64:
        """Seconds, ascending: as many as counted between two scrapes, at random times as of a Poisson process."""
        counts = np.diff(self.came)
        since = np.repeat(self.clock[:-1], counts)
        gap = np.repeat(np.diff(self.clock), counts)
        inner = np.sort(since + gap * rng.random(len(since)))
        return np.concatenate((np.full(self.begun, self.clock[0]), inner))


def read_period(samples: Samples, pod: str, start: float, end: float, *, most_segments: int = MOST_SEGMENTS) -> Period:
    """InputError says what is missing or contradicts itself, and what to do."""
    series = samples.pods.get(pod)
    line = timeline(series, start, end) if series else None
    if not series or line is None:
        raise InputError("range", f"there is no sample of {pod}", "Check the target's name, and the range.")
    times = np.array([t for t in line.times if t >= start])
    finished = _sum(series, COUNTERS["finished"], times)
    counted = np.flatnonzero(~np.isnan(finished))
    if len(counted) < 2:
        fix = "Take a longer range; --disable-log-stats must not be set."
        raise InputError("range", "fewer than two scrapes count finished requests", fix)
    if finished[counted[-1]] - finished[counted[0]] > MOST_REQUESTS:
        first = int(np.searchsorted(finished[counted], finished[counted[-1]] - MOST_REQUESTS))
        counted = counted[min(first, len(counted) - 2) :]
    begin, until = float(times[counted[0]]), float(times[counted[-1]])
    whole = observe(samples, pod, begin, until)
    assert whole is not None  # there are two samples in it
    restarts = [t for t in line.restarts if begin < t <= until]
    _require_sound(whole, [t - begin for t in restarts])
    within = (times >= begin) & (times <= until)
    edges = _edges(times[counted], finished[counted], most_segments)
    cuts = [observe(samples, pod, float(a), float(b)) for a, b in pairwise(edges)]
    running = _sum(series, GAUGES["running"], times[within])
    clock, came = _arrivals(series, times[within], finished[within], whole)
    at = times[within]
    parts = [running[(at >= a) & (at <= b)] for a, b in pairwise(edges)]
    return Period(
        edges - begin,
        tuple(cut for cut in cuts if cut is not None),
        whole,
        clock - begin,
        came,
        load_model(whole, int(came[-1] - came[0])),
        float(np.nanmax(running)),
        tuple(int((~np.isnan(part)).sum()) for part in parts),
        tuple(_busy(part) for part in parts),
    )


def _require_sound(whole: Observation, restarts: Sequence[float]) -> None:
    if restarts:
        problem = f"the engine restarted {restarts[0]:.0f} s after the start"
        raise InputError("range", problem, "Choose a range without a restart: settings may differ before and after.")
    if whole.finished is None or whole.useful_tokens is None or whole.prompt_length is None:
        fix = "Check that all vllm: metrics are kept, and that no stale multi-process folder is set."
        raise InputError("range", "finished requests or their lengths cannot be counted", fix)
    if whole.output_length is None or whole.finished < MINIMUM_REQUESTS:
        problem = f"{whole.finished:.0f} finished requests are too few"
        raise InputError("range", problem, f"Take a range with at least {MINIMUM_REQUESTS}.")
    generated, useful = whole.generated_tokens, whole.useful_tokens
    if generated is not None and useful > generated * (1 + SLACK) + _in_flight_tokens(whole):
        problem = f"finished requests received {useful:.0f} tokens, but only {generated:.0f} were generated"
        raise InputError("range", f"the counters contradict each other: {problem}", "Take a much longer range.")
    ttft, e2e = whole.ttft_seconds, whole.e2e_seconds
    if ttft is None or e2e is None or ttft.mean is None or e2e.mean is None:
        raise InputError("range", "TTFT or latency histograms are missing", "Keep both in relabeling.")


def _in_flight_tokens(whole: Observation) -> float:
    """Tokens of requests that began before the range and ended in it, at most."""
    mean = whole.output_length.mean if whole.output_length else None
    return (whole.running or 0.0) * 2 * (mean or 0.0)


def _edges(times: F64, finished: F64, most: int) -> F64:
    """Borders at scrapes, each segment with at least SEGMENT_REQUESTS finished requests."""
    done = finished - finished[0]
    pieces = int(min(most, max(1, done[-1] // SEGMENT_REQUESTS)))
    inner = np.searchsorted(done, done[-1] * np.arange(1, pieces) / pieces)
    return np.asarray(times[np.unique(np.concatenate(([0], inner, [len(times) - 1])))], dtype=np.float64)


def _busy(running: F64) -> bool:
    """Whether the engine computed all the time: no sample without a running request, several on average."""
    seen = running[~np.isnan(running)]
    return len(seen) >= 3 and bool(seen.min() >= 1) and bool(seen.mean() >= 2)


def _sum(series: Series, rule: Rule, times: F64) -> F64:
    """The sum of the selected children at each time; nan where the metric has no sample. A child appears with its
    first count, so before it is 0.
    """
    for name in rule.names:
        children = [points for (n, labels), points in series.items() if n == name and rule.selects(dict(labels))]
        if children:
            known = [dict(points) for points in children]
            return np.array([
                sum(k.get(t, 0.0) for k in known) if any(t in k for k in known) else np.nan for t in times
            ])  # fmt: skip
    return np.full(len(times), np.nan)


def _arrivals(series: Series, times: F64, finished: F64, whole: Observation) -> tuple[F64, I64]:
    """Times, and requests that had come by then.

    Where a scrape lacks the count of finished ones, it is spread by generated tokens.
    """
    in_flight = _sum(series, GAUGES["running"], times) + _sum(series, GAUGES["waiting"], times)
    seen = ~np.isnan(in_flight)
    if seen.sum() < 2:
        raise InputError("range", "num_requests_running or num_requests_waiting is missing", "Keep both gauges.")
    at, in_flight = times[seen], in_flight[seen]
    # cancelled requests end as well
    left = max(0.0, (whole.requests or 0.0) - (whole.http_rejected or 0.0) - (whole.finished or 0.0))
    share = 1 + left / max(1.0, whole.finished or 0.0)
    done = _spread(times, finished, _sum(series, COUNTERS["generated_tokens"], times))[seen]
    came = np.maximum.accumulate((done - done[0]) * share + in_flight)
    return at, np.rint(came).astype(np.int64)


def _spread(times: F64, finished: F64, generated: F64) -> F64:
    """Finished requests at every time."""
    known = ~np.isnan(finished)
    if known.all():
        return finished
    clock = times if np.isnan(generated).any() else generated
    return np.interp(clock, clock[known], finished[known])


def load_model(whole: Observation, arrived: int) -> LoadModel:
    """The load as counters and histograms show it. Lengths are of finished requests."""
    prompt = Lengths.of_histogram(whole.prompt_length) if whole.prompt_length else None
    output = Lengths.of_histogram(whole.output_length) if whole.output_length else None
    if prompt is None or output is None:
        raise InputError("range", "the length histograms are empty", "Take a longer range.")
    reserved = (whole.reserved_tokens or 0.0) / max(1.0, whole.finished or 0.0)
    return LoadModel(
        requests_per_second=max(1e-6, arrived / whole.window_seconds),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=Lengths.fixed(round(reserved)) if reserved > output.mean * (1 + SLACK) else None,
        shared_prefix=_shared_prefix(whole, prompt),
        cancel_share=whole.abort_rate or 0.0,
    )


def _shared_prefix(whole: Observation, prompt: Lengths) -> SharedPrefix | None:
    """Only share x length is known. As many prompts as possible are taken to share it, up to the first quartile's
    length.
    """
    hits = whole.prefix_hit_ratio
    if not hits or not whole.prefix_caching:
        return None
    block = whole.block_size_tokens or 16.0
    common = hits * prompt.mean
    tokens = max(block, np.ceil(min(common, prompt.quantile(0.25)) / block) * block)
    return SharedPrefix(share=min(1.0, common / tokens), tokens=int(tokens))
