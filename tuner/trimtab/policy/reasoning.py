"""Budgets for models that think: one for the thinking, one for the answer. Pure.

Under one common limit the two starve each other (coupling tax): long thinking leaves no answer. So the thinking is
bounded by vLLM's `thinking_token_budget`, and the whole by budget + answer limit. A model with a native budget was
trained for that; on others the same field is an external cut, whose price is stated. An engine without the field has
the common limit alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.policy.decision import Hint, TokenPolicy
from trimtab.policy.lengths import Estimate, ShareInterval
from trimtab.policy.models import ModelFacts
from trimtab.policy.percentile import Rules, percentile

#: end-of-thinking mark and the line around it
END_MARK_TOKENS = 8


@dataclass(frozen=True)
class Thinking:
    """Lengths of the two parts; `engine_budget`: the engine takes thinking_token_budget (it needs a reasoning parser).

    wanted_tokens: a budget that somebody asks for; None: one that cuts few.
    """

    thinking: Estimate
    answer: Estimate
    engine_budget: bool
    wanted_tokens: int | None = None


def reasoning(seen: Thinking, facts: ModelFacts | None, rules: Rules | None = None) -> TokenPolicy:
    """Separate budgets where the engine can; no decision with too few requests."""
    rules = rules or Rules()
    parts = replace(rules, ceiling_tokens=None)
    thinking, answer = percentile(seen.thinking, rules=parts), percentile(seen.answer, rules=parts)
    if thinking.max_new_tokens is None or answer.max_new_tokens is None:
        lacking = thinking if thinking.max_new_tokens is None else answer
        return TokenPolicy("reasoning", lacking.reason, samples=lacking.samples)
    budget, why = _budget(seen, facts, thinking.max_new_tokens)
    total = budget + END_MARK_TOKENS + answer.max_new_tokens
    if rules.ceiling_tokens is not None and total > rules.ceiling_tokens:
        budget = max(0, rules.ceiling_tokens - END_MARK_TOKENS - answer.max_new_tokens)
        total, why = rules.ceiling_tokens, f"{why}, less what the answer needs below the ceiling"
    cut = seen.thinking.longer_than(budget)
    answers_cut = seen.answer.longer_than(total - budget - END_MARK_TOKENS)
    if not seen.engine_budget:
        return _common(seen, facts, total, cut, answers_cut)
    reason = f"Thinking gets {budget} tokens ({why}), the answer {total - budget - END_MARK_TOKENS}: {answer.reason}"
    return TokenPolicy(
        "reasoning", reason, total, thinking_tokens=budget, truncated=answers_cut, thinking_cut=cut,
        samples=min(seen.thinking.samples, seen.answer.samples), cost=_cost(facts, budget, cut, answers_cut),
        hints=_hints(facts),
    )  # fmt: skip


def _budget(seen: Thinking, facts: ModelFacts | None, usual: int) -> tuple[int, str]:
    curve = facts.curve if facts else None
    budget, why = (
        (usual, "as the lengths of thinking say") if seen.wanted_tokens is None else (seen.wanted_tokens, "asked")
    )
    if curve is not None and budget > curve.saturation_tokens:
        return curve.saturation_tokens, "where more thinking stops to gain"
    return budget, why


def _cost(facts: ModelFacts | None, budget: int, cut: ShareInterval, answers_cut: ShareInterval) -> str:
    text = f"Ends the thinking of {cut} of the requests early and cuts {answers_cut} of the answers."
    if facts is None:
        return f"{text} The model's family is not listed: what an early end costs in accuracy is not known."
    if facts.native_budget:
        return f"{text} {facts.family} has a native budget and loses little by it."
    if facts.curve is None:
        return f"{text} {facts.family} has no native budget: an external cut, whose cost was not measured."
    curve = facts.curve
    return (
        f"{text} {facts.family} has no native budget: an external cut. Requests that are cut keep about "
        f"{curve.kept(budget):.0%} of what thinking gains (linear up to {curve.saturation_tokens} tokens; the first "
        f"500 are worth {curve.gain_per_500:.1%} accuracy)."
    )


def _common(
    seen: Thinking, facts: ModelFacts | None, total: int, cut: ShareInterval, answers_cut: ShareInterval
) -> TokenPolicy:
    """No budget field: what does not fit loses its answer first, for the thinking comes before it."""
    # either part beyond its share is needed for the sum to go beyond the total (union bound)
    high = min(1.0, cut.high + answers_cut.high)
    starved = ShareInterval(min(1.0, cut.estimate + answers_cut.estimate), 0.0, high, cut.known and answers_cut.known)
    name = facts.family if facts else "This model"
    cost = f"Up to {high:.1%} of the requests get no whole answer: thinking and answer share the limit (coupling tax)."
    reason = f"The engine takes no thinking budget, so {name} gets one limit for thinking and answer."
    samples = min(seen.thinking.samples, seen.answer.samples)
    return TokenPolicy("reasoning", reason, total, truncated=starved, samples=samples, cost=cost, hints=_hints(facts))


def _hints(facts: ModelFacts | None) -> tuple[Hint, ...]:
    if facts is None:
        return ()
    parser = Hint("reasoning_parser", None, f"thinking budgets need --reasoning-parser {facts.reasoning_parser}.")
    if facts.switch is None:
        return (parser,)
    return parser, Hint("chat_template_kwargs", None, f"No thinking at all: {facts.switch}.")
