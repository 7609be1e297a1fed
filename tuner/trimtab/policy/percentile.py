"""One limit from the spread of output lengths (CV = standard deviation / mean). Pure.

Bands of the field: CV <= 0.3 (labels, summaries): 1.5 to 2 x mean. CV > 1 (chat, code): 1.5 to 2 x p90 with fewer
sequences at once, since no one number serves both ends. Between: a line from one to the other, so that a CV that
wanders does not make the limit jump. Factors grow with the CV inside their band. Lengths cut by the present limit are
known to be cut: when they hide the p90 the limit is raised to look, not confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trimtab.policy.decision import Hint, TokenPolicy
from trimtab.policy.lengths import Estimate

NARROW_CV: Final = 0.3
WIDE_CV: Final = 1.0
#: CV at which the wide band's factor reaches its end; the widest public trace (Azure 2023, code) has 2.1
WIDEST_CV: Final = 2.0
LEAST_FACTOR, MOST_FACTOR = 1.5, 2.0
#: a limit that hides the tail is raised by this to see more of it
LOOK_FACTOR: Final = 2.0


@dataclass(frozen=True)
class Rules:
    """min_samples: with 200 requests the rank of the p90 is known to +-4 points (95%). max_truncated_share: the limit
    is raised until the estimate cuts no more than this; None: as the bands say. floor and ceiling: tokens.
    """

    min_samples: float = 200.0
    max_truncated_share: float | None = 0.05
    floor_tokens: int = 16
    ceiling_tokens: int | None = None


@dataclass(frozen=True)
class KvRoom:
    """KV cache of one engine in tokens, and the prompts that share it with the outputs."""

    capacity_tokens: float
    prompt_mean_tokens: float


def percentile(
    seen: Estimate, current_tokens: int | None = None, rules: Rules | None = None, room: KvRoom | None = None
) -> TokenPolicy:
    """A limit for the lengths seen; no decision (`decides` False) with too few. current_tokens: the limit in force."""
    rules = rules or Rules()
    if seen.samples < rules.min_samples:
        text = f"{seen.samples:.0f} finished requests are too few, {rules.min_samples:.0f} are needed."
        return TokenPolicy("percentile", text, samples=seen.samples)
    mean, cv, p90 = seen.mean_tokens, seen.cv, seen.quantile(0.9)
    if not mean or cv is None or p90 is None:
        return _look(seen, current_tokens, rules, "the p90")
    limit, how = banded(mean, p90, cv)
    needed = seen.quantile(1.0 - rules.max_truncated_share) if rules.max_truncated_share is not None else limit
    if needed is None:
        return _look(seen, current_tokens, rules, f"the longest {rules.max_truncated_share:.0%}")
    if needed > limit:
        how += f"; raised so that at most {rules.max_truncated_share:.0%} are cut"
    tokens = _within(math.ceil(max(limit, needed)), rules)
    cut = seen.longer_than(tokens)
    at_least = "at least " if seen.hidden_share > 0 else ""
    reason = f"Output lengths have mean {mean:.0f}, p90 {p90:.0f} and CV {at_least}{cv:.2f}: {how}."
    return TokenPolicy(
        "percentile", reason, tokens, truncated=cut, samples=seen.samples,
        cost=f"Cuts {cut} of the requests.", hints=_hints(cv, mean, room),
    )  # fmt: skip


def banded(mean_tokens: float, p90_tokens: float, cv: float) -> tuple[float, str]:
    """(limit in tokens, how in words); continuous in each argument."""
    narrow = _factor(cv / NARROW_CV) * mean_tokens
    wide = _factor((cv - WIDE_CV) / (WIDEST_CV - WIDE_CV)) * p90_tokens
    if cv <= NARROW_CV:
        return narrow, f"{_factor(cv / NARROW_CV):.2f} x mean"
    if cv > WIDE_CV:
        return wide, f"{_factor((cv - WIDE_CV) / (WIDEST_CV - WIDE_CV)):.2f} x p90"
    share = (cv - NARROW_CV) / (WIDE_CV - NARROW_CV)
    how = f"{share:.0%} of the way from {MOST_FACTOR:g} x mean to {LEAST_FACTOR:g} x p90"
    return narrow + share * (wide - narrow), how


def _factor(share: float) -> float:
    return LEAST_FACTOR + (MOST_FACTOR - LEAST_FACTOR) * min(1.0, max(0.0, share))


def _within(tokens: int, rules: Rules) -> int:
    tokens = max(rules.floor_tokens, tokens)
    return min(tokens, rules.ceiling_tokens) if rules.ceiling_tokens is not None else tokens


def _look(seen: Estimate, current_tokens: int | None, rules: Rules, what: str) -> TokenPolicy:
    """The limit in force hides what decides: raise it and see."""
    present = max(seen.known_to_tokens, float(current_tokens or 0))
    tokens = _within(math.ceil(LOOK_FACTOR * present), rules)
    cut = seen.longer_than(tokens)
    reason = (
        f"{seen.capped_share:.0%} of the requests end at their limit, which hides {what}: nothing is known beyond "
        f"{seen.known_to_tokens:.0f} tokens."
    )
    if current_tokens is not None and tokens <= current_tokens:
        return TokenPolicy(
            "percentile", f"{reason} The limit is at its ceiling.", current_tokens, truncated=cut, samples=seen.samples,
            cost=f"Cuts {cut} of the requests.",
        )  # fmt: skip
    return TokenPolicy(
        "percentile", f"{reason} Raised to look.", tokens, truncated=cut, samples=seen.samples,
        cost=f"Cuts {cut} of the requests; more KV is held until the lengths are known.",
    )  # fmt: skip


def _hints(cv: float, mean_tokens: float, room: KvRoom | None) -> tuple[Hint, ...]:
    """With a wide spread the limit bounds little: fewer sequences turn preemption into a queue that can be foreseen.

    By the means: with the p90s of prompt and output everybody is taken to be long at once, which cost 40% of the
    throughput where the means gained 9% (docs/claims.md, CV > 1).
    """
    if cv <= WIDE_CV:
        return ()
    text = "Output lengths spread too wide for one limit: lower max_num_seqs"
    if room is None:
        return (Hint("max_num_seqs", None, f"{text}, or admit by predicted length."),)
    value = max(1, int(room.capacity_tokens / (room.prompt_mean_tokens + mean_tokens)))
    return (Hint("max_num_seqs", value, f"{text} to about {value} (KV tokens / mean of prompt + output)."),)
