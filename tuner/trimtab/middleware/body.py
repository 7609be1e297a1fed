"""A request's body: read once, looked at, and given to the engine as it came or changed. No fault here loses a byte."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Unseen(Exception):
    """The body cannot be looked at; the request passes as it came. `reason` is a bounded label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Body:
    """`messages` is what was received, to be replayed; `whole` is false where reading stopped at the limit."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.whole = False
        self.gone = False

    async def read(self, receive: Receive, most_bytes: int) -> None:
        size = 0
        while True:
            message = await receive()
            self.messages.append(message)
            if message["type"] != "http.request":
                self.gone = True
                return
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                self.whole = True
                return
            if size > most_bytes:
                return

    def joined(self) -> bytes:
        if len(self.messages) == 1:
            return bytes(self.messages[0].get("body", b""))
        return b"".join(m.get("body", b"") for m in self.messages if m["type"] == "http.request")

    def replace(self, body: bytes) -> None:
        self.messages = deque([{"type": "http.request", "body": body, "more_body": False}])


def parsed(raw: bytes, encoding: str, most_bytes: int) -> tuple[bytes, Any]:
    """(plain bytes, JSON value); `Unseen` where it is too large, encoded oddly or no JSON."""
    if encoding and encoding != "identity":
        raw = _decoded(raw, encoding, most_bytes)
    if len(raw) > most_bytes:
        raise Unseen("too_large")
    try:
        return raw, json.loads(raw)
    except (ValueError, RecursionError):
        raise Unseen("not_json") from None


def _decoded(raw: bytes, encoding: str, most_bytes: int) -> bytes:
    """gzip or deflate, by zlib with its own detection; at most `most_bytes` come out, whatever went in."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Unseen("encoding")
    for window in (47, -15):  # gzip or zlib by header; raw deflate, which some clients send
        unpack = zlib.decompressobj(window)
        try:
            plain = unpack.decompress(raw, most_bytes + 1)
        except zlib.error:
            continue
        if len(plain) > most_bytes:
            raise Unseen("too_large")
        if not unpack.eof:
            break
        return plain
    raise Unseen("encoding")


def headers_for(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    """A request's headers for a plain body of `length` bytes: its length set, encodings gone."""
    gone = (b"content-length", b"content-encoding", b"transfer-encoding")
    kept = [(name, value) for name, value in headers if name.lower() not in gone]
    return [*kept, (b"content-length", str(length).encode())]
