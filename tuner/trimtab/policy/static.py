"""The static policy: a number that somebody gave, and what it costs on the lengths seen."""

from __future__ import annotations

from trimtab.errors import InputError
from trimtab.policy.decision import TokenPolicy
from trimtab.policy.lengths import Estimate


def static(max_new_tokens: int, seen: Estimate | None = None) -> TokenPolicy:
    """InputError for a limit below 1."""
    if max_new_tokens < 1:
        raise InputError("max_new_tokens", f"{max_new_tokens} is below 1", "Give a limit of at least 1 token.")
    if seen is None or seen.samples <= 0:
        return TokenPolicy("static", "Given.", max_new_tokens, cost="Not known: no output lengths were seen.")
    cut = seen.longer_than(max_new_tokens)
    return TokenPolicy(
        "static", "Given.", max_new_tokens, truncated=cut, samples=seen.samples, cost=f"Cuts {cut} of the requests."
    )
