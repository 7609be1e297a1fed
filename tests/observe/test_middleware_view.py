"""What the middleware says of itself on /metrics: read from its own exposition, and from nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from trimtab.middleware.metrics import Metrics
from trimtab.observe.middleware import MiddlewareView, ask_middleware, read_middleware

VLLM = "# HELP vllm:num_requests_running x\nvllm:num_requests_running 1.0\n"


def exposed() -> tuple[Metrics, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.info.labels("0.1.0").set(1)
    return metrics, registry


def text_of(registry: CollectorRegistry) -> str:
    return VLLM + generate_latest(registry).decode()


def test_the_middlewares_own_exposition_is_read() -> None:
    metrics, registry = exposed()
    metrics.policy_info.labels("0123456789ab").set(1)
    metrics.policy_generation.set(7)
    assert read_middleware(text_of(registry)) == MiddlewareView("0.1.0", "0123456789ab", 7, False)
    metrics.policy_bad.set(1)
    seen = read_middleware(text_of(registry))
    assert seen is not None and seen.bad


def test_an_engine_without_it_shows_none() -> None:
    assert read_middleware(VLLM) is None
    assert read_middleware("") is None


def test_an_old_digest_at_zero_is_history_and_two_at_one_are_no_agreement() -> None:
    metrics, registry = exposed()
    metrics.policy_info.labels("old").set(0)
    metrics.policy_info.labels("new").set(1)
    first = read_middleware(text_of(registry))
    metrics.policy_info.labels("old").set(1)
    second = read_middleware(text_of(registry))
    assert first is not None and first.digest == "new"
    assert second is not None and second.digest == ""


@pytest.mark.parametrize(
    "line",
    [
        'trimtab_mw_info{version="',
        "trimtab_mw_info",
        'trimtab_mw_info{version="x"} NaN',
        "trimtab_mw_info " + "9" * 5000,
        "trimtab_mw_policy_generation 1e999",
    ],
)
def test_broken_lines_are_no_middleware(line: str) -> None:
    assert read_middleware(line) is None


@pytest.fixture
def server() -> Iterator[tuple[dict[str, Any], int]]:
    answer: dict[str, Any] = {"body": b"", "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"])
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    found = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield answer, found.server_port
    found.shutdown()
    found.server_close()


def test_a_pod_is_asked_over_http_and_a_silent_one_is_none(server: tuple[dict[str, Any], int]) -> None:
    answer, port = server
    _, registry = exposed()
    answer["body"] = text_of(registry).encode()
    seen = ask_middleware("127.0.0.1", port)
    assert seen is not None and seen.version == "0.1.0"
    answer["status"] = 401
    assert ask_middleware("127.0.0.1", port) is None
    assert ask_middleware("127.0.0.1", 1) is None
