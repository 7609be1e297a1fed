"""The HTTP side of the look-alike: vLLM's paths as a Starlette application, over an `Engine`.

A client that disconnects is told by ASGI (`http.disconnect`), as in vLLM; its request is then abandoned in the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from trimtab.emulate.api import ApiContext, ApiError, Generation, parse_generation
from trimtab.emulate.engine import Engine, EngineStopped
from trimtab.emulate.environment import Emulation
from trimtab.emulate.faults import FaultBoard, distorted
from trimtab.emulate.flags import ServerFlags
from trimtab.emulate.hosting import UserMiddleware
from trimtab.emulate.live import EngineObserver, LiveRequest, NoMetrics
from trimtab.emulate.metrics import EngineMetrics
from trimtab.emulate.prompt import block_ids
from trimtab.emulate.stream import EventWriter, whole_answer
from trimtab.emulate.web_metrics import WebMetrics, WebMetricsMiddleware
from trimtab.errors import InputError

if TYPE_CHECKING:  # at run time it comes with the compiled code, after the flags were read
    from trimtab.simulate.stepper import Stepper

VERSION: Final = "0.32.0-emulated"
FAULTS_PATH: Final = "/emulate/faults"


class EmulatedServer:
    """One engine with its web application; serve `app` by `hosting.WebServer`."""

    def __init__(
        self,
        flags: ServerFlags,
        emulation: Emulation,
        stepper: Stepper,
        *,
        registry: CollectorRegistry | None = None,
        middleware: UserMiddleware = (),
    ) -> None:
        """`registry`: the process's own, for what middleware registers there to be seen; None: a new one."""
        self.flags, self.emulation = flags, emulation
        self.registry = registry or _new_registry()
        self.board = FaultBoard()
        self.observer: EngineObserver = EngineMetrics(self.registry, flags) if flags.log_stats else NoMetrics()
        self.engine = Engine(
            stepper,
            self.observer,
            speedup=emulation.speedup,
            board=self.board,
            block_size=flags.limits.block_size,
            seed=emulation.seed,
        )
        self._context = ApiContext(
            models=flags.served_model_names,
            max_model_len=flags.limits.max_model_len,
            max_new_tokens=flags.max_new_tokens,
            seed=emulation.seed,
            output_median_tokens=emulation.output_median_tokens,
            output_sigma=emulation.output_sigma,
        )
        self._draws = random.Random(emulation.seed)
        self._created = int(time.time())
        self.app = self._make_app(middleware)

    def _make_app(self, middleware: UserMiddleware) -> Starlette:
        routes = [
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/ping", self._health, methods=["GET", "POST"]),
            Route("/version", self._version, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        if self.emulation.fault_api:
            routes.append(Route(FAULTS_PATH, self._faults, methods=["GET", "POST"]))
        web = WebMetrics(self.registry, frozenset(route.path for route in routes))
        app = Starlette(
            routes=routes,
            middleware=[Middleware(WebMetricsMiddleware, metrics=web)],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )
        for cls, options in middleware:  # the last one is the outermost
            app.add_middleware(cls, **options)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.engine.run(), name="engine"), asyncio.create_task(self._begin_faults())]
        tasks[0].add_done_callback(_tell_failure)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin_faults(self) -> None:
        await asyncio.sleep(self.emulation.faults_after_seconds)
        self.board.set(self.emulation.faults)

    # --- plain paths --------------------------------------------------------------------------------------------------

    async def _health(self, _request: Request) -> Response:
        return Response(status_code=503 if self.engine.dead.is_set() else 200)

    async def _version(self, _request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def _models(self, _request: Request) -> Response:
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self.flags.model,
                "parent": None,
                "max_model_len": self.flags.limits.max_model_len,
                "permission": [],
            }
            for name in self.flags.served_model_names
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def _metrics(self, _request: Request) -> Response:
        body = distorted(generate_latest(self.registry), self.board.now)
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _faults(self, request: Request) -> Response:
        if request.method == "POST":
            try:
                body = await request.json()
                if not isinstance(body, dict):
                    raise InputError("body", "is no JSON object", 'Send {"hang": true}.')
                self.board.set(self.board.now.changed(body, "body"))
            except (ValueError, InputError) as error:
                return JSONResponse(ApiError(400, str(error)).body(), status_code=400)
        return JSONResponse(self.board.as_json())

    # --- generation ---------------------------------------------------------------------------------------------------

    async def _completions(self, request: Request) -> Response:
        return await self._generate(request, chat=False)

    async def _chat(self, request: Request) -> Response:
        return await self._generate(request, chat=True)

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        request_id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        try:
            generation = await self._read(request, chat=chat)
            live = self._submit(generation)
            if generation.stream:
                return TokenStream(self.engine, live, EventWriter(generation, request_id, int(time.time())))
            return await self._whole(request, generation, live, request_id)
        except ApiError as error:
            return JSONResponse(error.body(), status_code=error.status)

    async def _read(self, request: Request, *, chat: bool) -> Generation:
        try:
            body = await request.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, f"JSON decode error: {error}") from None
        return parse_generation(body, self._context, chat=chat)

    def _submit(self, generation: Generation) -> LiveRequest:
        faults, limits = self.board.now, self.flags.limits
        if faults.error_share and self._draws.random() < faults.error_share:
            raise ApiError(faults.error_status, "Emulated error.", HTTPStatus(faults.error_status).phrase)
        self._check_queue()
        prefix = block_ids(generation.prompt, limits.block_size) if limits.enable_prefix_caching else ()
        sizes = len(generation.prompt), generation.output_tokens, generation.max_tokens
        try:
            return self.engine.submit(*sizes, priority=generation.priority, prefix=prefix)
        except EngineStopped:
            raise dead_engine() from None

    def _check_queue(self) -> None:
        requests, tokens = self.flags.limits.max_num_queued_reqs, self.flags.limits.max_num_queued_tokens
        reason = None
        if requests is not None and self.engine.unfinished_count >= requests:
            reason = "max_num_queued_reqs"
        elif tokens is not None and self.engine.prefilling_tokens() >= tokens:
            reason = "max_num_queued_tokens"
        if reason is not None:
            self.observer.rejected(reason)
            raise ApiError(503, f"The request queue is full ({reason}).", "ServiceUnavailableError")

    async def _whole(self, request: Request, generation: Generation, live: LiveRequest, request_id: str) -> Response:
        gone = asyncio.create_task(_watch(request.receive, live))
        try:
            end = await live.wait_for_end()
        finally:
            gone.cancel()
            self.engine.abandon(live)  # no effect on a request that has ended
        if end is None:
            return JSONResponse(None)  # nobody reads it; vLLM answers the same
        if end == "error":
            raise dead_engine()
        return JSONResponse(whole_answer(generation, request_id, int(time.time()), live.tokens, end))


