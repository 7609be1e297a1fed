"""Builders: `/metrics` texts of an imagined engine, and Samples from (time, text) pairs."""

from __future__ import annotations

from collections import defaultdict

from trimtab.observe.exposition import parse
from trimtab.observe.samples import Points, Samples, SeriesKey

ENGINE = 'engine="0",model_name="m"'


def line(name: str, value: float | str, labels: str = ENGINE) -> str:
    return f"{name}{{{labels}}} {value}"


def counter(name: str, value: float, labels: str = ENGINE) -> str:
    return line(f"vllm:{name}_total", value, labels)


def success(reason: str, value: float) -> str:
    return line("vllm:request_success_total", value, f'{ENGINE},finished_reason="{reason}"')


def http(value: float, status: str = "2xx", handler: str = "/v1/completions", method: str = "POST") -> str:
    return line("http_requests_total", value, f'handler="{handler}",method="{method}",status="{status}"')


def histogram(name: str, buckets: dict[str, float], total: float, labels: str = ENGINE) -> str:
    lines = [line(f"vllm:{name}_bucket", n, f'{labels},le="{le}"') for le, n in buckets.items()]
    return "\n".join([*lines, line(f"vllm:{name}_sum", total, labels)])


def text(*lines: str, started: float | None = 1000.0) -> str:
    head = [f"process_start_time_seconds {started}"] if started is not None else []
    return "\n".join([*head, *lines]) + "\n"


def names_in(text: str) -> set[str]:
    """The series names of a text."""
    return {x.split("{")[0].split(" ")[0] for x in text.split("\n") if x and not x.startswith("#")}


def samples(*scrapes: tuple[float, str], pod: str = "p") -> Samples:
    """What a source would have kept of these scrapes."""
    series: dict[SeriesKey, list[tuple[float, float]]] = defaultdict(list)
    for at, body in scrapes:
        for key, value in parse(body).values.items():
            series[key].append((at, value))
    kept: dict[SeriesKey, Points] = {key: tuple(points) for key, points in series.items()}
    return Samples({pod: kept} if kept else {})
