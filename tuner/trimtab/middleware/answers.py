"""What the middleware answers itself: refusals in the API's own error shape, /trimtab/status, /trimtab/drain."""

from __future__ import annotations

import json
from typing import Any

from .body import Send


async def answer(
    send: Send, status: int, content: Any, headers: tuple[tuple[bytes, bytes], ...] = (), *, close: bool = False
) -> None:
    """One JSON answer."""
    body = json.dumps(content, separators=(",", ":")).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if close:
        fixed.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_content(route: str, status: int, kind: str, message: str) -> dict[str, Any]:
    """An error as the route's clients expect it."""
    if route == "messages":
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


async def refuse(send: Send, route: str, status: int, message: str, retry_seconds: float, *, close: bool) -> None:
    """429 or 503 with Retry-After in whole seconds, rounded up."""
    kind = "rate_limit_error" if status == 429 else "overloaded_error"
    retry = str(max(1, -int(-retry_seconds // 1))).encode()
    await answer(send, status, error_content(route, status, kind, message), ((b"retry-after", retry),), close=close)
