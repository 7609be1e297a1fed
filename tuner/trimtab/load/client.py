"""Sends one request, reads its stream and says honestly how it ended.

A 200 is no success: a server that shuts down ends streams with finish_reason `abort`, without [DONE], or with nothing
in them at all. By default each request opens a fresh connection, as users behind a Service do; a client that keeps
its connection sticks to one pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from trimtab.errors import InputError, TrimtabError
from trimtab.load.prompt import Prompts
from trimtab.load.records import Ending, Record
from trimtab.load.stream import StreamReader
from trimtab.load.trace import Request

#: forced: ignore_eos and min_tokens = max_tokens (any vLLM, exact lengths; max_tokens of the trace is not sent);
#: emulated: max_tokens as in the trace, and the natural length travels in vllm_xargs (Trimtab's emulator)
Lengths = Literal["forced", "emulated"]
CONNECT_SECONDS = 10.0


class Clock:
    """Epoch seconds that never jump: the wall clock once, then the monotonic one."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


@dataclass(frozen=True)
class ClientOptions:
    """Times in seconds. `patience_seconds` None: wait for the first token as long as the whole timeout."""

    url: str
    model: str
    prompts: Prompts
    lengths: Lengths = "forced"
    timeout_seconds: float = 600.0
    patience_seconds: float | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class _Progress:
    """What is known of a request on its way."""

    sent_at: float
    reader: StreamReader = field(default_factory=StreamReader)
    first_token_at: float | None = None
    last_token_at: float | None = None
    cancelled: bool = False


class Failure(Exception):
    """A request failed for `cause`, a stable word; `detail` is what the server or the system said."""

    def __init__(self, cause: str, detail: str | None = None) -> None:
        super().__init__(cause)
        self.cause, self.detail = cause, detail


class Client:
    """Use as an async context manager; `send` may run many times at once and raises nothing that a server can cause."""

    def __init__(self, options: ClientOptions, clock: Callable[[], float] | None = None) -> None:
        self.options = options
        self._base = options.url.rstrip("/").removesuffix("/v1")
        self._clock = clock or Clock()
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        for keepalive in (False, True):
            connector = aiohttp.TCPConnector(limit=0) if keepalive else aiohttp.TCPConnector(limit=0, force_close=True)
            self._sessions[keepalive] = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                headers=self.options.headers,
                read_bufsize=2**18,
                auto_decompress=False,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            await session.close()

    async def send(self, request: Request, number: int, arrival_at: float, keepalive: bool = False) -> Record:
        """Run one request to its end; when the calling task is cancelled, the Record says `unfinished` and the
        cancellation ends here.
        """
        body = self.body(request, number)
        state = _Progress(self._clock())
        ending: Ending = "failed"
        cause: str | None = None
        detail: str | None = None
        try:
            await self._limited(request, body, state, keepalive)
            ending = "cancelled" if state.cancelled else "ok"
        except _GaveUp:
            ending = "gave_up"
        except Failure as failure:
            cause, detail = failure.cause, failure.detail
        except asyncio.CancelledError:
            ending, cause = "unfinished", "run_ended"
        reader = state.reader
        return Record(
            number=number,
            arrival_at=arrival_at,
            sent_at=state.sent_at,
            first_token_at=state.first_token_at,
            last_token_at=state.last_token_at,
            ended_at=self._clock(),
            prompt_tokens=request.prompt_tokens,
            planned_tokens=request.planned_tokens,
            max_tokens=int(body["max_tokens"]),
            tokens=reader.tokens if reader.usage_tokens is None else reader.usage_tokens,
            ending=ending,
            cause=cause,
            detail=detail,
            keepalive=keepalive,
        )

    def body(self, request: Request, number: int) -> dict[str, Any]:
        """The JSON body. Usage is asked for because an engine may merge several tokens into one event."""
        planned = request.planned_tokens
        body: dict[str, Any] = {
            "model": self.options.model,
            "prompt": self.options.prompts.text(request, number),
            "max_tokens": planned,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.options.lengths == "forced":
            return body | {"min_tokens": planned, "ignore_eos": True}
        return body | {
            "max_tokens": request.max_tokens,
            "vllm_xargs": {"emulated_output_tokens": request.output_tokens},
        }

    async def _limited(self, request: Request, body: dict[str, Any], state: _Progress, keepalive: bool) -> None:
        """One timer for both limits: it stands at the patience until the first token, then at the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.timeout_seconds
        patience = self.options.patience_seconds
        first = deadline if patience is None else min(deadline, loop.time() + patience)
        try:
            async with asyncio.timeout_at(first) as timer:
                await self._stream(request, body, state, keepalive, lambda: timer.reschedule(deadline))
        except aiohttp.ClientError as error:  # first: some of them are TimeoutErrors too
            raise Failure(_cause(error), f"{type(error).__name__}: {error}"[:200]) from error
        except TimeoutError as error:
            if first < deadline and state.first_token_at is None:
                raise _GaveUp from error
            raise Failure("timeout", f"no end within {self.options.timeout_seconds:g} s") from error
        except OSError as error:
            raise Failure("reset", f"{type(error).__name__}: {error}"[:200]) from error

    async def _stream(
        self, request: Request, body: dict[str, Any], state: _Progress, keepalive: bool, on_first: Callable[[], None]
    ) -> None:
        reader, clock = state.reader, self._clock
        cancel_after = request.cancel_after_tokens
        async with self._sessions[keepalive].post(self._base + "/v1/completions", json=body) as response:
            if response.status != 200:
                text = (await response.content.read(200)).decode("utf-8", "replace")
                raise Failure(f"http_{response.status}", text)
            async for data in response.content.iter_any():
                if reader.feed(data):
                    state.last_token_at = now = clock()
                    if state.first_token_at is None:
                        state.first_token_at = now
                        on_first()
                    if cancel_after is not None and reader.tokens >= cancel_after:
                        state.cancelled = True
                        response.close()  # the connection too: this is how the server learns of it
                        return
                if reader.error is not None:
                    raise Failure("error_event", reader.error)
        _judge(reader)

    async def model_name(self) -> str:
        """The first model of /v1/models."""
        url = self._base + "/v1/models"
        try:
            async with self._sessions[False].get(url, timeout=aiohttp.ClientTimeout(total=CONNECT_SECONDS)) as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            raise TrimtabError(
                f"{url} does not answer ({what})", hint="Check the URL and that the server is ready, or give --model."
            ) from error
        models = answer.get("data") if isinstance(answer, dict) else None
        name = models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else None
        if response.status != 200 or not isinstance(name, str):
            raise InputError(
                "URL",
                f"{url} lists no model (status {response.status})",
                "Give the base URL of a vLLM server, or --model.",
            )
        return name


class _GaveUp(Exception):
    """No first token within the patience."""


def _judge(reader: StreamReader) -> None:
    """The stream came to a regular end of HTTP. Was it an end of the answer?"""
    if reader.finish_reason is None:
        raise Failure("no_finish" if reader.tokens else "empty_stream", "the stream ended without a finish_reason")
    if reader.finish_reason not in ("stop", "length"):
        cause = "abort" if reader.finish_reason == "abort" else f"finish_{reader.finish_reason}"
        raise Failure(cause, "status 200")
    if not reader.done:
        raise Failure("no_done", "the stream ended without [DONE]")


def _cause(error: aiohttp.ClientError) -> str:
    """ClientConnectorError is an OSError of aiohttp's own tree; the order matters."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError):
        return "connect_error"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return "reset"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "cut"
    return "protocol_error"
