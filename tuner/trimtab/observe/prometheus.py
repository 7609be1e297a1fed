"""`PrometheusSource`: a thin shell around prometheus-api-client.

What is asked and how answers are read is in `promql`.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_api_client import PrometheusConnect
from urllib3.util.retry import Retry

from trimtab.errors import MetricsRefused, MetricsUnreachable
from trimtab.observe.promql import FOUND_BY, Ask, By, decode, plan, pod_of, scrape_interval, selectors
from trimtab.observe.samples import PodRef, Points, Samples, SeriesKey
from trimtab.observe.transport import BoundedSession, typed_errors

#: 10 pods of vLLM 0.32 over 15 minutes at 15 s are about 4 MiB
MAX_ANSWER_BYTES = 64 << 20


class PrometheusSource:
    """A `MetricsSource` on the Prometheus HTTP API (also Thanos, Mimir, VictoriaMetrics).

    Pods are found by the labels `namespace` and `pod`, those without by `instance` = ip:port; which of the two is
    remembered per pod. Hazard: an `instance` may have belonged to another pod before; do not ask for times before the
    pod was ready.

    timeout_seconds bounds connecting and each read, twice that a whole answer. A fetch is one query for
    most cases, one more for pods without a `pod` label. ca_pem replaces the public certificate authorities. A token is
    sent to whatever `url` names: use https. Calls from several threads wait for each other.
    """

    def __init__(
        self, url: str, *, bearer_token: str | None = None, ca_pem: str | None = None, timeout_seconds: float = 10.0
    ) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout_seconds
        parts = urlsplit(self._url)
        self._what = f"Prometheus at {parts.hostname}{f':{parts.port}' if parts.port else ''}"
        self._ca_file = _ca_file(ca_pem) if ca_pem else None
        self._session = BoundedSession(self._what, limit_bytes=MAX_ANSWER_BYTES, deadline_seconds=2 * timeout_seconds)
        self._session.verify = str(self._ca_file) if self._ca_file else True
        if bearer_token:
            self._session.headers["Authorization"] = f"Bearer {bearer_token.strip()}"
        # no retries here: the library's default would be 3 with pauses, and whoever fetches asks again at the next tick
        retry = Retry(total=0, read=False)
        self._client = PrometheusConnect(self._url, session=self._session, retry=retry, timeout=timeout_seconds)
        self._by_instance: frozenset[tuple[str, str]] = frozenset()
        self._interval: float | None = None
        self._lock = threading.Lock()

    def fetch(self, pods: Sequence[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        with self._lock:
            asks = plan(start, end, step_seconds, self._interval)
            known = [p for p in pods if (p.namespace, p.name) in self._by_instance]
            found = self._ask([p for p in pods if p not in known], "pod", asks)
            rest = [p for p in pods if p.name not in found and p.ip]
            by_instance = self._ask(rest, "instance", asks)
            self._by_instance = (self._by_instance - {(p.namespace, p.name) for p in rest}) | {
                (p.namespace, p.name) for p in rest if p.name in by_instance
            }
            found |= by_instance
            self._interval = scrape_interval(found.values()) or self._interval
            return Samples(found)

    def find(self, matchers: str, now: float, seconds: float) -> list[PodRef]:
        """Pods that had a vLLM gauge in the last `seconds`, by label matchers such as `namespace="prod"` ("": all).

        Targets without a `pod` label go by their `instance`. A matcher that Prometheus refuses raises
        MetricsUnreachable with its words.
        """
        inside = matchers.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
        query = (
            f"group by (namespace, pod, instance) (last_over_time({{{FOUND_BY}{inside}}}[{max(1, round(seconds))}s]))"
        )
        with self._lock, typed_errors(self._what, self._timeout):
            result = self._client.custom_query(query, params={"time": f"{now:.3f}", **self._limits()})
            found = [pod for item in result if (pod := pod_of(item["metric"])) is not None]
        return sorted({(p.namespace, p.name): p for p in found}.values(), key=lambda p: (p.namespace, p.name))

    def check(self) -> str:
        """One cheap query and the version, e.g. "Prometheus 2.42.0"; raises as `fetch` does."""
        with self._lock, typed_errors(self._what, self._timeout):
            answer = self._client.custom_query("vector(1)", params=self._limits())
            if not isinstance(answer, list) or len(answer) != 1:
                raise TypeError("vector(1) has one element")
            return f"Prometheus {self._version()}"

    def close(self) -> None:
        self._client.close()
        if self._ca_file:
            self._ca_file.unlink(missing_ok=True)

    def _limits(self) -> dict[str, str]:
        """Lets the server stop as well; not every API-compatible store knows it."""
        return {"timeout": f"{max(1, round(self._timeout * 1000))}ms"}

    def _version(self) -> str:
        """Not every API-compatible store has this path: then the version is unknown, which is no error."""
        with contextlib.suppress(MetricsUnreachable, ValueError):
            data = self._session.get(f"{self._url}/api/v1/status/buildinfo", timeout=self._timeout).json()["data"]
            return str(data["version"])[:40]
        return "(version unknown)"

    def _ask(self, pods: Sequence[PodRef], by: By, asks: Sequence[Ask]) -> dict[str, dict[SeriesKey, Points]]:
        if not pods:
            return {}
        with typed_errors(self._what, self._timeout):
            results = [self._query(ask, selector) for selector in selectors(pods, by) for ask in asks]
            try:
                return decode(results, pods, by)
            except ValueError as error:
                raise TypeError("not a matrix") from error

    def _query(self, ask: Ask, selector: str) -> Sequence[Any]:
        query, limits = ask.query(selector), self._limits()
        if not ask.step_seconds:
            result = self._client.custom_query(query, params={"time": f"{ask.end:.3f}", **limits})
        else:
            start, end = (datetime.fromtimestamp(t, UTC) for t in (ask.start, ask.end))
            result = self._client.custom_query_range(query, start, end, f"{ask.step_seconds:g}", params=limits)
        if not isinstance(result, list):
            raise TypeError("result is not a list")
        return result


def _ca_file(pem: str) -> Path:
    """`requests` takes certificate authorities as a file only; it lives until `close`."""
    try:
        ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise MetricsRefused("the CA certificate is not PEM") from error
    handle, name = tempfile.mkstemp(prefix="trimtab-ca-", suffix=".pem")
    with os.fdopen(handle, "w", encoding="ascii", errors="replace") as file:
        file.write(pem)
    return Path(name)
