"""What a request asks for, read from its JSON body: limits, sequences, prompt size, streaming. Pure.

Field names and defaults are those of vLLM's entrypoints/openai/*/protocol.py and entrypoints/anthropic/protocol.py.
Odd values are unknown: a request that vLLM would refuse is not judged here, it passes as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: path -> route label
PATHS: Mapping[str, str] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
#: route -> fields that hold the limit; the first that is set wins, as in vLLM
LIMIT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "completions": ("max_tokens",),
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
}
#: CompletionRequest.max_tokens: int | None = 16
COMPLETIONS_DEFAULT = 16
#: characters of an average token where nothing better is known; calibrated from usage.prompt_tokens as requests finish
CHARS_PER_TOKEN = 4.0


class Request(NamedTuple):
    """One request. `max_tokens` is what the client asked for each sequence, None where it named nothing.

    A NamedTuple: one is made for each request, and a frozen dataclass of so many fields takes three times as long.
    """

    route: str
    body: Mapping[str, Any]
    model: str
    stream: bool
    prompts: int
    choices_per_prompt: int
    #: None: the engine decides (what is left of max_model_len); see `effective_max_tokens`
    max_tokens: int | None
    #: the field a new limit is written to
    limit_field: str
    min_tokens: int
    thinking_tokens: int | None
    #: sum over the prompts; None where only characters are known
    prompt_tokens: int | None
    prompt_chars: int
    messages: int

    @property
    def sequences(self) -> int:
        return self.prompts * self.choices_per_prompt

    @property
    def effective_max_tokens(self) -> int | None:
        """The limit of each sequence that vLLM will apply; None: only max_model_len limits it."""
        if self.max_tokens is None and self.route == "completions" and "max_tokens" not in self.body:
            return COMPLETIONS_DEFAULT
        return self.max_tokens

    def prompt_estimate(self, chars_per_token: float = CHARS_PER_TOKEN) -> int:
        if self.prompt_tokens is not None:
            return self.prompt_tokens
        return max(1, int(self.prompt_chars / max(0.25, chars_per_token)))


def understand(route: str, body: Any) -> Request | None:
    """None for a body that is no object."""
    if not isinstance(body, dict):
        return None
    fields = LIMIT_FIELDS[route]
    set_fields = [name for name in fields if body.get(name) is not None]
    limit_field = set_fields[0] if set_fields else fields[-1]
    prompts, tokens, chars = _prompt(body) if route == "completions" else (1, None, 0)
    messages = 1
    if route != "completions":
        chars, messages = _chars(body, route)
    model = body.get("model")
    return Request(
        route=route,
        body=body,
        model=model if isinstance(model, str) else "",
        stream=body.get("stream") is True,
        prompts=prompts,
        choices_per_prompt=max(_whole(body.get("n")) or 1, _whole(body.get("best_of")) or 1)
        if route in ("completions", "chat")
        else 1,
        max_tokens=_whole(body.get(limit_field)),
        limit_field=limit_field,
        min_tokens=_whole(body.get("min_tokens")) or 0,
        thinking_tokens=_thinking(body, route),
        prompt_tokens=tokens,
        prompt_chars=chars,
        messages=messages,
    )


def _whole(value: Any) -> int | None:
    """A whole number >= 0 and of sane size, or None."""
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _thinking(body: Mapping[str, Any], route: str) -> int | None:
    if route == "messages":
        thinking = body.get("thinking")
        return _whole(thinking.get("budget_tokens")) if isinstance(thinking, dict) else None
    return _whole(body.get("thinking_token_budget"))


def _prompt(body: Mapping[str, Any]) -> tuple[int, int | None, int]:
    """(prompts, tokens where they are given as ids, characters) of a completions request."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return 1, None, len(prompt)
    if not isinstance(prompt, list) or not prompt:
        return 1, None, 0
    if isinstance(prompt[0], int):
        return 1, len(prompt), 0
    if isinstance(prompt[0], list):
        return len(prompt), sum(len(p) for p in prompt if isinstance(p, list)), 0
    return len(prompt), None, sum(len(p) for p in prompt if isinstance(p, str))


def _chars(body: Mapping[str, Any], route: str) -> tuple[int, int]:
    texts = texts_of(body, route)
    return sum(map(len, texts)), max(1, len(texts))


def texts_of(body: Mapping[str, Any], route: str) -> list[str]:
    """The request's texts in order, one per message (its parts joined); the instruction first."""
    if route == "completions":
        prompt = body.get("prompt")
        return [prompt] if isinstance(prompt, str) else []
    found = [_text(body[name]) for name in ("system", "instructions") if body.get(name)]
    messages = body.get("input") if route == "responses" else body.get("messages")
    if isinstance(messages, str):
        found.append(messages)
    elif isinstance(messages, list):
        found += [_text(m.get("content")) for m in messages if isinstance(m, dict)]
    return found


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""
