"""HTTP metrics as vLLM's prometheus-fastapi-instrumentator writes them, as an ASGI middleware.

A streaming client that disconnects counts as 2xx here (seen on a real server), unlike in the engine's metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from starlette.types import ASGIApp, Message, Receive, Scope, Send

EXCLUDED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
HIGHR = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0,
         60.0)  # fmt: skip


class WebMetrics:
    """Five families, named by the instrumentator. Requests outside `paths` have the handler `none`."""

    def __init__(self, registry: CollectorRegistry, paths: frozenset[str]) -> None:
        self._paths = paths
        self._total = Counter(
            "http_requests_total",
            "Total number of requests by method, status and handler.",
            ("method", "status", "handler"),
            registry=registry,
        )
        self._in_size = Summary(
            "http_request_size_bytes",
            "Content length of incoming requests by handler. Only value of header is respected. Otherwise ignored. "
            "No percentile calculated. ",
            ("handler",),
            registry=registry,
        )
        self._out_size = Summary(
            "http_response_size_bytes",
            "Content length of outgoing responses by handler. Only value of header is respected. Otherwise ignored. "
            "No percentile calculated. ",
            ("handler",),
            registry=registry,
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
            buckets=HIGHR,
            registry=registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
            ("method", "handler"),
            buckets=(0.1, 0.5, 1.0),
            registry=registry,
        )

    def record(self, scope: Scope, status: int, sizes: tuple[int, int], seconds: float) -> None:
        """One answered request. `sizes`: bytes of the request and of the answer, as their headers say."""
        method, handler = scope["method"], self._handler(scope["path"])
        self._total.labels(method=method, status=f"{status // 100}xx", handler=handler).inc()
        self._in_size.labels(handler=handler).observe(sizes[0])
        self._out_size.labels(handler=handler).observe(sizes[1])
        self._fine.observe(seconds)
        self._coarse.labels(method=method, handler=handler).observe(seconds)

    def _handler(self, path: str) -> str:
        return path if path in self._paths else "none"


class WebMetricsMiddleware:
    """Counts what passes. Innermost, as vLLM has it: what a user's middleware answers itself is not seen here."""

    def __init__(self, app: ASGIApp, metrics: WebMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in EXCLUDED:
            await self._app(scope, receive, send)
            return
        status, size = 500, 0
        started = time.perf_counter()

        async def watching(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, size = message["status"], _length(message.get("headers", ()))
            await send(message)

        try:
            await self._app(scope, receive, watching)
        finally:
            sizes = (_length(scope["headers"]), size)
            self._metrics.record(scope, status, sizes, time.perf_counter() - started)


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    return next((int(value) for name, value in headers if name.lower() == b"content-length" and value.isdigit()), 0)