class TokenStream(Response):
    """Server-sent events, one per token, until the end of the request or of its client."""

    def __init__(self, engine: Engine, live: LiveRequest, writer: EventWriter) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._engine, self._live, self._writer = engine, live, writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_watch(receive, self._live))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_tokens(send)
        finally:
            gone.cancel()
            self._engine.abandon(self._live)  # no effect on a request that has ended

    async def _send_tokens(self, send: Send) -> None:
        live, writer, sent = self._live, self._writer, 0
        while not live.left:
            await live.wait_beyond(sent)
            tokens, end = live.tokens, live.end
            if end is None:
                await send({"type": "http.response.body", "body": writer.events(sent, tokens, None), "more_body": True})
                sent = tokens
                continue
            last = writer.failed(dead_engine().body()) if end == "error" else writer.events(sent, tokens, end)
            closing = b"" if end == "error" else writer.closing(live.prompt_tokens, tokens)
            await send({"type": "http.response.body", "body": last + closing, "more_body": False})
            return


def dead_engine() -> ApiError:
    """What vLLM answers when the engine core is gone."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return ApiError(500, message, "InternalServerError")


async def _watch(receive: Receive, live: LiveRequest) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    live.leave()


async def _http_error(_request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in vLLM's shape."""
    assert isinstance(error, HTTPException)
    shape = ApiError(error.status_code, error.detail, HTTPStatus(error.status_code).phrase)
    return JSONResponse(shape.body(), status_code=error.status_code, headers=error.headers)


def _new_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (GCCollector, PlatformCollector, ProcessCollector):
        collector(registry=registry)
    return registry


def _tell_failure(task: asyncio.Task[None]) -> None:
    """Log why the engine died, at once: nobody awaits the task before the end of the process."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the engine died", "exception": error, "task": task})
