"""Findings on prefix caching: off, not paying, pays, made by preemption, cold. Never by the hit rate alone.

Preempted requests find their own blocks again, so preemption makes hits; prompts shorter than a block or two can make
none. A pod that has just started has a cold cache (Fastllm-proxy#22: 0 hits beside 96.1%). Ties rotated between
replicas lose hits by routing, not by the setting (vllm#52463).
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_LITTLE, _MUCH = 0.02, 0.20
#: queried tokens below which a hit ratio says nothing
_MIN_QUERIES = 10_000.0
_BLOCK_TOKENS = 16.0


def off(case: Case) -> Finding | None:
    if case.engine.prefix_caching is not False:
        return None
    shared = case.fact("shared_prefix")
    pressed = (case.now("waiting") or 0.0) >= 1 or (case.now("ttft_p50_seconds") or 0.0) >= 1
    matters = bool(shared) and pressed
    return Finding(
        "PrefixCacheOff", Severity.WARNING if matters else Severity.INFO, 0.85 if matters else 0.95,
        "Prefix caching is switched off" + (" though prompts share their beginning." if shared else "."),
        "Try it on: it costs next to nothing where prompts share no prefix.",
        evidence(waiting=case.now("waiting"), ttft_p50_seconds=case.now("ttft_p50_seconds")),
        tunable=True, settings=case.engine.lever("prefix"), said=shared,
    )  # fmt: skip


def not_paying(case: Case) -> Finding | None:
    hits = _hits(case)
    if hits is None or hits >= _LITTLE or cold(case) is not None:
        return None
    prompt, block = case.now("prompt_tokens_mean"), case.now("block_size_tokens") or _BLOCK_TOKENS
    short = prompt is not None and prompt < 2 * block
    distinct = case.fact("distinct_prompts")
    why = (
        f" Prompts of {prompt:.0f} tokens fill no block of {block:.0f} twice." if short and prompt is not None else
        " The prompts share nothing." if distinct else ""
    )  # fmt: skip
    return Finding(
        "PrefixCacheNotPaying", Severity.INFO, 0.9 if short or distinct else 0.8,
        f"{hits:.1%} of prompt tokens come from the prefix cache.{why}",
        "Prompts share little, or the router spreads those that do, or differing text (a date, an id) stands first. "
        "Look at routing and templates before switching it off; off gains next to nothing.",
        evidence(prefix_hit_ratio=hits, prompt_tokens_mean=prompt),
        avoid="Do not expect a gain from either setting of it.", said=distinct,
    )  # fmt: skip


def from_preemption(case: Case) -> Finding | None:
    hits, per_request = _hits(case), case.preemptions_per_request()
    if hits is None or hits < 0.1 or not case.preempting():
        return None
    together = (case.change("prefix_hit_ratio") or 0.0) >= 1.2 and (case.change("preemptions_per_second") or 0.0) >= 1.2
    distinct = case.fact("distinct_prompts")
    confidence = 0.55 + 0.2 * together + 0.2 * bool(distinct) + 0.1 * ((per_request or 0.0) >= 0.5)
    return Finding(
        "PrefixHitsFromPreemption", Severity.INFO, min(0.95, confidence),
        f"{hits:.0%} hits, but requests are preempted and find their own blocks again: the rate is no gain.",
        "End the preemption, then look at the hit rate again.",
        evidence(prefix_hit_ratio=hits, preemptions_per_request=per_request,
                 preemptions_per_second=case.now("preemptions_per_second")),
        avoid="Do not praise or size the cache by this hit rate.", said=distinct,
    )  # fmt: skip


def cold(case: Case) -> Finding | None:
    """A cache that fills after a restart, or one pod without hits beside one with many."""
    rates = {n: r for n in case.parts if (r := Case(case.parts[n]).now("prefix_hit_ratio")) is not None}
    apart = len(rates) > 1 and min(rates.values()) < 0.3 * max(rates.values()) and max(rates.values()) >= 0.3
    early, late = case.early("prefix_hit_ratio"), case.last("prefix_hit_ratio")
    said = case.fact("restart")
    warms = early is not None and late is not None and late >= 0.2 and early < 0.5 * late and bool(said)
    if not (apart or warms):
        return None
    return Finding(
        "PrefixCacheCold", Severity.INFO, 0.7 + 0.15 * bool(said),
        "One pod's prefix cache is cold beside the others'." if apart else "The prefix cache is filling after a "
        "restart.",
        "Wait until hits settle before comparing pods; if it stays, the router splits what shares a prefix.",
        evidence(lowest_hit_ratio=min(rates.values()) if apart else early,
                 highest_hit_ratio=max(rates.values()) if apart else late),
        avoid="Do not judge a restarted pod against a warm one.", said=said,
    )  # fmt: skip


def pays(case: Case) -> Finding | None:
    hits = _hits(case)
    if hits is None or hits < _MUCH or case.preempting():
        return None
    return Finding(
        "PrefixCachePays", Severity.INFO, 0.9, f"{hits:.1%} of prompt tokens come from the prefix cache.",
        "Keep it on; a restarted pod begins without it, so give trials a warm-up.", evidence(prefix_hit_ratio=hits),
    )  # fmt: skip


def _hits(case: Case) -> float | None:
    """None too where few tokens were looked up."""
    rate, seconds = case.now("prefix_queries_per_second"), case.seconds()
    if rate is not None and seconds is not None and rate * seconds < _MIN_QUERIES:
        return None
    return case.now("prefix_hit_ratio")
