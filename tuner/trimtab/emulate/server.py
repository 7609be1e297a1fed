"""The HTTP side of the look-alike: vLLM's paths on aiohttp, over an `Engine`.

A client that disconnects cancels its handler (`handler_cancellation`), which abandons its request in the engine.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

from trimtab.emulate.api import ApiContext, ApiError, Generation, parse_generation
from trimtab.emulate.contract import Request, SchedulerFactory
from trimtab.emulate.engine import Engine, EngineStopped
from trimtab.emulate.environment import Emulation
from trimtab.emulate.flags import ServerFlags
from trimtab.emulate.live import EngineObserver, LiveRequest, NoMetrics
from trimtab.emulate.metrics import EngineMetrics
from trimtab.emulate.scheduler import Scheduler
from trimtab.emulate.stream import EventWriter, whole_answer
from trimtab.emulate.web_metrics import WebMetrics

VERSION = "0.32.0-emulated"
MAX_BODY_BYTES = 64 * 2**20


class EmulatedServer:
    """One engine with its HTTP application. Serve `app` by an aiohttp runner with handler_cancellation=True."""

    def __init__(
        self, flags: ServerFlags, emulation: Emulation, *, scheduler_factory: SchedulerFactory = Scheduler
    ) -> None:
        self.flags, self.emulation = flags, emulation
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        self.observer: EngineObserver = EngineMetrics(self.registry, flags) if flags.log_stats else NoMetrics()
        self.engine = Engine(scheduler_factory(flags.limits), emulation.cost, self.observer, speedup=emulation.speedup)
        self._context = ApiContext(
            models=flags.served_model_names,
            max_model_len=flags.limits.max_model_len,
            max_new_tokens=flags.max_new_tokens,
            seed=emulation.seed,
            output_median_tokens=emulation.output_median_tokens,
            output_sigma=emulation.output_sigma,
        )
        self._faults = random.Random(emulation.seed)
        self._created = int(time.time())
        self.app = self._make_app()

    def _make_app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[WebMetrics(self.registry).middleware])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ping", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.cleanup_ctx.append(self._run_engine)
        return app

    async def _run_engine(self, _app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.engine.run(), name="engine")
        task.add_done_callback(_tell_failure)
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- plain paths --------------------------------------------------------------------------------------------------

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self.engine.dead else 200)

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _models(self, _request: web.Request) -> web.Response:
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
        return web.json_response({"object": "list", "data": cards})

    async def _metrics(self, _request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(self.registry), headers=headers)

    # --- generation ---------------------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            generation = await self._read(request, chat=chat)
            request_id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
            live = self._submit(request_id, generation)
        except ApiError as error:
            return web.json_response(error.body(), status=error.status)
        try:
            if generation.stream:
                return await self._stream(request, generation, live)
            end = await live.wait_for_end()
            return web.json_response(whole_answer(generation, request_id, int(time.time()), live.tokens, end))
        finally:
            self.engine.abandon(request_id)  # no effect on a request that has ended

    async def _read(self, request: web.Request, *, chat: bool) -> Generation:
        try:
            body = await request.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, f"JSON decode error: {error}") from None
        return parse_generation(body, self._context, chat=chat)

    def _submit(self, request_id: str, generation: Generation) -> LiveRequest:
        if self.emulation.error_rate and self._faults.random() < self.emulation.error_rate:
            raise ApiError(500, "Emulated internal error.", "InternalServerError")
        self._check_queue()
        try:
            wanted = Request(request_id, generation.prompt, generation.output_tokens, generation.max_tokens)
            return self.engine.submit(wanted)
        except EngineStopped:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise ApiError(500, message, "InternalServerError") from None

    def _check_queue(self) -> None:
        requests, tokens = self.flags.max_num_queued_reqs, self.flags.max_num_queued_tokens
        reason = None
        if requests is not None and self.engine.unfinished_count >= requests:
            reason = "max_num_queued_reqs"
        elif tokens is not None and self.engine.prefilling_tokens() >= tokens:
            reason = "max_num_queued_tokens"
        if reason is not None:
            self.observer.rejected(reason)
            raise ApiError(503, f"The request queue is full ({reason}).", "ServiceUnavailableError")

    async def _stream(self, request: web.Request, generation: Generation, live: LiveRequest) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        writer = EventWriter(generation, live.request_id, int(time.time()))
        sent = 0
        while True:
            await live.wait_beyond(sent)
            tokens, end = live.tokens, live.end
            try:
                await response.write(writer.events(sent, tokens, end))
                if end is not None:
                    await response.write(writer.closing(live.prompt_tokens, tokens))
                    return response
            except ConnectionResetError:  # the client left; the caller abandons the request
                return response
            sent = tokens


def _tell_failure(task: asyncio.Task[None]) -> None:
    """Log why the engine died, at once: nobody awaits the task before the end of the process."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the engine died", "exception": error, "task": task})
