#!/usr/bin/env python3
"""`vllm` for pods whose engine is emulated: loads ASGI middleware by --middleware, as vLLM does.

Runs inside the pod, from a ConfigMap, with the image's own Python. aiohttp serves, each request goes through the ASGI
stack, and the innermost application passes it on to the emulator on another port.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest

INNER_PORT = 9000


def split(argv: list[str]) -> tuple[list[str], list[str], int]:
    """(the emulator's arguments, middleware classes, the port to serve)."""
    kept, classes, port = [], [], 8000
    for argument in argv:
        if argument.startswith("--middleware="):
            classes.append(argument.partition("=")[2])
        elif argument.startswith("--port="):
            port = int(argument.partition("=")[2])
        else:
            kept.append(argument)
    return [*kept, f"--port={INNER_PORT}"], classes, port


async def emulator(scope: Any, receive: Any, send: Any) -> None:
    """The innermost ASGI application. Its /metrics also shows what the middleware counts in this process."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = {k.decode(): v.decode() for k, v in scope["headers"] if k not in (b"host", b"content-length")}
    url = f"http://127.0.0.1:{INNER_PORT}{scope['path']}"
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(scope["method"], url, data=body or None, headers=headers) as answer,
    ):
        kept = [
            (k.lower().encode(), v.encode())
            for k, v in answer.headers.items()
            if k.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server")
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": kept})
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    last = generate_latest() if scope["path"] == "/metrics" else b""
    await send({"type": "http.response.body", "body": last, "more_body": False})


def bridge(application: Any) -> Any:
    """An aiohttp handler that runs an ASGI application."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        response = web.StreamResponse()

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # a client that leaves cancels this task
            return None

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                response.set_status(message["status"])
                for key, value in message.get("headers", ()):
                    response.headers.add(key.decode(), value.decode())
                await response.prepare(request)
            elif message.get("body"):
                await response.write(message["body"])

        scope = {
            "type": "http", "method": request.method, "path": request.path, "raw_path": request.path.encode(),
            "query_string": request.query_string.encode(), "http_version": "1.1", "scheme": "http", "root_path": "",
            "headers": [(k.lower(), v) for k, v in request.raw_headers], "asgi": {"version": "3.0"},
            "client": (request.remote or "", 0), "server": ("", 0), "state": {},
        }  # fmt: skip
        await application(scope, receive, send)
        await response.write_eof()
        return response

    return handle


async def main(argv: list[str]) -> int:
    arguments, classes, port = split(argv)
    process = await asyncio.create_subprocess_exec("trimtab", "emulate", *arguments)
    application: Any = emulator
    for name in classes:
        module, _, cls = name.rpartition(".")
        application = getattr(importlib.import_module(module), cls)(application)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", bridge(application))
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, process.terminate)  # it drains, and this process ends with it
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
