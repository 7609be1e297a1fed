"""Reads the bodies of /v1/completions and /v1/chat/completions, with vLLM's token limits and error messages.

A token is a whitespace-separated word (or an id of a token-id prompt). Output length: the body field
`vllm_xargs.emulated_output_tokens`, else a lognormal draw keyed by the prompt and the seed.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

COMPLETION_DEFAULT_TOKENS = 16


class ApiError(Exception):
    """An HTTP error in vLLM's JSON shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status},
        }


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What a body is checked against. `max_new_tokens` is the override-generation-config cap."""

    models: tuple[str, ...]
    max_model_len: int
    max_new_tokens: int | None = None
    seed: int = 0
    output_median_tokens: float = 120.0
    output_sigma: float = 0.8


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request. `max_tokens` is the effective cap, `output_tokens` where the model would stop by itself."""

    model: str
    chat: bool
    prompt: tuple[Hashable, ...]
    max_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool
    text_seed: int
    priority: int = 0


def parse_generation(body: Any, context: ApiContext, *, chat: bool) -> Generation:
    """Check a request body. ApiError 404 for an unknown model, 400 for anything else that vLLM would refuse."""
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    model = body.get("model") or context.models[0]
    if model not in context.models:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    if _integer(body, "n", 1) != 1:
        raise ApiError(400, "Only n=1 is emulated.", param="n")
    tokens = _chat_tokens(body) if chat else _completion_tokens(body)
    room = context.max_model_len - len(tokens)
    if room < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {context.max_model_len} tokens. However, your request has "
            f"{len(tokens)} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    cap = _effective_cap(body, context, room, chat=chat)
    seed = zlib.crc32(repr(tokens).encode()) ^ (context.seed << 32)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object.", param="stream_options")
    if options and not body.get("stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    return Generation(
        model=model,
        chat=chat,
        prompt=tuple(tokens),
        max_tokens=cap,
        output_tokens=_output_tokens(body, context, cap, seed),
        stream=bool(body.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
        text_seed=seed,
        priority=_integer(body, "priority", 0) or 0,
    )


def _effective_cap(body: dict[str, Any], context: ApiContext, room: int, *, chat: bool) -> int:
    requested = _integer(body, "max_tokens", None if chat else COMPLETION_DEFAULT_TOKENS)
    if chat and body.get("max_completion_tokens") is not None:
        requested = _integer(body, "max_completion_tokens", None)
    if requested is not None and requested < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {requested}.", param="max_tokens")
    return min(limit for limit in (room, requested, context.max_new_tokens) if limit is not None)


def _output_tokens(body: dict[str, Any], context: ApiContext, cap: int, seed: int) -> int:
    """Where the model stops by itself; beyond `cap` when it would not (ignore_eos)."""
    min_tokens = _integer(body, "min_tokens", 0) or 0
    if min_tokens < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {min_tokens}.", param="min_tokens")
    if min_tokens > cap:
        message = f"min_tokens must be less than or equal to max_tokens={cap}, got {min_tokens}."
        raise ApiError(400, message, param="min_tokens")
    if body.get("ignore_eos"):
        return cap + 1
    natural = _planned_tokens(body)
    if natural is None:
        draw = random.Random(seed).lognormvariate(math.log(context.output_median_tokens), context.output_sigma)
        natural = max(1, round(draw))
    # the end token is masked until min_tokens are out, so the earliest natural end is one token later
    return max(natural, min_tokens + 1) if min_tokens else natural


def _planned_tokens(body: dict[str, Any]) -> int | None:
    extra = body.get("vllm_xargs") or {}
    if not isinstance(extra, dict):
        raise ApiError(400, "vllm_xargs must be an object.", param="vllm_xargs")
    planned = _integer(extra, "emulated_output_tokens", None)
    if planned is not None and planned < 1:
        raise ApiError(400, "emulated_output_tokens must be at least 1.", param="vllm_xargs")
    return planned


def _integer(body: dict[str, Any], name: str, default: int | None) -> int | None:
    """An absent field has the default; an explicit null means no value, as in vLLM."""
    value = body.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"Input should be a valid integer: {name}={value!r}", param=name)
    return value


def _completion_tokens(body: dict[str, Any]) -> list[Hashable]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return list(prompt.split()) or [""]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return list(prompt)
    raise ApiError(400, "Give one prompt: a string or a list of token ids.", param="prompt")


def _chat_tokens(body: dict[str, Any]) -> list[Hashable]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a non-empty list.", param="messages")
    tokens: list[Hashable] = []
    for message in messages:
        if not isinstance(message, dict):
            raise ApiError(400, "Each message must be an object.", param="messages")
        tokens.append(f"<|{message.get('role', 'user')}|>")
        tokens += _content_text(message.get("content")).split()
    tokens.append("<|assistant|>")
    return tokens


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        return " ".join(part for part in parts if isinstance(part, str))
    raise ApiError(400, "content must be a string or a list of parts.", param="messages")
