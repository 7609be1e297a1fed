"""One limit per request from predicted quantiles of its output length, and what its KV will hold. Pure.

The middleware does this for each request with the same functions; here it is decided which quantile, and at what price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.errors import InputError
from trimtab.middleware.quantile_model import at_level
from trimtab.policy.decision import TokenPolicy
from trimtab.policy.lengths import ShareInterval


@dataclass(frozen=True)
class Risk:
    """truncation: share of requests that may be cut. kv: share that may outgrow what was counted for them at admission.

    margin: the limit is the quantile times this, for lengths that drift. Tokens between floor and ceiling.
    """

    truncation: float = 0.01
    kv: float = 0.25
    margin: float = 1.25
    floor_tokens: int = 16
    ceiling_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("truncation", "kv"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"risk.{name}", f"{getattr(self, name)} is no risk", "Give a share between 0 and 1.")
        if self.margin < 1:
            raise InputError("risk.margin", f"{self.margin} is below 1", "Give at least 1.")


@dataclass(frozen=True)
class RequestLimit:
    """max_new_tokens for one request, and KV tokens to count for it at admission (prompt included)."""

    max_new_tokens: int
    kv_tokens: int


def limit_of(
    levels: Sequence[float], tokens: Sequence[float], risk: Risk, prompt_tokens: int, asked_tokens: int | None = None
) -> RequestLimit:
    """From a prediction (`tokens` at `levels`). asked_tokens: what the client asked; it is never raised."""
    limit = max(risk.floor_tokens, math.ceil(risk.margin * at_level(levels, tokens, 1.0 - risk.truncation)))
    for bound in (risk.ceiling_tokens, asked_tokens):
        limit = min(limit, bound) if bound is not None else limit
    expected = math.ceil(at_level(levels, tokens, 1.0 - risk.kv))
    return RequestLimit(limit, prompt_tokens + min(expected, limit))


def predicted(risk: Risk, levels: Sequence[float], coverage: Sequence[float], tested: int) -> TokenPolicy:
    """The policy for the file. coverage: measured on `tested` later requests, one per level (`trimtab predict`).

    The cost is what the test says at the level in use, before the margin: an upper bound in that world.
    """
    level = 1.0 - risk.truncation
    if level > max(levels) + 1e-9:
        fix = f"Give a risk of at least {1 - max(levels):g}, or train for higher levels."
        raise InputError("risk.truncation", f"{risk.truncation:g} asks for a level that was not learned", fix)
    below = [
        n for n, learned in enumerate(levels) if learned <= level + 1e-9
    ]  # between two levels the lower one is sure
    missed = 1.0 - coverage[max(below, default=0)]
    spread = 1.96 * math.sqrt(max(missed * (1 - missed), 1.0 / max(1, tested)) / max(1, tested))
    cut = ShareInterval(missed, max(0.0, missed - spread), min(1.0, missed + spread))
    reason = f"Each request gets {risk.margin:g} x its predicted p{100 * level:g}."
    return TokenPolicy(
        "predicted", reason, risk.ceiling_tokens, predicted_level=round(level, 6), predicted_margin=risk.margin,
        truncated=cut, samples=float(tested), cost=f"Without the margin it cut {cut} of {tested} later requests.",
    )  # fmt: skip
