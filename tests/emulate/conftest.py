"""A look-alike in this process, on a free port, 50 times faster than its model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from trimtab.emulate.environment import Emulation
from trimtab.emulate.flags import parse_flags
from trimtab.emulate.server import EmulatedServer


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


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`await start("--max-num-seqs", "8", speedup=10)`: arguments after the model name `m`, then Emulation fields."""
    opened: list[tuple[web.AppRunner, aiohttp.ClientSession]] = []

    async def _start(*args: str, **emulation: float) -> Running:
        server = EmulatedServer(parse_flags(["m", *args]), Emulation(**{"speedup": 50.0, **emulation}))  # type: ignore[arg-type]
        runner = web.AppRunner(server.app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        session = aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}")
        opened.append((runner, session))
        return Running(server, session)

    yield _start
    for runner, session in opened:
        await session.close()
        await runner.cleanup()
