"""Engines of a `StandInKubelet`'s pods, as far as the middleware in them: each pod's own address answers GET /metrics.

A pod has the policy file that its ConfigMap said when it was seen first or its annotation was last touched: a kubelet
brings a ConfigMap at once only then.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from control_plane import ControlPlane, StandInKubelet, object_path
from trimtab.engine.install import POLICY_KEY, installed_names
from trimtab.plan.token_policy import body_of, digest_of, generation_of
from trimtab_operator.middleware import GENERATION_ANNOTATION

Json = dict[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True)
class Taken:
    """A policy file in a pod. at: unix seconds, true time. note: the annotation that brought it."""

    at: float
    note: str
    text: str

    @property
    def body(self) -> Json:
        return body_of(self.text) or {}


class StandInEngines:
    """`with StandInEngines(plane, kubelet) as engines`: every pod's address answers at `engines.port`."""

    def __init__(self, plane: ControlPlane, kubelet: StandInKubelet) -> None:
        self._plane, self._kubelet = plane, kubelet
        self._files: dict[Key, list[Taken]] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Silence."""

            def do_GET(self) -> None:
                found = outer._at(self.connection.getsockname()[0]) if self.path == "/metrics" else None
                body = b"" if found is None else metrics(outer.files(*found)[-1].text).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that was killed is no news."""

        self._server = Server(("0.0.0.0", 0), Handler)
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> StandInEngines:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def files(self, namespace: str, pod: str) -> list[Taken]:
        """The policy files that the pod has had, oldest first; an empty text where there was none."""
        key = (namespace, pod)
        with self._lock:
            taken, seen = self._files.setdefault(key, []), self._kubelet.ever[key]
            note = (seen["metadata"].get("annotations") or {}).get(GENERATION_ANNOTATION, "")
            if not taken or taken[-1].note != note:
                taken.append(Taken(time.time(), note, self._mounted(seen)))
            return list(taken)

    def _at(self, ip: str) -> Key | None:
        return next((k for k, p in list(self._kubelet.pods.items()) if p.get("status", {}).get("podIP") == ip), None)

    def _mounted(self, pod: Json) -> str:
        named = installed_names(pod)
        path = object_path("ConfigMap", pod["metadata"]["namespace"], named.policy if named else "none")
        return str(self._plane.request("GET", path)["data"][POLICY_KEY]) if self._plane.exists(path) else ""


def metrics(policy: str) -> str:
    """What the middleware's own metrics say of this policy file."""
    lines = ['trimtab_mw_info{version="0.1.0"} 1', "trimtab_mw_policy_bad 0"]
    if policy:
        lines += [f'trimtab_mw_policy_info{{digest="{digest_of(policy)}"}} 1']
        lines += [f"trimtab_mw_policy_generation {generation_of(policy)}"]
    return "\n".join([*lines, ""])
