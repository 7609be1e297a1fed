"""Where `trimtab diagnose` reads: /metrics pages sampled for some seconds, or a Prometheus. Nothing is installed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from trimtab.diagnose.case import Case
from trimtab.diagnose.engines import Engine
from trimtab.diagnose.facts import Facts
from trimtab.diagnose.finding import Limits
from trimtab.diagnose.from_observation import case_of
from trimtab.errors import InputError, MetricsError, MetricsUnreachable
from trimtab.observe.exposition import parse
from trimtab.observe.mapping import fleet
from trimtab.observe.observation import Observation
from trimtab.observe.prometheus import PrometheusSource
from trimtab.observe.ring import Ring
from trimtab.observe.samples import Samples
from trimtab.observe.scrape import MAX_ANSWER_BYTES
from trimtab.observe.transport import BoundedSession, typed_errors

#: gauges of other servers -> the report's field
OTHER_ENGINES: Final = {
    "tgi_batch_current_size": ("tgi", "running"),
    "tgi_queue_size": ("tgi", "waiting"),
    "sglang:num_running_reqs": ("sglang", "running"),
    "sglang:num_queue_reqs": ("sglang", "waiting"),
    "sglang:token_usage": ("sglang", "kv_usage"),
    "sglang:gen_throughput": ("sglang", "generation_tokens_per_second"),
    "sglang:cache_hit_rate": ("sglang", "prefix_hit_ratio"),
}
#: windows that the time is cut into: enough to see a trend, each with samples enough to count from
WINDOWS: Final = 4
_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Known:
    """What the person says beside the metrics."""

    engine: Engine
    limits: Limits
    facts: Facts


class Pages:
    """/metrics pages of one target's pods, one each."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rings = {url: Ring(3600.0) for url in urls}
        #: of servers that are not vLLM: rows of a report
        self.rows: list[dict[str, Any]] = []
        self.other_engine: str | None = None

    def sample(self, seconds: float, every: float, sleep: Callable[[float], None] = time.sleep) -> tuple[float, float]:
        """Scrapes for `seconds`; (begin, end). Raises MetricsError if a page cannot be read the first time."""
        begin = now = self._clock()
        for i in range(max(2, math.floor(seconds / every) + 1)):
            if i:
                sleep(max(0.0, begin + i * every - self._clock()))
            now = self._clock()
            for url in self._rings:
                self._scrape(url, now, now - begin, first=i == 0)
        return begin, now

    def _scrape(self, url: str, now: float, since: float, *, first: bool) -> None:
        try:
            text = _get(url)
        except MetricsError as error:
            if first:
                error.hint = error.hint if error.hint == _NO_METRICS else _NO_ANSWER
                raise
            self.rows.append({"t_seconds": since, "health": "unreachable"})
            return
        values = parse(text).values
        if values:
            self._rings[url].add(now, values)
            return
        row = _other(text)
        if not row and first:
            raise MetricsUnreachable(f"{url} has no metric of vLLM, TGI or SGLang", hint=_NO_METRICS)
        self.other_engine = row.pop("engine", None) or self.other_engine
        self.rows.append({"t_seconds": since, **row})

    def samples(self, begin: float, end: float) -> Samples:
        found = {url: ring.read(begin - 1, end, 1.0) for url, ring in self._rings.items()}
        return Samples({url: series for url, series in found.items() if series})


_NO_ANSWER: Final = "Check the address from this machine, and that the server is up."
_NO_METRICS: Final = "Name the server's metrics page (/metrics), and leave out --disable-log-stats there."


def _get(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("SOURCE", f"{url!r} is no URL", "Give http://HOST:PORT/metrics, a file, or - for stdin.")
    shown = parts.hostname + (f":{parts.port}" if parts.port else "")
    full = url if parts.path not in ("", "/") else f"{url.rstrip('/')}/metrics"
    session = BoundedSession(shown, limit_bytes=MAX_ANSWER_BYTES, deadline_seconds=_TIMEOUT_SECONDS)
    with closing(session), typed_errors(shown, _TIMEOUT_SECONDS):
        return session.get(full, timeout=_TIMEOUT_SECONDS).content.decode("utf-8", errors="replace")


def _other(text: str) -> dict[str, Any]:
    """Gauges of TGI or SGLang as a row of a report; empty where there are none."""
    row: dict[str, Any] = {}
    lines = [line for line in text.split("\n") if line.split("{", 1)[0].split(" ", 1)[0] in OTHER_ENGINES]
    for line in lines:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                engine, field = OTHER_ENGINES[sample.name]
                row["engine"] = engine
                row[field] = row.get(field, 0.0) + float(sample.value) if field != "kv_usage" else float(sample.value)
    return row


def from_samples(samples: Samples, pods: Sequence[str], begin: float, end: float, known: Known) -> Case:
    """The case of a time, cut into windows: of all pods together and, where they are several, of each."""
    cuts = [begin + (end - begin) * i / WINDOWS for i in range(WINDOWS + 1)]
    spans = list(pairwise(cuts))

    def windows(names: Sequence[str]) -> list[Observation]:
        blank = Observation(pods=len(names), window_seconds=(end - begin) / WINDOWS)
        return [fleet(samples, names, a, b) or blank for a, b in spans]

    parts = {pod: windows([pod]) for pod in pods} if len(pods) > 1 else {}
    return case_of(
        windows(pods), known.engine.settings, known.limits, parts=parts, engine=known.engine, facts=known.facts
    )


def from_prometheus(source: PrometheusSource, matchers: str, seconds: float, now: float, known: Known) -> Case:
    """Every vLLM pod or target that the label matchers select. InputError where there is none."""
    try:
        pods = source.find(matchers, now, seconds)
    except MetricsError as error:
        error.hint = "Check --prometheus (its base URL, from this machine), --selector and the token."
        raise
    if not pods:
        problem = f"{matchers!r} selects no vllm: series in the last {seconds:.0f} s"
        raise InputError(
            "--selector", problem, 'Give labels of the target, such as \'namespace="prod",pod=~"llm-.*"\'.'
        )
    samples = source.fetch(pods, now - seconds, now, max(1.0, seconds / WINDOWS / 5))
    return from_samples(samples, [p.name for p in pods], now - seconds, now, known)
