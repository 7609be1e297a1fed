"""Observations of the operator or of `trimtab diagnose` to a `Case`: the same shape as a written report's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.diagnose.case import Case, Point
from trimtab.diagnose.engines import Engine, vllm
from trimtab.diagnose.facts import Facts
from trimtab.diagnose.finding import Limits
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation

_SAME = (
    "running", "waiting", "waiting_deferred", "waiting_capacity", "swapped", "kv_usage", "kv_usage_max",
    "prefix_hit_ratio", "abort_rate", "useful_token_ratio", "wasted_token_ratio", "kv_capacity_tokens",
    "block_size_tokens",
)  # fmt: skip
#: field of Point -> counter of Observation
_RATES = {
    "preemptions_per_second": "preemptions",
    "prompt_tokens_per_second": "prompt_tokens",
    "generation_tokens_per_second": "generated_tokens",
    "requests_per_second": "requests",
    "finished_per_second": "finished",
    "errors_per_second": "http_errors",
    "steps_per_second": "engine_steps",
    "prefix_queries_per_second": "prefix_queries",
}
_QUANTILES = {
    "ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2e": "e2e_seconds", "queue": "queue_seconds",
}  # fmt: skip


def case_of(
    windows: Sequence[Observation],
    configuration: Configuration,
    limits: Limits,
    *,
    parts: Mapping[str, Sequence[Observation]] | None = None,
    engine: Engine | None = None,
    facts: Facts | None = None,
) -> Case:
    """windows: of the whole target, one after the other, of about equal length. parts: the same of each pod by name."""
    seconds = sum(w.window_seconds for w in windows) / len(windows) if windows else 0.0
    asked = [w.requests for w in windows]
    return Case(
        points=_points(windows),
        engine=engine or vllm(configuration),
        limits=limits,
        facts=facts or Facts(),
        parts={name: _points(own) for name, own in (parts or {}).items()},
        window_seconds=seconds,
        requests_seen=None if None in asked else float(sum(v for v in asked if v is not None)),
    )


def _points(windows: Sequence[Observation]) -> tuple[Point, ...]:
    points, at = [], 0.0
    for window in windows:
        at += window.window_seconds
        points.append(point_of(window, at))
    return tuple(points)


def point_of(o: Observation, at: float = 0.0) -> Point:
    """Rates are per pod, as the gauges are."""
    values: dict[str, float | None] = {name: getattr(o, name) for name in _SAME}
    pod_seconds = o.window_seconds * max(1, o.pods)
    for name, counter in _RATES.items():
        count = getattr(o, counter)
        values[name] = count / pod_seconds if count is not None and pod_seconds > 0 else None
    for short, name in _QUANTILES.items():
        histogram: Histogram | None = getattr(o, name)
        values[f"{short}_p50_seconds"] = histogram.quantile(0.5) if histogram else None
        values[f"{short}_p99_seconds"] = histogram.quantile(0.99) if histogram else None
    values["tpot_mean_seconds"] = o.tpot_seconds.mean if o.tpot_seconds else None
    for short, lengths in (("prompt_tokens", o.prompt_length), ("output_tokens", o.output_length)):
        if lengths is not None:
            values |= {f"{short}_mean": lengths.mean, f"{short}_p50": lengths.quantile(0.5),
                       f"{short}_p99": lengths.quantile(0.99)}  # fmt: skip
    values["replicas"] = float(o.pods)
    return Point(at, {k: v for k, v in values.items() if v is not None})
