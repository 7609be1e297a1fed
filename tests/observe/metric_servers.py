"""In-process HTTP servers on loopback ports: an engine's /metrics that a test changes, and one that misbehaves."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes, kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class MetricsServer:
    """`text` is what /metrics says now; `close` is the death of the pod."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        outer = self

        class Handler(_Quiet):
            def do_GET(self) -> None:
                if not outer.open:  # a kept-alive connection outlives the listening socket
                    self.close_connection = True
                    return
                self.answer(200, outer.text.encode(), "text/plain; version=0.0.4")

        self._server, self.port = _serve(Handler)
        self.open = True

    def close(self) -> None:
        if self.open:
            self.open = False
            self._server.shutdown()
            self._server.server_close()


def _serve(handler: type[BaseHTTPRequestHandler]) -> tuple[ThreadingHTTPServer, int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server, server.server_address[1]


class FaultHandler(_Quiet):
    """The first path segment names the fault."""

    seen_tokens: list[str | None]
    release: threading.Event

    def do_GET(self) -> None:
        fault = self.path.strip("/").split("/")[0].split("?")[0]
        type(self).seen_tokens.append(self.headers.get("Authorization"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, f"fault_{fault}")()

    def fault_hang(self) -> None:
        type(self).release.wait(20)

    def fault_401(self) -> None:
        self.answer(401, b"secret words of the proxy")

    def fault_403(self) -> None:
        self.answer(403, b"")

    def fault_500(self) -> None:
        self.answer(500, b"")

    def fault_503(self) -> None:
        self.answer(503, b'{"status":"error","errorType":"timeout","error":"query timed out"}', "application/json")

    def fault_html(self) -> None:
        self.answer(200, b"<html><title>Sign in</title></html>", "text/html")

    def fault_login(self) -> None:
        self.answer(302, b"", Location="http://127.0.0.1:9/login")

    def fault_list(self) -> None:
        self.answer(200, b"[1, 2]", "application/json")

    def fault_scalar(self) -> None:
        self.answer(200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}', "application/json")

    def fault_words(self) -> None:
        body = b'{"data":{"result":[{"metric":{"__name__":"vllm:num_requests_running"},"values":[[1,"many"]]}]}}'
        self.answer(200, body, "application/json")

    def fault_deep(self) -> None:
        self.answer(200, b"[" * 200_000, "application/json")

    def fault_drip(self) -> None:
        """A byte now and then: each read is in time, the answer never is."""
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        while not type(self).release.is_set():
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def fault_huge(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        block = b"vllm:num_requests_running 1\n" * 4096
        while not type(self).release.is_set():
            self.wfile.write(block)


@contextlib.contextmanager
def fault_server() -> Iterator[tuple[str, int, list[str | None]]]:
    """(host:port, port, Authorization headers seen)."""
    tokens: list[str | None] = []
    handler = type("Faults", (FaultHandler,), {"seen_tokens": tokens, "release": threading.Event()})
    server, port = _serve(handler)
    try:
        yield f"127.0.0.1:{port}", port, tokens
    finally:
        handler.release.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
