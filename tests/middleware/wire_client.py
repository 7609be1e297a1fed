"""A bare HTTP/1.1 client that knows what reached it: it cancels by half-closing and reads what was still sent."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any


@dataclasses.dataclass
class Record:
    """What a client saw of one request. `tokens` are counted from token_ids, not from usage."""

    status: int = 0
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    tokens: int = 0
    reason: str | None = None
    stop_reason: Any = None
    cancelled: bool = False
    error: str | None = None

    @property
    def ending(self) -> str:
        if self.status >= 400:
            return "rejected"
        if self.reason is None:
            return "client_cancel" if self.cancelled else "error"
        return "stop_sequence" if self.reason == "stop" and self.stop_reason is not None else self.reason


def request_bytes(path: str, body: dict[str, Any], extra: str = "") -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n{extra}"
    return head.encode() + f"content-length: {len(raw)}\r\n\r\n".encode() + raw


async def read_head(reader: asyncio.StreamReader, record: Record) -> None:
    line = await reader.readline()
    record.status = int(line.split()[1]) if line else 0
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        record.headers[name.lower()] = value.strip()


async def lines(reader: asyncio.StreamReader, chunked: bool) -> Any:
    """The body's text in the pieces it came in, until the end of the connection."""
    while True:
        if not chunked:
            piece = await reader.read(65536)
            if not piece:
                return
            yield piece
            continue
        size = (await reader.readline()).strip()
        if not size or size == b"0":
            return
        piece = await reader.read(int(size, 16)) if int(size, 16) == 0 else await reader.readexactly(int(size, 16))
        await reader.readline()
        yield piece


async def ask(port: int, path: str, body: dict[str, Any], *, leave_after: int | None = None, extra: str = "") -> Record:
    """Send one request and follow it to its end. `leave_after`: cancel once so many tokens have come."""
    record = Record()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(request_bytes(path, body, extra))
        await writer.drain()
        if leave_after == 0:
            _leave(writer, record)
        await read_head(reader, record)
        chunked = record.headers.get("transfer-encoding") == "chunked"
        rest = b""
        async for piece in lines(reader, chunked):
            rest += piece
            if not body.get("stream") or record.status != 200:
                continue
            while b"\n\n" in rest:
                event, rest = rest.split(b"\n\n", 1)
                _take(event, record)
                if leave_after is not None and not record.cancelled and record.tokens >= leave_after:
                    _leave(writer, record)
        if not body.get("stream") and record.status == 200 and rest:
            _whole(json.loads(rest), record)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        record.error = repr(error)
    finally:
        writer.close()
    return record


def _leave(writer: asyncio.StreamWriter, record: Record) -> None:
    record.cancelled = True
    writer.write_eof()


def _take(event: bytes, record: Record) -> None:
    if not event.startswith(b"data: {"):
        return
    data = json.loads(event[6:])
    assert "usage" not in data, "usage that the client did not ask for"
    if "error" in data:
        record.error = str(data["error"])
    for choice in data.get("choices", ()):
        record.tokens += len(choice.get("token_ids") or ())
        if choice.get("finish_reason"):
            record.reason, record.stop_reason = choice["finish_reason"], choice.get("stop_reason")


def _whole(data: dict[str, Any], record: Record) -> None:
    choice = data["choices"][0]
    record.tokens = len(choice["token_ids"])
    record.reason, record.stop_reason = choice["finish_reason"], choice.get("stop_reason")


async def get(port: int, path: str) -> tuple[int, str]:
    """A small answer: (status, body)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        record = Record()
        await read_head(reader, record)
        chunked = record.headers.get("transfer-encoding") == "chunked"
        body = b"".join([piece async for piece in lines(reader, chunked)])
        return record.status, body.decode()
    finally:
        writer.close()
