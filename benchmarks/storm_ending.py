"""A stand-in for the model's own end of text, for `storm.py`: an ASGI class that vLLM loads inside the others.

The tiny model's weights are random: it never ends by itself where a benchmark would want it to. So the request says in
`x-true-tokens` how long the answer will be, and this makes it so behind whatever looked at the request before: the
engine gets ignore_eos and min_tokens = max_tokens = that length, and the client (and the middleware outside) sees
"stop" instead of "length". Nothing outside may use the header, save where a benchmark is about true lengths.
Imported by vLLM's Python, standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Ending:
    """Streams of POST /v1/completions with the header; everything else passes untouched."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ())) if scope["type"] == "http" else {}
        given = headers.get(b"x-true-tokens")
        if given is None:
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client left
            body += message.get("body", b"")
            more = message.get("more_body", False)
        asked = json.loads(body)
        true = min(int(given), asked["max_tokens"])
        cut = true == asked["max_tokens"]
        asked.update(max_tokens=true, min_tokens=true, ignore_eos=True)
        changed = json.dumps(asked).encode()
        scope = {**scope, "headers": [*((k, v) for k, v in scope["headers"] if k != b"content-length"),
                                      (b"content-length", str(len(changed)).encode())]}  # fmt: skip
        sent = False

        async def receive_changed() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # the disconnect
            sent = True
            return {"type": "http.request", "body": changed, "more_body": False}

        async def send_changed(message: Message) -> None:
            if not cut and b'"length"' in message.get("body", b""):
                message = {**message, "body": message["body"].replace(b'"length"', b'"stop"')}
            await send(message)

        await self.app(scope, receive_changed, send_changed)
