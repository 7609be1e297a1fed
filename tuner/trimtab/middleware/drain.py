"""Drain: how a pod stops serving without losing a request on a kept connection.

preStop sleep and --shutdown-timeout together still lose those: clients that keep a connection never leave the pod. Once
a preStop hook has called /trimtab/drain each response carries `Connection: close`; the hook's answer is held, and with
it SIGTERM, until what was kept has left; only then new work is refused. No clock: `now` is given.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

#: uvicorn closes a connection that was idle for so long (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, default 5)
KEEP_ALIVE_SECONDS = 5.0
DEFAULT_HOLD_SECONDS = 8.0
MOST_HOLD_SECONDS = 600.0
SERVING, DRAINING, REFUSING = 0, 1, 2


class Drain:
    """State of the drain. `touch` each time a connection is used or a response on it ends."""

    def __init__(self, keep_alive_seconds: float = KEEP_ALIVE_SECONDS) -> None:
        self.state = SERVING
        self._keep_alive_seconds = keep_alive_seconds
        self._kept: dict[object, float] = {}
        self._swept = 0.0
        self._in_flight: dict[object, int] = {}

    def begins(self, connection: object) -> None:
        self._in_flight[connection] = self._in_flight.get(connection, 0) + 1

    def ends(self, connection: object, closed: bool, now: float) -> None:
        """A response ended. `closed`: it said Connection: close, or the client is gone."""
        left = self._in_flight.get(connection, 1) - 1
        if left > 0:
            self._in_flight[connection] = left
        else:
            self._in_flight.pop(connection, None)
        if closed:
            self._kept.pop(connection, None)
        else:
            self._kept[connection] = now
        if now - self._swept > self._keep_alive_seconds:
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        self._swept = now
        self._kept = {c: t for c, t in self._kept.items() if now - t <= self._keep_alive_seconds}

    def open_connections(self, now: float) -> int:
        """Connections that are in use, or were within the keep-alive time and not closed since."""
        self._sweep(now)
        return len(self._kept.keys() | self._in_flight.keys())

    def start(self) -> None:
        self.state = max(self.state, DRAINING)

    def refuse(self) -> None:
        self.state = REFUSING

    def stop(self) -> None:
        self.state = SERVING


def may_drain(client: str, headers: Mapping[str, str], token: str, host_ip: str) -> bool:
    """Who may drain. A drained pod refuses work, so no client of the model may.

    With a token (TRIMTAB_DRAIN_TOKEN) only who sends it in `x-trimtab-token`: the kubelet's address differs by network
    plugin, so this is what the operator sets, in the hook's httpHeaders. Without one: loopback, or the node
    (TRIMTAB_HOST_IP from status.hostIP), and nothing that came through a proxy.
    """
    if token:
        return hmac.compare_digest(headers.get("x-trimtab-token", "").encode(), token.encode())
    if any(name in headers for name in ("x-forwarded-for", "forwarded", "via", "x-real-ip")):
        return False
    address = client[7:] if client.startswith("::ffff:") else client
    return address == "::1" or address.startswith("127.") or (host_ip != "" and address == host_ip)


def hold_seconds(value: str) -> float:
    """The `seconds` of a drain call, bounded; the default where it is no number."""
    try:
        wanted = float(value)
    except ValueError:
        return DEFAULT_HOLD_SECONDS
    return min(MOST_HOLD_SECONDS, wanted) if wanted >= 0 else DEFAULT_HOLD_SECONDS
