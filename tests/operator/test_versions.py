"""The engine is asked for its version once per image, and a silent one is asked again later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from trimtab.observe.version import ask_version
from trimtab_operator.versions import RETRY_SECONDS, Versions


def deployment(image: str) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "spec": {"template": {"spec": {"containers": [{"image": image}]}}}}


def test_it_is_asked_once_per_image() -> None:
    asked: list[str] = []

    def ask(ip: str, port: int) -> str | None:
        asked.append(f"{ip}:{port}")
        return "0.11.0"

    versions = Versions(ask)
    for now in (0.0, 1e6):
        assert versions.of(deployment("a:latest"), ("p", "10.0.0.1"), 8000, now) == "0.11.0"
    assert asked == ["10.0.0.1:8000"]
    assert versions.of(deployment("b:latest"), ("p", "10.0.0.2"), 8000, 0) == "0.11.0"
    assert asked[1:] == ["10.0.0.2:8000"]


def test_a_silent_one_is_asked_again_later() -> None:
    answers = iter([None, "0.9.1"])
    versions = Versions(lambda ip, port: next(answers))
    assert versions.of(deployment("a"), ("p", "10.0.0.1"), 8000, 0) is None
    assert versions.of(deployment("a"), ("p", "10.0.0.1"), 8000, RETRY_SECONDS - 1) is None
    assert versions.of(deployment("a"), ("p", "10.0.0.1"), 8000, RETRY_SECONDS) == "0.9.1"


@pytest.fixture
def server() -> Iterator[tuple[dict[str, bytes], int]]:
    """An HTTP server on loopback that answers /version with what the test puts there."""
    answer = {"body": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    found = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield answer, found.server_port
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"version": "0.32.0"}', "0.32.0"),
        (b'{"version": "0.11.1rc2.dev5+gabc"}', "0.11.1"),
        (b'{"version": "dev"}', None),
        (b'{"version": 3}', None),
        (b"<html>login</html>", None),
        (b"[]", None),
    ],
)
def test_what_is_no_version_is_unknown(server: tuple[dict[str, bytes], int], body: bytes, version: str | None) -> None:
    answer, port = server
    answer["body"] = body
    assert ask_version("127.0.0.1", port) == version


def test_nobody_there_is_unknown() -> None:
    assert ask_version("127.0.0.1", 9) is None
