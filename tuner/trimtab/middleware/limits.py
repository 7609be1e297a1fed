"""Which limits a request gets: the policy's token fields for it, and the fields of its body that change. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .policy_file import Arm, Match, Policy, Rule, Tokens
from .wire import Request

_FIELDS = tuple(field.name for field in dataclasses.fields(Tokens))
NONE = Tokens()
Header = Callable[[str], "str | None"]


_NO_EDITS: Mapping[str, Any] = {}


class Limits(NamedTuple):
    """`max_tokens`: of each sequence, None: the engine decides. `edits`: top-level body fields to set."""

    max_tokens: int | None
    edits: Mapping[str, Any] = _NO_EDITS
    #: (reason, what the response header says), reason one of default, cap, predicted, thinking
    changes: tuple[tuple[str, str], ...] = ()


def merged(layers: list[Tokens]) -> Tokens:
    """Each field from the first layer that sets it."""
    values: dict[str, Any] = {}
    for name in _FIELDS:
        for layer in layers:
            value = getattr(layer, name)
            if value is not None:
                values[name] = value
                break
    return Tokens(**values) if values else NONE


class Chooser:
    """The token fields for a request, by arm; what needs no rule is merged once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        arms = policy.experiment.arms if policy.experiment else ()
        self._plain = {arm.name: merged([arm.tokens, policy.tokens]) for arm in arms}
        self._default = merged([policy.tokens])

    def tokens(self, arm: Arm | None, request: Request, header: Header) -> Tokens:
        first = [r.tokens for r in arm.rules if matches(r.match, request, header)] if arm is not None else []
        rules: tuple[Rule, ...] = self._policy.rules
        then = [r.tokens for r in rules if matches(r.match, request, header)]
        if not first and not then:
            return self._default if arm is None else self._plain[arm.name]
        return merged([*first, *([arm.tokens] if arm is not None else []), *then, self._policy.tokens])


def matches(match: Match, request: Request, header: Header) -> bool:
    if match.route is not None and match.route != request.route:
        return False
    if match.model is not None and not _like(match.model, request.model):
        return False
    if match.header is None:
        return True
    value = header(match.header)
    return value is not None and (match.header_value is None or _like(match.header_value, value))


def _like(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


def decide(tokens: Tokens, request: Request, predicted_tokens: float | None = None) -> Limits:
    """The limits of a request. `predicted_tokens`: the predicted quantile of one sequence's output, where asked for.

    A client's own limit is lowered only with lower_client, and never below min_tokens or its thinking budget: vLLM
    would answer 400. max_tokens 0 (echo without generating) stays.
    """
    asked = request.effective_max_tokens
    if tokens is NONE or (request.max_tokens is None and request.body.get(request.limit_field) is not None):
        return Limits(asked)
    edits: dict[str, Any] = {}
    changes: list[tuple[str, str]] = []
    limit = asked
    reason = ""
    if request.max_tokens is None and tokens.default_max_tokens is not None:
        limit, reason = tokens.default_max_tokens, "default"
    if request.max_tokens is None or tokens.lower_client:
        for cap, why in _caps(tokens, predicted_tokens):
            if limit is None or limit > cap:
                limit, reason = cap, why
    if reason and limit is not None and asked != 0:
        limit = max(limit, request.min_tokens, _thinking_floor(request))
        if request.max_tokens is None or limit < request.max_tokens:
            edits[request.limit_field] = limit
            changes.append((reason, f"{'none' if request.max_tokens is None else request.max_tokens}->{limit}"))
        else:
            limit = request.max_tokens
    _think(tokens, request, limit, edits, changes)
    return Limits(limit, edits, tuple(changes))


def _caps(tokens: Tokens, predicted_tokens: float | None) -> list[tuple[int, str]]:
    caps = [(tokens.cap_max_tokens, "cap")] if tokens.cap_max_tokens is not None else []
    if tokens.predicted_level is not None and predicted_tokens is not None:
        caps.append((max(1, math.ceil(predicted_tokens * (tokens.predicted_margin or 1.0))), "predicted"))
    return caps


def _thinking_floor(request: Request) -> int:
    """Anthropic's budget_tokens must be less than max_tokens."""
    return request.thinking_tokens + 1 if request.route == "messages" and request.thinking_tokens is not None else 1


def _think(
    tokens: Tokens, request: Request, limit: int | None, edits: dict[str, Any], changes: list[tuple[str, str]]
) -> None:
    """Thinking budgets: `thinking_token_budget` of chat and completions, `thinking.budget_tokens` of messages."""
    asked = request.thinking_tokens
    wanted = asked
    if request.route == "responses":
        return
    if asked is None:
        wanted = tokens.default_thinking_tokens if request.route != "messages" else None
    cap = tokens.cap_thinking_tokens
    if wanted is not None and cap is not None and (asked is None or tokens.lower_client):
        wanted = min(wanted, cap)
    if wanted is None or wanted == asked:
        return
    if request.route == "messages":
        edits["thinking"] = {**request.body["thinking"], "budget_tokens": wanted}
    else:
        edits["thinking_token_budget"] = wanted
    changes.append(("thinking", f"{'none' if asked is None else asked}->{wanted}"))


def rewritten(raw: bytes, body: Mapping[str, Any], edits: Mapping[str, Any]) -> bytes:
    """The body with `edits` set. New fields are put in front of the old text; a changed field writes it anew."""
    if body and not any(name in body for name in edits):
        start = raw.index(b"{") + 1
        added = json.dumps(edits, separators=(",", ":"))[1:-1].encode()
        return raw[:start] + added + b"," + raw[start:]
    return json.dumps({**body, **edits}, separators=(",", ":")).encode()
