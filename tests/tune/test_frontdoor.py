"""The front door: bytes and ends pass as if it were not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from trimtab.tune.frontdoor import FrontDoor

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Serve = Callable[[Handler], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`port = await serve(handler)`: an upstream."""
    servers: list[asyncio.Server] = []

    async def _serve(handler: Handler) -> int:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield _serve
    for server in servers:
        server.close()


@pytest.fixture
async def door() -> AsyncIterator[FrontDoor]:
    made = FrontDoor("127.0.0.1", 0, wait_seconds=0.3)
    await made.start()
    yield made
    await made.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(data)
    writer.close()


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers at once, then keeps the connection until the client ends."""
    writer.write(b"x")
    await reader.read()
    writer.close()


async def test_bytes_pass_as_they_come(door: FrontDoor, serve: Serve) -> None:
    go_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        await go_on.wait()
        writer.write(b"second")
        writer.close()

    door.set_ready({"a": await serve(stream)})
    reader, writer = await asyncio.open_connection(*door.address)
    assert await asyncio.wait_for(reader.readexactly(5), 2) == b"first"
    go_on.set()
    assert await asyncio.wait_for(reader.read(), 2) == b"second"  # and then the end
    writer.close()


async def test_a_large_answer_arrives_whole_at_a_slow_reader(door: FrontDoor, serve: Serve) -> None:
    async def big(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"y" * 3_000_000)
        writer.close()

    door.set_ready({"a": await serve(big)})
    reader, writer = await asyncio.open_connection(*door.address, limit=1024)
    await asyncio.sleep(0.2)
    assert len(await asyncio.wait_for(reader.read(), 5)) == 3_000_000
    writer.close()


async def test_a_client_that_leaves_is_seen_upstream_at_once(door: FrontDoor, serve: Serve) -> None:
    left = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read()
        left.set()
        writer.close()

    door.set_ready({"a": await serve(watch)})
    reader, writer = await asyncio.open_connection(*door.address)
    await reader.readexactly(1)
    writer.transport.abort()
    await asyncio.wait_for(left.wait(), 2)
    assert await door.drained("a", 2)


async def test_a_server_that_closes_leaves_no_connection(door: FrontDoor, serve: Serve) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    door.set_ready({"a": await serve(answer)})
    reader, writer = await asyncio.open_connection(*door.address)
    assert await asyncio.wait_for(reader.read(), 2) == b"bye"
    assert await door.drained("a", 2)
    writer.close()


async def test_draining_lets_open_connections_end_and_sends_new_ones_elsewhere(door: FrontDoor, serve: Serve) -> None:
    old, new = await serve(hold), await serve(echo)
    door.set_ready({"old": old})
    reader, writer = await asyncio.open_connection(*door.address)
    await reader.readexactly(1)
    door.set_ready({"new": new})
    assert not await door.drained("old", 0.2)
    _, other = await asyncio.open_connection(*door.address)
    await asyncio.sleep(0.1)
    assert (door.connections("old"), door.connections("new")) == (1, 1)
    writer.close()
    assert await door.drained("old", 2)
    other.close()


async def test_a_replica_that_refuses_is_left_out(door: FrontDoor, serve: Serve, unused_tcp_port: int) -> None:
    door.set_ready({"gone": unused_tcp_port, "here": await serve(hold)})
    for _ in range(8):
        reader, writer = await asyncio.open_connection(*door.address)
        assert await asyncio.wait_for(reader.readexactly(1), 2) == b"x"
        writer.close()


async def test_without_a_ready_replica_clients_get_a_503(door: FrontDoor) -> None:
    reader, writer = await asyncio.open_connection(*door.address)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 503 ")
    writer.close()


async def test_replicas_get_equal_shares_in_random_order(door: FrontDoor, serve: Serve) -> None:
    door.set_ready({"a": await serve(hold), "b": await serve(hold)})
    writers = []
    for _ in range(20):
        reader, writer = await asyncio.open_connection(*door.address)
        await reader.readexactly(1)
        writers.append(writer)
    assert (door.connections("a"), door.connections("b")) == (10, 10)
    for writer in writers:
        writer.close()
