"""What each setting would change and which resource binds, from simulated runs. "No setting helps" is an answer.

For each setting several values are simulated by the best estimate; the best one is then simulated under every pair of
possible load and step times, which gives the interval. A setting helps only if the whole interval does. Then settings
are changed one after the other for as long as that helps.

Hazard: the block count stays as it is. Settings that take memory of their own (more batched tokens, more sequences)
leave somewhat fewer blocks on a real GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from trimtab.errors import InputError
from trimtab.simulate.binding import LEAST_GAIN, Binding, binding
from trimtab.simulate.capacity import ATTAINMENT, Capacity, capacity_needed
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.measure import Measure, log_goodput, log_ratio, log_worth
from trimtab.simulate.parallel import in_order
from trimtab.simulate.situation import Interval, Situation

Value = int | float | bool | str | None
Helps = Literal["goodput", "throughput", "latency", "shedding", "unclear", "no"]
#: settings changed one after the other at most
_ROUNDS: Final = 3
#: a latency must fall by this many times the least gain, and the other must not rise by more than this: as
#: `trimtab.judge.verdict` judges a live trial
_LATENCY_GAIN: Final = 2.0
_LATENCY_LOSS: Final = 0.10
#: above this share of the last value's goodput a further step of a setting is not worth its name
_EQUAL: Final = 0.005
#: settings that make the engine turn requests away
_SHEDDING: Final = ("max_num_queued_reqs", "max_num_queued_tokens")
_LATENCIES: Final = ("ttft_mean", "ttft_p99", "tpot_mean", "tpot_p99")


@dataclass(frozen=True)
class Effect:
    """One setting at its best other value. Changes against now: shares. `binds`: what would bind then.

    helps: `goodput`, `throughput` (of requests that stay late), `latency` (at equal goodput), `shedding` (goodput, by
    turning others away: no capacity is gained), `unclear` (the interval holds both signs), `no`.
    """

    setting: str
    now: Value
    value: Value
    goodput: Interval
    worth: Interval
    ttft_mean: Interval
    ttft_p99: Interval
    tpot_mean: Interval
    tpot_p99: Interval
    preemptions: tuple[int, int]
    attainment: tuple[float, float]
    helps: Helps
    binds: Binding


@dataclass(frozen=True)
class Explanation:
    """`best`: the settings that help together, {} when none does, and `best_goodput` their change.

    `capacity`: what would meet the limits with the best settings, None where they are met (or there are none).
    """

    config: EngineConfig
    now: Measure
    binds: Binding
    effects: tuple[Effect, ...]
    best: dict[str, Value]
    best_goodput: Interval
    capacity: Capacity | None

    @property
    def nothing_helps(self) -> bool:
        return not self.best


@dataclass(frozen=True)
class Ask:
    """`least`: the least gain that counts, a share. `attainment`: share of requests that must be within the limits.

    `workers`: threads; the answer does not depend on them. `on_step` is told (done, of).
    """

    least: float = LEAST_GAIN
    attainment: float = ATTAINMENT
    workers: int = 1
    on_step: Callable[[int, int], None] = lambda done, of: None


def explain(situation: Situation, ask: Ask | None = None) -> Explanation:
    """About 200 simulations of the load; deterministic."""
    ask = ask or Ask()
    settings = options(situation.config)
    steps, of = 0, len(settings) + 3
    ask.on_step(steps, of)
    now = situation.measure(situation.config)
    binds = binding(situation, situation.config, ask.least)
    effects = []
    for effect in in_order(partial(_effect, situation, ask), settings, ask.workers):
        effects.append(effect)
        ask.on_step(len(effects) + 1, of)
    best = _together(situation, effects, ask)
    ask.on_step(of - 1, of)
    settings_best: dict[str, Any] = dict(best)
    after = replace(situation.config, **settings_best)
    limited = min(situation.limits.ttft_seconds, situation.limits.tpot_seconds) < math.inf
    capacity = capacity_needed(situation, after, ask.attainment) if limited else None
    ask.on_step(of, of)
    gain = situation.change(after, log_goodput)
    return Explanation(situation.config, now, binds, tuple(effects), best, gain, capacity)


# --- settings and their values ----------------------------------------------------------------------------------------
def options(config: EngineConfig) -> dict[str, list[Value]]:
    """Other values worth a look, by setting; what vLLM would refuse is left out."""
    wanted: dict[str, list[Value]] = {
        "max_num_seqs": _around(config.max_num_seqs, (1 / 8, 1 / 4, 1 / 2, 3 / 4, 3 / 2, 2, 4)),
        "max_num_batched_tokens": _around(config.max_num_batched_tokens, (1 / 4, 1 / 2, 2, 4)),
        "enable_prefix_caching": [not config.enable_prefix_caching],
        "watermark": [w for w in (0.0, 0.01, 0.05) if w != config.watermark],
        "long_prefill_token_threshold": [
            t for t in (0, config.max_num_batched_tokens // 4, config.max_num_batched_tokens // 2)
            if t != config.long_prefill_token_threshold
        ],
        "max_num_queued_reqs": [
            n for n in (None, config.max_num_seqs, 4 * config.max_num_seqs) if n != config.max_num_queued_reqs
        ],
    }  # fmt: skip
    if config.max_num_active_seqs is not None:
        wanted["max_num_active_seqs"] = _around(config.max_num_active_seqs, (1 / 4, 1 / 2, 3 / 2, 2, 4))
    if not config.enable_chunked_prefill:
        wanted["enable_chunked_prefill"] = [True]
    kept = {name: [v for v in values if changed(config, name, v) is not None] for name, values in wanted.items()}
    return {name: values for name, values in kept.items() if values}


def _around(value: int, factors: tuple[float, ...]) -> list[Value]:
    found = dict.fromkeys(max(1, round(value * factor)) for factor in factors)
    return [v for v in found if v != value]


def changed(config: EngineConfig, setting: str, value: Value) -> EngineConfig | None:
    """None where vLLM would refuse it."""
    values: dict[str, Any] = {setting: value}
    try:
        return replace(config, **values)
    except InputError:
        return None


# --- one setting ------------------------------------------------------------------------------------------------------
def effect_of(situation: Situation, setting: str, ask: Ask) -> Effect:
    """`setting` at the value that gives the most by the best estimate."""
    base = situation.config
    now = situation.measure(base)
    tried: list[tuple[Value, EngineConfig, Measure]] = []
    for value in options(base)[setting]:
        config = changed(base, setting, value)
        assert config is not None  # options() leaves out what is refused
        tried.append((value, config, situation.measure(config)))
    value, config, then = max(tried, key=lambda t: _worth(t[2], now))
    changes = {name: situation.change(config, partial(_of, name)) for name in _LATENCIES}
    goodput, worth = situation.change(config, log_goodput), situation.change(config, log_worth)
    latencies = (changes["ttft_mean"], changes["tpot_mean"])
    return Effect(
        setting, getattr(base, setting), value, goodput, worth, **changes,
        preemptions=(now.counters.preemptions, then.counters.preemptions), attainment=(now.attainment, then.attainment),
        helps=_shed(setting, getattr(base, setting), value, _helps(goodput, worth, latencies, ask.least)),
        binds=binding(situation, config, ask.least),
    )  # fmt: skip


def _worth(then: Measure, now: Measure) -> float:
    """Goodput first; latencies decide between equals."""
    gain = log_worth(then, now)
    ratios = [log_ratio(then.ttft_mean, now.ttft_mean), log_ratio(then.tpot_mean, now.tpot_mean)]
    return round(gain / _EQUAL) - 0.1 * math.tanh(sum(r for r in ratios if not math.isnan(r)))


def _helps(goodput: Interval, worth: Interval, latencies: tuple[Interval, Interval], least: float) -> Helps:
    for name, gain in (("goodput", goodput), ("throughput", worth)):
        if gain.low > 0 and gain.middle >= least:
            return "goodput" if name == "goodput" else "throughput"
    lower = any(i.high < -_LATENCY_GAIN * least for i in latencies)
    if goodput.low > -least and lower and not any(i.high > _LATENCY_LOSS for i in latencies):
        return "latency"
    return "unclear" if goodput.low < 0 < goodput.high and goodput.high >= least else "no"


def _shed(setting: str, now: Value, value: Value, helps: Helps) -> Helps:
    """What a tighter queue gives is counted apart: its latencies are those of the requests that were let in."""
    if setting not in _SHEDDING or value is None or (now is not None and value > now):  # type: ignore[operator]
        return helps
    return "shedding" if helps == "goodput" else "no"


def _of(name: str, ours: Measure, theirs: Measure) -> float:
    return log_ratio(getattr(ours, name), getattr(theirs, name))


# --- settings together ------------------------------------------------------------------------------------------------
def _together(situation: Situation, effects: list[Effect], ask: Ask) -> dict[str, Value]:
    """Settings changed one after the other for as long as each helps."""
    best: dict[str, Any] = {}
    for _ in range(_ROUNDS):
        helping = [e for e in effects if e.helps in ("goodput", "throughput", "latency")]
        if not helping:
            break
        chosen = max(helping, key=_rank)
        best[chosen.setting] = chosen.value
        ahead = replace(situation, config=replace(situation.config, **best))
        names = [name for name in options(ahead.config) if name not in best]
        effects = list(in_order(partial(_effect, ahead, ask), names, ask.workers))
    return best


def _effect(situation: Situation, ask: Ask, setting: str) -> Effect:
    return effect_of(situation, setting, ask)


def _rank(effect: Effect) -> tuple[bool, float, float]:
    return effect.helps != "latency", effect.worth.middle, -effect.ttft_mean.middle
