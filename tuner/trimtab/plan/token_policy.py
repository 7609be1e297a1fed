"""`spec.tokenPolicy` as checked models, and the middleware's policy file made of it. Pure.

The models hold what of the policy file is a person's to say; names are the file's in camelCase, limits are the file's
(tests/chart compares the three: the file's table, these models, the CRD).
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trimtab.middleware.policy_file import MAX_TOKENS, parse
from trimtab.middleware.table import FieldError
from trimtab.plan.fields import IntegerRange, SpecModel

Json = dict[str, Any]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
ThinkingTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Text = Annotated[str, Field(min_length=1, max_length=256)]


class PolicyTokens(SpecModel):
    """Limits of one request's output. Absent fields leave the request as it is."""

    default_max_tokens: Tokens | None = None
    cap_max_tokens: Tokens | None = None
    lower_client: bool | None = None
    default_thinking_tokens: ThinkingTokens | None = None
    cap_thinking_tokens: ThinkingTokens | None = None


class PolicyMatch(SpecModel):
    """Which requests a rule is for: all named conditions hold."""

    route: Literal["completions", "chat", "responses", "messages"] | None = None
    model: Text | None = None
    header: Text | None = None
    header_value: Text | None = None


class PolicyRule(SpecModel):
    """Limits for some requests."""

    match: PolicyMatch = PolicyMatch()
    tokens: PolicyTokens = PolicyTokens()


class PolicyAdmission(SpecModel):
    """What may run in one API server process at once, and how the rest waits."""

    max_sequences: Annotated[int, Field(ge=1, le=100_000)] | None = None
    kv_budget_tokens: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    risk: Annotated[float, Field(ge=0.1, le=10)] | None = None
    deviations: Annotated[float, Field(ge=0, le=6)] | None = None
    estimate: Literal["observed", "max_tokens"] | None = None
    expected_tokens_header: Text | None = None
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    queue_seconds: Annotated[float, Field(ge=0, le=3600)] | None = None
    retry_after_seconds: Annotated[float, Field(ge=1, le=3600)] | None = None
    client_header: Text | None = None


class Policy(SpecModel):
    """What the middleware does to requests. Empty: it only counts."""

    tokens: PolicyTokens = PolicyTokens()
    rules: tuple[PolicyRule, ...] = Field(default=(), max_length=100)
    admission: PolicyAdmission = PolicyAdmission()

    def body(self) -> Json:
        """As the policy file says it, without version and generation; empty parts left out."""
        found: Json = self.model_dump(mode="json", exclude_none=True)
        return {name: part for name, part in found.items() if part}

    @model_validator(mode="after")
    def _taken(self) -> Self:
        try:
            parse(policy_text(self.body(), 0).encode())
        except FieldError as error:
            raise ValueError(str(error)) from error
        return self


class TokenPolicy(SpecModel):
    """Limits of generated tokens. Absent: left alone.

    max_new_tokens: the range in which trials look. Without the middleware they try the engine's own flag
    (`--override-generation-config`: default and silent hard cap) by restarts; with method Percentile the middleware's
    cap, without.
    """

    max_new_tokens: IntegerRange | None = None
    middleware: Literal["Off", "Install"] = "Off"
    method: Literal["Static", "Percentile"] = "Static"
    policy: Policy | None = None

    @model_validator(mode="after")
    def _delivered(self) -> Self:
        if self.middleware == "Off" and self.policy is not None:
            raise ValueError("policy needs middleware: Install, which applies it")
        if self.method == "Percentile" and (self.middleware == "Off" or self.max_new_tokens is None):
            raise ValueError("method Percentile needs middleware: Install and maxNewTokens, the range of the cap")
        return self

    def body(self) -> Json:
        """The policy that the person wrote, as the file says it."""
        return self.policy.body() if self.policy is not None else {}


def policy_text(body: Json, generation: int) -> str:
    """The file's text: the same body and generation give the same bytes."""
    return json.dumps({"version": 1, "generation": generation, **body}, indent=1, sort_keys=True) + "\n"


def body_of(text: str) -> Json | None:
    """The body in a file's text; None where it is none of ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return {k: v for k, v in found.items() if k not in ("version", "generation")} if isinstance(found, dict) else None


def generation_of(text: str) -> int:
    """The generation in a file's text, 0 where it has none."""
    try:
        found = json.loads(text)
    except ValueError:
        return 0
    number = found.get("generation") if isinstance(found, dict) else None
    return number if isinstance(number, int) else 0


def digest_of(text: str) -> str:
    """How the middleware's metric names the file in effect (`trimtab_mw_policy_info`)."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
