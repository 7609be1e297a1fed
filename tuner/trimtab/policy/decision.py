"""What a token policy decides, why and at what price; and how that reads in the middleware's policy file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.errors import InputError
from trimtab.middleware.policy_file import Tokens, parse
from trimtab.middleware.table import FieldError
from trimtab.policy.lengths import ShareInterval

Kind = Literal["static", "percentile", "reasoning", "predicted"]
#: default: for requests that name no limit. cap: also cuts the default down for routes and models that have a higher
#: one; a client's own limit stays. enforce: lowers a client's own limit too (the middleware tells it in a header).
Role = Literal["default", "cap", "enforce"]


@dataclass(frozen=True)
class Hint:
    """A setting outside the token policy that belongs to the decision. value None: the number is not known."""

    setting: str
    value: int | None
    text: str


@dataclass(frozen=True)
class TokenPolicy:
    """One decision. None: nothing is said about that limit (leave it as it is).

    truncated: share of requests whose output the limit cuts. thinking_cut: whose thinking the budget ends early.
    samples: finished requests it rests on. reason and cost: for people.
    """

    kind: Kind
    reason: str
    max_new_tokens: int | None = None
    thinking_tokens: int | None = None
    predicted_level: float | None = None
    predicted_margin: float | None = None
    truncated: ShareInterval | None = None
    thinking_cut: ShareInterval | None = None
    samples: float = 0.0
    cost: str = ""
    hints: tuple[Hint, ...] = ()

    @property
    def decides(self) -> bool:
        """False: too little is known, nothing should change."""
        return self.max_new_tokens is not None or self.predicted_level is not None or self.thinking_tokens is not None


def tokens_of(policy: TokenPolicy, role: Role) -> Tokens:
    """The `tokens` block of the middleware's policy file."""
    limit, thinking = policy.max_new_tokens, policy.thinking_tokens
    capped = role != "default"
    return Tokens(
        default_max_tokens=limit,
        cap_max_tokens=limit if capped else None,
        lower_client=True if role == "enforce" else None,
        default_thinking_tokens=thinking,
        cap_thinking_tokens=thinking if capped else None,
        predicted_level=policy.predicted_level,
        predicted_margin=policy.predicted_margin,
    )


def policy_file(policy: TokenPolicy, role: Role, generation: int, *, predictor_path: str | None = None) -> bytes:
    """A whole policy file, as the middleware takes it. InputError names the field it would refuse."""
    block = {k: v for k, v in dataclasses.asdict(tokens_of(policy, role)).items() if v is not None}
    body: dict[str, Any] = {"version": 1, "generation": generation, "tokens": block}
    if predictor_path is not None:
        body["predictor"] = {"path": predictor_path}
    data = json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"
    try:
        parse(data)
    except FieldError as error:
        raise InputError(error.field, error.problem, error.fix) from error
    return data
