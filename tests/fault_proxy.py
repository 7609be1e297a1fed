"""A proxy between the operator and the API server that delays, refuses and swallows, as it is told while it runs.

Plain HTTP in, HTTPS out. Watches are passed on line by line.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3


@dataclass
class Fault:
    """slow_seconds: before each answer. status: instead of each answer that `hits(method, path)` chooses. mute: watches
    stay open and say nothing. cut: connections are closed without an answer.
    """

    slow_seconds: float = 0.0
    status: int = 0
    hits: Callable[[str, str], bool] = lambda _method, _path: True
    mute: bool = False
    cut: bool = False


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on, or does not."""

    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError, urllib3.exceptions.HTTPError):
            self._pass_on()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        fault = self.owner.fault
        time.sleep(fault.slow_seconds)
        if fault.cut:
            self.close_connection = True
            return
        if fault.status and fault.hits(self.command, self.path):
            self._refuse(fault.status)
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        answer = self.owner.pool.request(
            self.command, self.owner.upstream + self.path, body=body, headers=headers, preload_content=False,
            retries=False, timeout=urllib3.Timeout(5, 60), decode_content=False,
        )  # fmt: skip
        self._answer(answer)

    def _refuse(self, status: int) -> None:
        text = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "a fault", "code": status}
        body = json.dumps(text).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, answer: Any) -> None:
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Encoding"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        if "watch=true" not in self.path:
            body = answer.read()
            answer.release_conn()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for chunk in answer.stream(1 << 14):
            if not self.owner.fault.mute:  # what comes while it is mute is lost
                self.wfile.write(chunk)
                self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed is no news."""


class FaultProxy:
    """`with FaultProxy(upstream, pool) as proxy`: serves at `proxy.url`; `proxy.fault` is what is wrong now."""

    def __init__(self, upstream: str, pool: urllib3.PoolManager) -> None:
        self.fault, self.upstream, self.pool = Fault(), upstream, pool
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
