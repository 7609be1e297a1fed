"""A fake engine behind the middleware, and a client that drives both without a network or a clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from trimtab.middleware.app import Middleware
from trimtab.middleware.core import Core
from trimtab.middleware.metrics import Metrics

Json = dict[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """Answers as vLLM 0.32 does: chunks as pydantic writes them, usage where stream_options asks for it."""

    def __init__(self, chunks: list[list[int]] | None = None) -> None:
        #: tokens of each chunk, by choice
        self.chunks = chunks if chunks is not None else [[1, 1, 1]]
        self.reason, self.stop_reason = "stop", "null"
        self.seen: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.gate: asyncio.Event | None = None
        self.stopped = 0
        self.pause: Callable[[int], Any] | None = None
        self.raises: Exception | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.stopped += 1
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.headers.append({k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]})
        request = json.loads(body) if body else {}
        self.seen.append(request)
        if self.raises is not None:
            raise self.raises
        work = asyncio.ensure_future(self._answer(scope, request, send))
        watch = asyncio.ensure_future(receive())
        done, _ = await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            self.stopped += 1
            work.cancel()
            return
        watch.cancel()
        work.result()

    async def _answer(self, scope: Any, request: Json, send: Any) -> None:
        if self.gate is not None:
            await self.gate.wait()
        kind = b"text/event-stream" if request.get("stream") and self.status == 200 else b"application/json"
        start = {"type": "http.response.start", "status": self.status, "headers": [(b"content-type", kind)]}
        if self.status != 200:
            await send(start)
            await send({"type": "http.response.body", "body": b'{"error":{"message":"no"}}'})
        elif request.get("stream"):
            await send(start)
            await self._stream(scope["path"], request, send)
        else:
            await send(start)
            body = self._whole(scope["path"])
            await send({"type": "http.response.body", "body": body, "more_body": False})

    def _whole(self, path: str) -> bytes:
        tokens = [sum(c) for c in self.chunks]
        choices = [
            {"index": i, "text": "x" * n, "finish_reason": self.reason, "stop_reason": json.loads(self.stop_reason)}
            for i, n in enumerate(tokens)
        ]
        usage = {"prompt_tokens": 7, "total_tokens": 7 + sum(tokens), "completion_tokens": sum(tokens)}
        return json.dumps({"id": "c", "choices": choices, "usage": usage}, separators=(",", ":")).encode()

    async def _stream(self, path: str, request: Json, send: Any) -> None:
        options = request.get("stream_options") or {}
        include = bool(options.get("include_usage"))
        continuous = include and bool(options.get("continuous_usage_stats"))
        sums = [0] * len(self.chunks)
        sent = 0
        for step in range(max(map(len, self.chunks))):
            for choice, tokens in enumerate(self.chunks):
                if step >= len(tokens):
                    continue
                sums[choice] += tokens[step]
                last = step == len(tokens) - 1
                event = chunk(choice, "t" * tokens[step], self.reason if last else None, self.stop_reason)
                if continuous:
                    event = (
                        event[:-1]
                        + f',"usage":{{"prompt_tokens":7,"total_tokens":9,"completion_tokens":{sums[choice]}}}}}'
                    )
                if last and not include:
                    event = event[:-1] + ',"system_fingerprint":"vllm-x"}'
                await send(part(f"data: {event}\n\n"))
                sent += 1
                if self.pause is not None:
                    await self.pause(sent)
        if include:
            usage = {"prompt_tokens": 7, "total_tokens": 7 + sum(sums), "completion_tokens": sum(sums)}
            event = json.dumps(
                {"id": "c", "choices": [], "usage": usage, "system_fingerprint": "vllm-x"}, separators=(",", ":")
            )
            await send(part(f"data: {event}\n\n"))
        await send(part("data: [DONE]\n\n"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def chunk(index: int, text: str, reason: str | None, stop_reason: str = "null") -> str:
    finish = "null" if reason is None else f'"{reason}"'
    stop = "null" if reason is None else stop_reason
    return (
        f'{{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{{"index":{index},'
        f'"text":{json.dumps(text)},"logprobs":null,"finish_reason":{finish},"stop_reason":{stop}}}]}}'
    )


def part(text: str) -> Json:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


class Answer:
    """What a client got."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def events(self) -> list[bytes]:
        return [e for e in self.body.split(b"\n\n") if e]


class Rig:
    """The middleware with its own registry, a clock that is set, and chance that is given."""

    def __init__(
        self, engine: Any = None, policy: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.engine = engine if engine is not None else Engine()
        self.clock, self.registry = Clock(), CollectorRegistry()
        self.luck = 0.5
        env = {"POD_NAME": "pod-0", **(environ or {})}
        if policy is not None:
            env["TRIMTAB_POLICY_FILE"] = str(policy)
        self.core = Core(
            env, metrics=Metrics(self.registry), clock=self.clock, wall=lambda: 5.0e8, chance=lambda: self.luck
        )
        self.app = Middleware(self.engine, self.core)

    def value(self, name: str, **labels: str) -> float:
        self.core.show()  # as a scrape does
        return self.registry.get_sample_value(name, labels) or 0.0

    def by_ending(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name == name and sample.value:
                    ending = sample.labels["ending"]
                    found[ending] = found.get(ending, 0.0) + sample.value
        return found

    async def call(
        self,
        body: Json | bytes,
        path: str = "/v1/completions",
        *,
        headers: Mapping[str, str] | None = None,
        leave_after: int | None = None,
        leave: asyncio.Event | None = None,
        client: tuple[str, int] = ("10.0.0.1", 4000),
        pieces: int = 1,
        method: str = "POST",
        query: str = "",
        root: str = "",
    ) -> Answer:
        """One request. `leave_after`: the client closes after so many parts; `leave`: when it is set."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        size = max(1, -(-len(raw) // pieces))
        queue = [raw[i : i + size] for i in range(0, len(raw), size)] or [b""]
        answer, left = Answer(), leave or asyncio.Event()

        async def receive() -> Json:
            if queue:
                return {"type": "http.request", "body": queue.pop(0), "more_body": bool(queue)}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Json) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            elif message.get("body") and not left.is_set():
                answer.parts.append(message["body"])
                if leave_after is not None and len(answer.parts) >= leave_after:
                    left.set()
                    await asyncio.sleep(0)

        given = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items()]
        scope = {
            "type": "http", "method": method, "path": path, "headers": given, "client": client,
            "query_string": query.encode(), "root_path": root, "asgi": {"spec_version": "2.3"},
        }  # fmt: skip
        await self.app(scope, receive, send)
        return answer
