"""Three findings on prefix caching: off, not paying, pays. Hits and queries are counted in tokens.

A pod that has just started has a cold cache: feed windows after the warm-up. Ties rotated between replicas lose hits by
routing, not by the setting (vllm#52463).
"""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_LITTLE, _MUCH = 0.02, 0.20
#: queried tokens below which a hit ratio says nothing
_MIN_QUERIES = 10_000.0


def off(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    if configuration.get("enable_prefix_caching") is not False:
        return None
    text = "Prefix caching is switched off."
    advice = "Try it on: it costs next to nothing where prompts share no prefix."
    return Finding("PrefixCacheOff", Severity.INFO, 1.0, text, advice)


def not_paying(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    hits = _hits(observation)
    if hits is None or hits >= _LITTLE:
        return None
    return Finding(
        "PrefixCacheNotPaying", Severity.INFO, 0.8, f"{hits:.1%} of prompt tokens come from the prefix cache.",
        "Prompts share little, or the router spreads those that do. Look at routing before switching it off.",
        {"prefix_hit_ratio": hits},
    )  # fmt: skip


def pays(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    hits = _hits(observation)
    if hits is None or hits < _MUCH:
        return None
    return Finding(
        "PrefixCachePays", Severity.INFO, 0.9, f"{hits:.1%} of prompt tokens come from the prefix cache.",
        "Keep it on; a restarted pod begins without it, so give trials a warm-up.", {"prefix_hit_ratio": hits},
    )  # fmt: skip


def _hits(observation: Observation) -> float | None:
    if observation.prefix_queries is None or observation.prefix_queries < _MIN_QUERIES:
        return None
    return observation.prefix_hit_ratio
