"""The front door: a TCP splice that gives each connection to one of the ready replicas.

The choice is random in rounds: each round visits every ready replica once, in a new random order. A Service of
Kubernetes draws each time anew; with the few requests of one machine that alone would be most of a verdict's noise.
Bytes pass both ways untouched, so streaming, errors and disconnects are what the engine and the client make them; an
end of one side is passed on at once. Hazard: the choice is per connection. A client that keeps connections sticks to a
replica, and draining waits for it until the bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Final

#: how long a connection waits for a replica to become ready before it gets a 503
WAIT_FOR_READY_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_BACKLOG: Final = 1024
#: how long a refused client has to read its answer
_REFUSED_SECONDS: Final = 1.0
_NONE_READY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: 17\r\n\r\nno engine is up.\n"
)


class FrontDoor:
    """Listens on `host:port` (port 0: a free one). Replicas have names; only those in `set_ready` get connections."""

    def __init__(self, host: str, port: int, seed: int = 0, *, wait_seconds: float = WAIT_FOR_READY_SECONDS) -> None:
        self._host, self._port, self._wait = host, port, wait_seconds
        self._random = random.Random(seed)
        self._ready: dict[str, int] = {}
        self._round: list[str] = []
        self._open: dict[str, set[_Client]] = {}  # by replica; a client is in it from before the connect
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), self._host, self._port, backlog=_BACKLOG)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"

    def set_ready(self, ports: Mapping[str, int]) -> None:
        """Exactly these replicas (name -> loopback port) get new connections; open ones stay."""
        self._ready = dict(ports)

    def connections(self, name: str) -> int:
        """Open connections to a replica."""
        return len(self._open.get(name, ()))

    async def drained(self, name: str, seconds: float) -> bool:
        """Wait until a replica that is no longer ready has no connection; False when that took too long."""
        until = asyncio.get_running_loop().time() + seconds
        while self.connections(name):
            if asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ends in [set(ends) for ends in self._open.values()]:
            for end in ends:
                end.abort()
        if self._server is not None:
            await self._server.wait_closed()

    # --- called by connections ----------------------------------------------------------------------------------------
    def admit(self, client: _Client) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: _Client) -> None:
        """To a random ready replica; one that refuses is left out, until none is left for `wait_seconds`."""
        loop = asyncio.get_running_loop()
        until, refused = loop.time() + self._wait, set[str]()
        while not client.closed:
            names = [n for n in self._ready if n not in refused]
            if not names:
                if loop.time() > until:
                    client.refuse(_NONE_READY)
                    return
                refused.clear()
                await asyncio.sleep(_POLL_SECONDS)
                continue
            name = self._next(names)
            self._open.setdefault(name, set()).add(client)
            try:
                _, upstream = await loop.create_connection(lambda: _Upstream(client), "127.0.0.1", self._ready[name])
            except OSError:
                self._open[name].discard(client)
                refused.add(name)
                continue
            client.joined(name, upstream)
            return

    def _next(self, names: list[str]) -> str:
        """The next of this round that is among `names`; a new round where none is left."""
        self._round = [n for n in self._round if n in self._ready]
        name = next((n for n in self._round if n in names), None)
        if name is None:
            self._round = self._random.sample(names, len(names))
            name = self._round[0]
        self._round.remove(name)
        return name

    def left(self, name: str, client: _Client) -> None:
        ends = self._open.get(name, set())
        ends.discard(client)
        if not ends:
            self._open.pop(name, None)


class _End(asyncio.Protocol):
    """One end of a splice: what it reads goes to `peer`, and so does its end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: _End | None = None
        self.closed = False

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        """Half-closed: the other direction stays open, as it would without us."""
        if self.peer is not None and self.peer.transport is not None and not self.peer.closed:
            with contextlib.suppress(OSError):
                self.peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """The reader on this side is slow: stop reading on the other."""
        if self.peer is not None and self.peer.transport is not None and not self.peer.closed:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None and not self.peer.closed:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.peer is not None and self.peer.transport is not None and not self.peer.closed:
            if exc is None:
                self.peer.transport.close()
            else:
                self.peer.transport.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Client(_End):
    """The side of whoever connected. Not read before its replica is connected."""

    def __init__(self, door: FrontDoor) -> None:
        super().__init__()
        self._door, self._replica = door, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        self._door.admit(self)

    def joined(self, replica: str, upstream: _Upstream) -> None:
        self._replica, self.peer = replica, upstream
        if self.closed:
            upstream.abort()
            self._door.left(replica, self)
        elif self.transport is not None:
            self.transport.resume_reading()

    def refuse(self, answer: bytes) -> None:
        """What the client sent is read and dropped: a close over unread bytes resets, and it would see no answer."""
        if self.transport is not None and not self.closed:
            self.transport.resume_reading()
            self.transport.write(answer)
            self.transport.write_eof()
            asyncio.get_running_loop().call_later(_REFUSED_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._replica:
            self._door.left(self._replica, self)


class _Upstream(_End):
    """The side of the replica. Its end closes both: HTTP servers do not half-close, and nobody would end the rest."""

    def eof_received(self) -> bool:
        return False

    def __init__(self, client: _Client) -> None:
        super().__init__()
        self.peer = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
