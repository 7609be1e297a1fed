"""MixedTraffic: two shapes of requests in one target: short ones wait behind long ones, no setting serves both."""

from __future__ import annotations

import math
from itertools import pairwise

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

#: p99 over p50 beyond which one distribution is unlikely: a lognormal of sigma 1 has 10
_LENGTHS, _TTFT = 16.0, 15.0
_LONG_TOKENS = 4000.0
#: p99 over p50 of known lengths below which no request stalls others: then a tail of TTFT has another cause
_ALIKE = 4.0
#: share of the running ones up to which a queue is but the wake of a long prefill
_FEW_WAIT = 0.3


def rule(case: Case) -> Finding | None:
    lengths = max(_ratio(case, "prompt_tokens_p50", "prompt_tokens_p99"),
                  _ratio(case, "output_tokens_p50", "output_tokens_p99"))  # fmt: skip
    ttft, said = _ratio(case, "ttft_p50_seconds", "ttft_p99_seconds"), case.fact("mixed")
    long = (case.now("prompt_tokens_p99") or case.now("output_tokens_p99") or 0.0) >= _LONG_TOKENS
    apart = lengths >= _LENGTHS and long
    phases = _phases(case)
    stalls = (
        ttft >= _TTFT
        and (case.now("ttft_p99_seconds") or 0.0) >= 1.0
        and (case.now("waiting") or 0.0) < max(2.0, _FEW_WAIT * (case.now("running") or 0.0))
        and not 0 < lengths < _ALIKE
    )
    if not (apart or phases or stalls or (said and (ttft >= 5 or lengths == 0))):
        return None
    confidence = (
        0.45
        + 0.2 * apart
        + 0.1 * (apart and lengths >= 2 * _LENGTHS)
        + 0.15 * stalls
        + 0.15 * bool(said)
        + 0.1 * phases
    )
    return Finding(
        "MixedTraffic", Severity.WARNING, min(0.9, confidence),
        "Two shapes of traffic share this target"
        + (f": prompts or answers differ {lengths:.0f} times between p50 and p99." if apart else
           f": TTFT p99 is {ttft:.0f} times its p50." if stalls else "."),
        "Split it: one target (or pool) for long or batch work, one for interactive, each tuned by itself. Until then: "
        "priorities, or a limit on long prefills (long_prefill_token_threshold).",
        evidence(length_p99_over_p50=lengths or None, ttft_p99_over_p50=ttft or None,
                 prompt_tokens_p50=case.now("prompt_tokens_p50"), prompt_tokens_p99=case.now("prompt_tokens_p99"),
                 ttft_p99_seconds=case.now("ttft_p99_seconds"), waiting=case.now("waiting")),
        avoid="Do not tune on the average of the two: it fits neither.", said=said,
    )  # fmt: skip


def _ratio(case: Case, low: str, high: str) -> float:
    below, above = case.now(low), case.now(high)
    return above / below if below and above is not None else 0.0


def _phases(case: Case) -> bool:
    """Prompt tokens per generated one swing tenfold to and fro."""
    ratios = [
        p / g for p, g in case.pairs("prompt_tokens_per_second", "generation_tokens_per_second") if g > 0 and p > 0
    ]
    if len(ratios) < 4 or max(ratios) < 10 * min(ratios):
        return False
    middle = math.sqrt(max(ratios) * min(ratios))
    sides: list[bool] = [r > middle for r in ratios]
    return sum(a != b for a, b in pairwise(sides)) >= 2
