"""One request through the middleware: read, limited, admitted, counted. Everything of its own runs under a guard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import peek
from .admission import DEFAULT_QUEUE_SECONDS, DEFAULT_RETRY_SECONDS, Ticket, Waiter
from .answers import refuse
from .body import Body, Message, Receive, Send, Unseen, headers_for, parsed
from .drain import REFUSING
from .limits import Limits, decide, rewritten
from .policy_file import Arm
from .stream import Events, MessagesEvents, Meter, OpenAIEvents, ResponsesEvents, Whole
from .wire import Request, understand

if TYPE_CHECKING:
    from .core import Core

_STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


class Exchange:
    """A request and its answer. `run` is the whole of it."""

    def __init__(self, core: Core, scope: Any, receive: Receive, send: Send, route: str) -> None:
        self.core, self.scope, self.route = core, scope, route
        self._receive, self._send = receive, send
        self.policy = core.watch.policy
        self.started = core.clock()
        self.connection: object = scope.get("client") or ("", 0)
        self.body = Body()
        self.request: Request | None = None
        self.arm: Arm | None = None
        self.limits = Limits(None)
        self.prediction: Any = None
        self.row: dict[str, Any] | None = None
        self.ticket = Ticket(1)
        self.refused = False
        self.reached_engine = False
        self.meter: Meter | None = None
        self.status = 0
        self.streams = False
        self.failed = False
        self.closes = False
        self.left_at: float | None = None
        self.left_tokens = 0
        self.left_complete = False
        self._asked_usage = self._asked_continuous = False
        self._injected = False
        self._pending: asyncio.Future[Message] | None = None
        self._is_closing = peek.is_closing(receive)
        self._faulty = False

    # --- the request ------------------------------------------------------------------------------------------------
    async def run(self, app: Any) -> None:
        core = self.core
        with core.guard("begin"):
            core.drain.begins(self.connection)
        try:
            await self._before()
            if not self.refused and not (self.left_at is not None and not self.body.messages):
                self.reached_engine = True
                await app(self.scope, self.receive, self.send)
        except BaseException:
            self.failed = True
            raise
        finally:
            if self._pending is not None:
                self._pending.cancel()
            with core.guard("finish"):
                core.gate.release(self.ticket)
                core.finish(self)

    async def _before(self) -> None:
        """Until the engine may have it. After a fault of ours the engine gets the request as it came."""
        most = self.policy.max_body_bytes
        if self._header_number(b"content-length") <= most:
            await self.body.read(self._receive, most)
        if self.body.gone:
            self._left()
        with self.core.guard("understand"):
            self._understand()
        if self.core.drain.state == REFUSING:
            self.refused = True
            await refuse(self.send, self.route, 503, "This replica is shutting down; try again.", 1.0, close=True)
            return
        waiter = None
        with self.core.guard("admission"):
            waiter = self._enter()
        if waiter is not None:
            await self._wait(waiter)
        elif self.refused:
            await self._too_many("The queue is full")
        elif not self.ticket.active:
            self.core.gate.take(self.ticket)

    def _understand(self) -> None:
        if not self.body.whole:
            self.core.metrics.unseen.labels("gone" if self.body.gone else "too_large").inc()
            return
        most = self.policy.max_body_bytes
        encoding = (self.header("content-encoding") or "").strip().lower()
        try:
            raw, content = parsed(self.body.joined(), encoding, most)
        except Unseen as unseen:
            self.core.metrics.unseen.labels(unseen.reason).inc()
            return
        request = understand(self.route, content)
        if request is None:
            self.core.metrics.unseen.labels("not_json").inc()
            return
        self.request = request
        self.arm = self.core.arm_of(self)
        with self.core.guard("predict"):
            self.prediction = self.core.predict(request)
        tokens = self.core.chooser.tokens(self.arm, request, self.header)
        level = tokens.predicted_level
        predicted = self.prediction.at(level) if self.prediction is not None and level is not None else None
        self.limits = decide(tokens, request, predicted)
        edits = {**self.limits.edits, **self._usage_edits(request)}
        with self.core.guard("features"):
            self.row = self.core.feature_row(request)
        if edits:
            new = rewritten(raw, request.body, edits)
            self.scope = {**self.scope, "headers": headers_for(self.scope["headers"], len(new))}
            self.body.replace(new)

    def _usage_edits(self, request: Request) -> dict[str, Any]:
        """stream_options that make the counts exact, where the client did not ask for them."""
        if not request.stream or self.route not in ("completions", "chat") or self.policy.counting == "passive":
            return {}
        options = request.body.get("stream_options")
        if options is not None and not isinstance(options, dict):
            return {}
        options = options or {}
        self._asked_usage = bool(options.get("include_usage"))
        self._asked_continuous = self._asked_usage and bool(options.get("continuous_usage_stats"))
        if peek.usage_is_forced(self.core.state):
            self._asked_usage = self._asked_continuous = True
            return {}
        wanted = _STREAM_OPTIONS if self.policy.counting == "exact" else {"include_usage": True}
        new = {**options, **wanted}
        if not self._asked_usage and self.policy.counting == "final":
            new.pop("continuous_usage_stats", None)
        if new == options:
            return {}
        self._injected = True
        return {"stream_options": new}

    # --- admission --------------------------------------------------------------------------------------------------
    def _enter(self) -> Waiter | None:
        """Into the engine at once (None), or the waiter to wait with; `refused` where the queue is full."""
        core = self.core
        if self.request is None or self.body.gone:
            return None  # what cannot be weighed or watched passes
        self.ticket = core.weigh(self.request, self.limits, self.prediction, self.header)
        self.ticket.generated = self._generated
        if core.gate.enter(self.ticket):
            core.admitted.inc()
            return None
        waiter = Waiter(self.ticket, self._client(), asyncio.get_running_loop().create_future())
        if core.gate.wait(waiter):
            return waiter
        self.refused = True
        core.metrics.admissions.labels("rejected_full").inc()
        return None

    def _generated(self) -> int:
        return self.meter.tokens if self.meter is not None else 0

    async def _wait(self, waiter: Waiter) -> None:
        """Wait for the gate, the client's leaving or the deadline, whichever is first."""
        core = self.core
        seconds = core.gate.limits.queue_seconds
        pending = asyncio.ensure_future(self._receive())
        self._pending = pending
        either: set[asyncio.Future[Any]] = {waiter.admitted, pending}
        try:
            await asyncio.wait(
                either,
                timeout=DEFAULT_QUEUE_SECONDS if seconds is None else seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            core.gate.leave(waiter)
        core.metrics.queue_seconds.observe(core.clock() - self.started)
        if pending.done():
            # the body was read to its end: all that can come is http.disconnect
            core.metrics.admissions.labels("cancelled_queued").inc()
            self.body.messages.clear()
            self._left()
        elif waiter.admitted.done():
            core.metrics.admissions.labels("queued").inc()
        else:
            waiter.admitted.cancel()
            self.refused = True
            core.metrics.admissions.labels("rejected_deadline").inc()
            await self._too_many("No room within the time a request may wait")

    async def _too_many(self, why: str) -> None:
        seconds = self.core.gate.limits.retry_after_seconds
        retry = DEFAULT_RETRY_SECONDS if seconds is None else seconds
        await refuse(self.send, self.route, 429, f"{why}; try again later.", retry, close=self.core.drain.state > 0)

    def _client(self) -> int:
        """A hash that tells clients apart; their keys are not kept."""
        header = self.core.gate.limits.client_header or "authorization"
        value = self.header(header)
        if value is None:
            client = self.scope.get("client")
            value = str(client[0]) if client else ""
        return hash(value)

    # --- headers ----------------------------------------------------------------------------------------------------
    def header(self, name: str) -> str | None:
        wanted = name.lower().encode("latin-1", "replace")
        for key, value in self.scope["headers"]:
            if key == wanted:
                found: bytes = value
                return found.decode("latin-1")
        return None

    def _header_number(self, name: bytes) -> int:
        for key, value in self.scope["headers"]:
            if key == name:
                return int(value) if value.isdigit() and len(value) < 19 else 0
        return 0

    def deal_key(self) -> bytes:
        """What decides a request's arm: its own id, or its client's."""
        experiment = self.policy.experiment
        if experiment is not None and experiment.split_by == "client":
            value = self.header(self.core.gate.limits.client_header or "authorization")
            client = self.scope.get("client")
            return (value if value is not None else str(client[0]) if client else "").encode()
        given = self.header("x-request-id")
        return given.encode() if given else str(self.core.chance()).encode()

    # --- the two directions -------------------------------------------------------------------------------------------
    async def receive(self) -> Message:
        if self.body.messages:
            return self.body.messages.popleft()
        if self._pending is not None:
            pending, self._pending = self._pending, None
            message = await pending
        else:
            message = await self._receive()
        if message["type"] == "http.disconnect" and self.left_at is None:
            self._left()
        return message

    def _left(self) -> None:
        """The client is gone: what was counted until now is what it was sent."""
        self.left_at = self.core.clock()
        if self.meter is not None:
            self.left_tokens, self.left_complete = self.meter.tokens, self.meter.complete

    async def send(self, message: Message) -> None:
        if not self._faulty:
            try:
                kind = message["type"]
                if kind == "http.response.body":
                    if self.meter is not None:
                        message = self._counted(self.meter, message)
                elif kind == "http.response.start":
                    message = self._start(message)
            except Exception as error:  # noqa: BLE001  the boundary: a fault in counting must not end a stream
                self._faulty = True
                self.core.guard.fault("send", error)
        if message:
            await self._send(message)

    def _counted(self, meter: Meter, message: Message) -> Message:
        """A part of the answer as it is to be sent; empty: not at all. Once per chunk: keep it short."""
        if self._is_closing is not None and self.left_at is None and self._is_closing():
            self._left()
        body = message.get("body", b"")
        more = message.get("more_body", False)
        new = meter.feed(body, not more)
        if new is body:
            return message
        return {"type": "http.response.body", "body": new, "more_body": more} if new or not more else {}

    def _start(self, message: Message) -> Message:
        self.status = int(message["status"])
        headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
        names = {bytes(name).lower(): bytes(value) for name, value in headers}
        if self.status == 200 and not self.refused:
            if names.get(b"content-encoding", b"identity") != b"identity":
                self.core.metrics.unseen.labels("answer_encoding").inc()
            else:
                self.streams = names.get(b"content-type", b"").startswith(b"text/event-stream")
                self.meter = self._meter(fixed=b"content-length" in names)
        extra = self._answer_headers()
        if names.get(b"connection", b"").lower() == b"close":
            self.closes = True
        elif self.core.drain.state:
            self.closes = True
            extra.append((b"connection", b"close"))
        return {**message, "headers": headers + extra} if extra else message

    def _answer_headers(self) -> list[tuple[bytes, bytes]]:
        found = []
        for reason, text in self.limits.changes:
            name = b"x-trimtab-thinking-tokens" if reason == "thinking" else b"x-trimtab-max-tokens"
            found.append((name, f"{text}; {reason}".encode()))
        if found:
            found.append((b"x-trimtab-policy", str(self.policy.generation).encode()))
        if self.arm is not None:
            found.append((b"x-trimtab-arm", self.arm.name.encode("latin-1", "replace")))
        return found

    def _meter(self, *, fixed: bool) -> Meter:
        """`fixed`: the answer has a length, so nothing may be cut out."""
        request = self.request
        choices = request.prompts * _answers(request) if request is not None else 1
        given = request.body.get("stop_token_ids") if request is not None else None
        stop_tokens = frozenset(t for t in given if type(t) is int) if isinstance(given, list) else frozenset()
        if not self.streams:
            return Whole(choices, stop_tokens)
        if self.route in ("responses", "messages"):
            events: Events = ResponsesEvents(1) if self.route == "responses" else MessagesEvents(1)
            return events
        cut = self._injected and not fixed
        return OpenAIEvents(
            choices,
            stop_tokens,
            cut_chunks=cut and not self._asked_continuous and self.policy.counting == "exact",
            cut_final=cut and not self._asked_usage,
            fingerprint=self.core.fingerprint(self.route),
        )

    # --- what it came to ----------------------------------------------------------------------------------------------
    def ending(self) -> str:
        if self.refused:
            return "rejected"
        if self.status in (408, 504):
            return "timeout"
        if self.status >= 400:
            return "rejected" if self.status < 500 else "error"
        meter = self.meter
        if self.left_at is not None and not self.left_complete:
            return "client_cancel"
        if meter is not None and meter.endings and (meter.complete or "error" in meter.endings):
            return meter.ending or "error"
        if self.failed or (self.status == 0 and self.reached_engine) or self.streams:
            return "error"
        return "unseen"

    def counts(self) -> tuple[int, int]:
        """(tokens sent to the client, tokens that came after it had left)."""
        if self.meter is None:
            return 0, 0
        if self.left_at is None:
            return self.meter.tokens, 0
        return self.left_tokens, max(0, self.meter.tokens - self.left_tokens)


def _answers(request: Request) -> int:
    """Choices per prompt in the answer: n, whatever best_of is."""
    n = request.body.get("n")
    return n if type(n) is int and n > 0 else 1
