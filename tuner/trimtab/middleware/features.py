"""What is known of a request before the engine sees it: the row that the length predictor learns from.

No text leaves here: words become hashes of 22 bits, first the telling ones. Few bits collide on purpose, but a hash is
no secret: who can guess a rare word can test for it. Hence the log is opt-in.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from .wire import Request, texts_of

#: 22 bits: about 4 million values, so that training may fold them to any smaller power of two
HASH_MASK = (1 << 22) - 1
#: the predictor looks at the first 128; half from the last message, half from the first
MAX_HASHES = 128
#: characters looked at in each of the two texts, to keep the cost of a request bounded
MAX_CHARS = 1024


def row_of(request: Request) -> dict[str, Any]:
    """A flat mapping, JSON-able; absent is unknown. Units in the names; see `quantile_model` for who reads it."""
    body = request.body
    row: dict[str, Any] = {
        "route": request.route,
        "prompt_chars": request.prompt_chars,
        "messages": request.messages,
        "n": request.choices_per_prompt,
        "stream": request.stream,
        "stop": _count(body, "stop", "stop_sequences") + _count(body, "stop_token_ids"),
        "tools": _count(body, "tools"),
        "structured": any(
            body.get(k) for k in ("response_format", "structured_outputs", "guided_json", "guided_regex", "text")
        ),
        "min_tokens": request.min_tokens,
        "hashes": _hashes(body, request.route),
    }
    if request.prompt_tokens is not None:
        row["prompt_tokens"] = request.prompt_tokens
    if request.max_tokens is not None:
        row["max_tokens"] = request.max_tokens
    if request.thinking_tokens is not None:
        row["thinking_tokens"] = request.thinking_tokens
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            row[name] = value
    return row


def _count(body: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = body.get(name)
        if isinstance(value, str) and value:
            return 1
        if isinstance(value, list):
            return len(value)
    return 0


def _hashes(body: Mapping[str, Any], route: str) -> list[int]:
    texts = texts_of(body, route)
    last = texts[-1] if texts else ""
    first = texts[0] if len(texts) > 1 else ""
    found = _ngrams(last, "l")
    return list(dict.fromkeys([*found[: MAX_HASHES // 2], *_ngrams(first, "f"), *found]))[:MAX_HASHES]


def _ngrams(text: str, mark: str) -> list[int]:
    """Hashes of 1- and 2-grams of words, from the start of the text (where the instruction stands), pair after word."""
    words = text[:MAX_CHARS].lower().split()
    found, before = [], ""
    for word in words:
        found.append(_hash(f"{mark}\t{word}"))
        if before:
            found.append(_hash(f"{mark}\t{before}\t{word}"))
        before = word
    return found


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) & HASH_MASK
