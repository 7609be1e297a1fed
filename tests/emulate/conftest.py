"""A look-alike in this process, on a free port, 50 times faster than its model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from trimtab.emulate.environment import Emulation
from trimtab.emulate.flags import parse_flags
from trimtab.emulate.hosting import WebServer, bound_socket, load_middleware
from trimtab.emulate.server import EmulatedServer
from trimtab.simulate.stepper import Stepper


@dataclass
class Running:
    """A served look-alike and a client session whose paths are relative to it."""

    server: EmulatedServer
    http: aiohttp.ClientSession

    async def metrics(self) -> dict[str, float]:
        """Every sample of /metrics; the key is the text before the value."""
        async with self.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return {key: float(value) for key, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    async def total(self, name: str, label: str = "") -> float:
        """Sum over the samples of one name, of those with `label` in their labels."""
        samples = await self.metrics()
        return sum(value for key, value in samples.items() if key.partition("{")[0] == name and label in key)

    async def in_flight(self, count: int) -> None:
        """Until the engine has so many requests."""
        for _ in range(500):
            if self.server.engine.unfinished_count == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{self.server.engine.unfinished_count} in flight, not {count}")


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`await start("--max-num-seqs", "8", speedup=10)`: arguments after the model name `m`, then Emulation fields."""
    opened: list[tuple[WebServer, asyncio.Task[None], aiohttp.ClientSession]] = []

    async def _start(*args: str, **emulation: Any) -> Running:
        flags, how = parse_flags(["m", *args]), Emulation(**{"speedup": 50.0, **emulation})
        stepper = Stepper(flags.limits, how.times)
        emulated = EmulatedServer(flags, how, stepper, middleware=load_middleware(flags.middleware))
        sock = bound_socket("127.0.0.1", 0)
        server = WebServer(emulated.app)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        await asyncio.wait_for(server.listening.wait(), 10)
        session = aiohttp.ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}")
        opened.append((server, task, session))
        return Running(emulated, session)

    yield _start
    for server, task, session in opened:
        await session.close()
        server.should_exit = True
        await task
