"""HTTP metrics as vLLM's prometheus-fastapi-instrumentator writes them, as an aiohttp middleware.

A streaming client that disconnects counts as 2xx here (seen on a real server), unlike in the engine's metrics.
"""

from __future__ import annotations

import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

EXCLUDED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
HIGHR = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0,
         60.0)  # fmt: skip


class WebMetrics:
    """Five families, named by the instrumentator."""

    def __init__(self, registry: CollectorRegistry) -> None:
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

    @property
    def middleware(self) -> Middleware:
        """The aiohttp middleware; put it first so that it times everything."""

        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            resource = request.match_info.route.resource
            name = resource.canonical if resource is not None else "none"
            if name in EXCLUDED:
                return await handler(request)
            started = time.perf_counter()
            status, size = 200, 0  # a cancelled handler leaves these: the client of a stream went away
            try:
                response = await handler(request)
                status, size = response.status, response.content_length or 0
                return response
            except web.HTTPException as error:
                status = error.status
                raise
            finally:
                self._record(request, name, status, size, time.perf_counter() - started)

        return observe

    def _record(self, request: web.Request, handler: str, status: int, size: int, seconds: float) -> None:
        self._total.labels(method=request.method, status=f"{status // 100}xx", handler=handler).inc()
        self._in_size.labels(handler=handler).observe(request.content_length or 0)
        self._out_size.labels(handler=handler).observe(size)
        self._fine.observe(seconds)
        self._coarse.labels(method=request.method, handler=handler).observe(seconds)
