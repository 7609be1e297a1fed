"""An aiohttp server that speaks /v1/completions and misbehaves on request: the prompt's max_tokens is obeyed,
`app["mode"]` says how.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web


@dataclass
class FakeServer:
    """`mode` is how the next answers go; `bodies` and `closed` (requests the client left early) are what the server
    saw.
    """

    url: str = ""
    mode: str = "ok"
    token_seconds: float = 0.0
    text: str = "x"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: set[int] = field(default_factory=set)
    closed: int = 0
    sent_tokens: int = 0


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    return (
        b"data: "
        + json.dumps(
            {"id": "c", "choices": [choice], "usage": None}, separators=(",", ":"), ensure_ascii=False
        ).encode()
        + b"\n\n"
    )


async def _completions(request: web.Request) -> web.StreamResponse:
    server: FakeServer = request.app[SERVER]
    body = await request.json()
    server.bodies.append(body)
    assert request.transport is not None
    server.connections.add(request.transport.get_extra_info("peername")[1])
    if server.mode == "http500":
        return web.Response(status=500, text="engine dead")
    if server.mode == "disconnect":
        request.transport.close()
        return web.Response()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    try:
        await _answer(server, request, response, body)
    except (ConnectionResetError, asyncio.CancelledError):
        server.closed += 1
        raise
    return response


async def _answer(server: FakeServer, request: web.Request, response: web.StreamResponse, body: dict[str, Any]) -> None:
    if server.mode == "hang":
        await asyncio.sleep(60)
    tokens = min(body["max_tokens"], body.get("vllm_xargs", {}).get("emulated_output_tokens", 10**9))
    for number in range(1, tokens + 1):
        if number == 3 and server.mode in _MIDWAY:
            await _MIDWAY[server.mode](request, response)
            return
        await response.write(event(server.text, "length" if number == tokens else None))
        server.sent_tokens += 1
        await asyncio.sleep(server.token_seconds)
    if body.get("stream_options", {}).get("include_usage") and server.mode != "no_usage":
        await response.write(b'data: {"id":"c","choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens)
    if server.mode != "no_done":
        await response.write(b"data: [DONE]\n\n")


async def _abort(request: web.Request, response: web.StreamResponse) -> None:
    await response.write(event("", "abort") + b"data: [DONE]\n\n")


async def _error(request: web.Request, response: web.StreamResponse) -> None:
    await response.write(b'data: {"error": {"message": "EngineDeadError", "code": 500}}\n\ndata: [DONE]\n\n')


async def _cut(request: web.Request, response: web.StreamResponse) -> None:
    assert request.transport is not None
    request.transport.close()


async def _stop(request: web.Request, response: web.StreamResponse) -> None:
    """A regular end of HTTP in the middle of the answer."""


async def _stall(request: web.Request, response: web.StreamResponse) -> None:
    await asyncio.sleep(60)


_MIDWAY = {"abort": _abort, "error": _error, "cut": _cut, "stop": _stop, "stall": _stall}
SERVER = web.AppKey("server", FakeServer)


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "fake-model"}]})


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app[SERVER] = fake
    app.add_routes([web.post("/v1/completions", _completions), web.get("/v1/models", _models)])
    runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()
