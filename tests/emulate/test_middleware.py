"""--middleware loads what it names, as vLLM does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.emulate.flags import StartupError
from trimtab.emulate.hosting import load_middleware

Running = Any  # conftest.Running: with importlib mode it has no importable name
Start = Callable[..., Awaitable[Running]]
CODE = """
from starlette.responses import JSONResponse

class Outer:
    name = b"outer"

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def marked(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"passed", self.name)]
            await send(message)
        await self.app(scope, receive, marked)

class Inner(Outer):
    name = b"inner"

async def refuse(request, call_next):
    if "no-entry" in request.headers:
        return JSONResponse({"refused": True}, status_code=429)
    return await call_next(request)

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module on the path with three middlewares."""
    name = f"mw_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


async def ask(running: Running, **headers: str) -> tuple[int, list[str], str]:
    body = {"prompt": "a b", "max_tokens": 3, "ignore_eos": True}
    async with running.http.post("/v1/completions", json=body, headers=headers) as response:
        return response.status, response.headers.getall("passed", []), await response.text()


async def test_classes_and_functions_in_the_order_of_the_flags(start: Start, module: str) -> None:
    flags = [f"--middleware={module}.Inner", f"--middleware={module}.refuse", f"--middleware={module}.Outer"]
    running = await start(*flags)
    status, passed, _ = await ask(running)
    assert (status, passed) == (200, ["inner", "outer"])
    status, passed, text = await ask(running, **{"no-entry": "1"})
    assert (status, passed, json.loads(text)) == (429, ["outer"], {"refused": True})
    # as in vLLM, what a middleware answers itself is not in the server's own counts
    assert await running.total("http_requests_total") == 1


async def test_a_stream_through_a_function_ends_and_a_client_that_leaves_is_seen(start: Start, module: str) -> None:
    running = await start(f"--middleware={module}.refuse", speedup=5)
    body = {"prompt": "a b", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    response = await running.http.post("/v1/completions", json=body)
    await response.content.readuntil(b"\n\n")
    assert running.server.engine.unfinished_count == 1
    response.close()
    await running.in_flight(0)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module.Thing", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}.Nothing", "AttributeError"),
        ("{}.number", "Must be a function or a class"),
        ("justaname", "ValueError"),
    ],
)
def test_what_cannot_be_loaded_ends_the_start_in_the_words_of_vllm(module: str, path: str, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        load_middleware([path.format(module)])
