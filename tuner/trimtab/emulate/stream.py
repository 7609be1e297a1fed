"""The bytes of answers: server-sent events by template (one token costs one concatenation), and whole JSON answers."""

from __future__ import annotations

import json
from typing import Any

from trimtab.emulate.api import Generation
from trimtab.emulate.live import EndReason

WORDS = [
    "time",
    "tide",
    "wind",
    "hull",
    "keel",
    "sail",
    "rope",
    "mast",
    "deck",
    "wake",
    "helm",
    "port",
    "star",
    "north",
    "south",
    "east",
    "west",
    "buoy",
    "reef",
    "shoal",
    "harbour",
    "anchor",
    "chart",
    "course",
    "current",
    "depth",
    "drift",
    "fathom",
    "gale",
    "horizon",
    "knot",
    "lee",
]
DONE = b"data: [DONE]\n\n"


def word(generation: Generation, position: int) -> str:
    """The token at `position`: made up, the same for the same prompt. Plain ASCII, so it needs no JSON escaping."""
    text = WORDS[(generation.text_seed + position * 7) % len(WORDS)]
    return text if position == 0 else " " + text


class EventWriter:
    """Events of one streamed answer."""

    def __init__(self, generation: Generation, request_id: str, created: int) -> None:
        self._generation = generation
        kind = "chat.completion.chunk" if generation.chat else "text_completion"
        self._head = {"id": request_id, "object": kind, "created": created, "model": generation.model}
        start = json.dumps(self._head, separators=(",", ":"))[:-1].encode()
        if generation.chat:
            self._before = b"data: " + start + b',"choices":[{"index":0,"delta":{"content":"'
            self._after = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            self._last = b'"},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]}\n\n'
            self._opening = (
                b"data: " + start + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
                b'"logprobs":null,"finish_reason":null}]}\n\n'
            )
        else:
            self._before = b"data: " + start + b',"choices":[{"index":0,"text":"'
            self._after = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}]}\n\n'
            self._last = b'","logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]}\n\n'
            self._opening = b""

    def events(self, first: int, until: int, end: EndReason | None) -> bytes:
        """Events for tokens [first, until); the last one carries `end`. An end without a token is its own event."""
        parts = [self._opening] if first == 0 else []
        generation, before, after = self._generation, self._before, self._after
        last_plain = until - 1 if end is not None else until
        parts += [before + word(generation, position).encode() + after for position in range(first, last_plain)]
        if end is not None:
            text = word(generation, until - 1).encode() if until > first else b""
            parts.append(before + text + self._last % end.encode())
        return b"".join(parts)

    @staticmethod
    def failed(error: dict[str, Any]) -> bytes:
        """What a stream ends with when the engine died under it."""
        return b"data: " + json.dumps(error).encode() + b"\n\n" + DONE

    def closing(self, prompt_tokens: int, tokens: int) -> bytes:
        """The usage event if it was asked for, and the end mark."""
        if not self._generation.include_usage:
            return DONE
        body = {**self._head, "choices": [], "usage": usage(prompt_tokens, tokens)}
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n" + DONE


def usage(prompt_tokens: int, tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": None,
    }


def whole_answer(generation: Generation, request_id: str, created: int, tokens: int, end: EndReason) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    text = "".join(word(generation, position) for position in range(tokens))
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": end, "stop_reason": None}
    if generation.chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    else:
        choice["text"] = text
    return {
        "id": request_id,
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": created,
        "model": generation.model,
        "choices": [choice],
        "usage": usage(len(generation.prompt), tokens),
    }
