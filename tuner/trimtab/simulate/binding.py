"""Which resource binds, by experiment: give the engine twice as much of one and see what the clients would get.

A resource is judged twice, relieved alone and relieved last after all the others, and the mean of both counts: two
that bind together each seem useless alone. Twice the compute helps wherever the engine is busy, so compute binds
only where nothing that can be bought or set apart from it comes near; where not even that helps, arrivals bind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from trimtab.simulate.config import EngineConfig
from trimtab.simulate.measure import Measure, log_useful, log_worth
from trimtab.simulate.situation import Situation

Resource = Literal["compute", "kv", "slots", "queue", "prefill_budget", "arrivals"]
#: what can be relieved apart from the engine's speed
CAPACITIES: Final[tuple[Resource, ...]] = ("kv", "slots", "prefill_budget", "queue")
#: how much more of a resource: a step that a person can take, and large enough to stand out
RELIEF: Final = 2
#: the least gain that counts, a share; the default of objective.minGainPercent
LEAST_GAIN: Final = 0.03
#: a capacity that gives less than this share of what twice the compute gives (both as logs) only amortises steps
_SHARE_OF_COMPUTE: Final = 1 / 3
#: below this share of requests within the limits the engine does not keep up with the load
_KEEPS_UP: Final = 0.5
Gain = Callable[[Measure, Measure], float]


@dataclass(frozen=True)
class Binding:
    """`gains`: change of goodput, a share, with twice of each resource; of all tokens/s where most requests are late.
    `evidence`: what the run showed, for people."""

    resource: Resource
    gains: dict[Resource, float]
    evidence: str


def binding(situation: Situation, config: EngineConfig, least: float = LEAST_GAIN) -> Binding:
    """By the best estimate; up to 11 simulations."""
    base = situation.measure(config)
    # in time or not, tokens/s grow with what binds; goodput of an engine that cannot keep up jumps where it just can
    gain = log_useful if base.attainment < _KEEPS_UP and base.refused < _KEEPS_UP else log_worth
    logs = _capacity_gains(situation, config, base, gain)
    logs["compute"] = gain(situation.measure(config, speed=RELIEF), base)
    capacities: dict[Resource, float] = {name: gain for name, gain in logs.items() if name != "compute"}
    best: Resource = max(capacities, key=lambda name: capacities[name], default="compute")
    enough = max(math.log1p(least), _SHARE_OF_COMPUTE * logs["compute"])
    if capacities.get(best, -math.inf) < enough:
        best = "compute" if logs["compute"] >= math.log1p(least) else "arrivals"
    gains: dict[Resource, float] = {name: math.expm1(gain) for name, gain in logs.items()}
    return Binding(best, gains, evidence(best, base, config))


def _capacity_gains(situation: Situation, config: EngineConfig, base: Measure, gain: Gain) -> dict[Resource, float]:
    """Log gains; the mean of relieved alone and relieved last. What the engine has no limit of is left out."""
    limited = [name for name in CAPACITIES if relieved(config, (name,)) != config]
    everything = situation.measure(relieved(config, limited))
    logs: dict[Resource, float] = {}
    for name in limited:
        alone = gain(situation.measure(relieved(config, (name,))), base)
        others = [n for n in limited if n != name]
        last = gain(everything, situation.measure(relieved(config, others)))
        logs[name] = (alone + last) / 2
    return logs


def relieved(config: EngineConfig, resources: Iterable[Resource]) -> EngineConfig:
    """The engine with twice as much of each."""
    for name in resources:
        config = _RELIEFS[name](config)
    return config


def _more_kv(config: EngineConfig) -> EngineConfig:
    return replace(config, num_gpu_blocks=config.usable_blocks * RELIEF + 1)


def _more_slots(config: EngineConfig) -> EngineConfig:
    """The budget grows only as far as vLLM's own rule demands."""
    active = config.max_num_active_seqs
    slots = config.max_num_seqs * RELIEF
    return replace(
        config,
        max_num_seqs=slots,
        max_num_active_seqs=active * RELIEF if active else None,
        max_num_batched_tokens=max(config.max_num_batched_tokens, slots),
    )


def _more_budget(config: EngineConfig) -> EngineConfig:
    return replace(
        config,
        max_num_batched_tokens=config.max_num_batched_tokens * RELIEF,
        long_prefill_token_threshold=config.long_prefill_token_threshold * RELIEF,
    )


def _no_queue_limit(config: EngineConfig) -> EngineConfig:
    return replace(config, max_num_queued_reqs=None, max_num_queued_tokens=None)


_RELIEFS: Final[dict[Resource, Callable[[EngineConfig], EngineConfig]]] = {
    "kv": _more_kv,
    "slots": _more_slots,
    "prefill_budget": _more_budget,
    "queue": _no_queue_limit,
}


def evidence(resource: Resource, seen: Measure, config: EngineConfig) -> str:
    """What the simulated run showed of the resource."""
    c = seen.counters
    kv = f"KV {c.mean_kv_usage:.0%} in use on average, {c.peak_kv_usage:.0%} at most"
    slots = f"{c.mean_running:.0f} of {config.active_limit} slots taken on average"
    return {
        "kv": f"{kv}, {c.preemptions} preemptions; {slots}",
        "slots": f"{slots}, {c.peak_running} at most; {kv}",
        "queue": f"{seen.refused:.0%} of the requests refused by the queue's limits",
        "prefill_budget": f"{c.prefill_tokens / max(1, c.steps):.0f} prefill tokens a step on average, "
        f"{config.max_num_batched_tokens} at most; {slots}",
        "compute": f"{slots}; {kv}; a step took {1000 * c.busy_seconds / max(1, c.steps):.0f} ms on average",
        "arrivals": f"{slots}; {kv}; {_within(seen.attainment)}",
    }[resource]


def _within(attainment: float) -> str:
    return "no request to judge" if math.isnan(attainment) else f"{attainment:.0%} of the requests within the limits"
