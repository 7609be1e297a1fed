"""Server-sent events of /v1/completions, read as cheaply as honesty allows.

Lines end at `\\n` only: splitting at U+2028 or U+0085, as text splitters do, tears events that a model's output can
contain. A token's event is recognised by its bytes and not parsed: the pattern for "no finish_reason yet" cannot
occur inside a JSON string, where its quotes would be escaped. Everything else (the last event, usage, errors, unknown
shapes) is parsed as JSON. Hazard: an engine may put several tokens into one event (speculation, --stream-interval):
events are then fewer than tokens until the usage at the end tells.
"""

from __future__ import annotations

import json

_DATA = b"data: "
_PLAIN = b'"finish_reason":null'
_DONE = b"[DONE]"


class StreamReader:
    """Feed it bytes; it counts `tokens` and remembers `finish_reason`, `done`, `error` and `usage_tokens`."""

    __slots__ = ("_rest", "done", "error", "finish_reason", "tokens", "usage_tokens")

    def __init__(self) -> None:
        self._rest = b""
        self.tokens = 0
        self.finish_reason: str | None = None
        self.done = False
        self.error: str | None = None
        self.usage_tokens: int | None = None

    def feed(self, data: bytes) -> int:
        """Take bytes as they came, in pieces of any size; returns the number of new token events."""
        *lines, self._rest = (self._rest + data if self._rest else data).split(b"\n")
        before = self.tokens
        for line in lines:
            if line.startswith(b"data: {") and _PLAIN in line and b'"choices":[{' in line:
                self.tokens += 1
            elif line:
                self._other(line)
        return self.tokens - before

    def _other(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        if not line.startswith(b"data:"):
            return  # comments (keep-alive), event names
        payload = line[5:].strip()
        if payload == _DONE:
            self.done = True
            return
        try:
            event = json.loads(payload)
        except ValueError:
            self.error = f"not JSON: {payload[:120]!r}"
            return
        if not isinstance(event, dict) or "error" in event:
            self.error = str(event.get("error") if isinstance(event, dict) else event)[:200]
            return
        self._parsed(event)

    def _parsed(self, event: dict[str, object]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.usage_tokens = usage["completion_tokens"]
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = str(reason)
        # an abort's last event carries no token; a normal last event does, even when its text is empty
        if reason != "abort" or choice.get("text"):
            self.tokens += 1
