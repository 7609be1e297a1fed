"""The load a trial was measured under: what a record keeps of it, how far two loads are apart, when one has drifted.

A setting's worth depends on the load, so trials teach less the less alike it was (`place`), and a search that has ended
begins again once the load is another (`drift`), not after some time. Pure; unknown stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from trimtab.observe.observation import Observation
from trimtab.observe.profile import workload_profile

#: of one pod: what the engine sees does not depend on how many others there are
RATE: Final = "requests_per_second_per_pod"
PROMPT, OUTPUT, ABORTS, SEEN = "prompt_tokens_mean", "output_tokens_mean", "abort_rate", "requests"
#: numbers that are compared by ratio
_RATIOS: Final = (RATE, PROMPT, OUTPUT)
#: what the engine's settings do not change: which prompts come
SETTINGS_LEAVE: Final = frozenset({PROMPT, SEEN})
#: octaves that all clients leaving is away from none leaving
_ABORT_OCTAVES: Final = 4.0
#: octaves between two targets of the same model, hardware and arguments under the same load
_OTHER_TARGET: Final = 0.5
#: standard errors by which a change must exceed the threshold: a mean of n lognormal lengths is off by about 1/sqrt(n)
_SURE: Final = 2.0

Workload = Mapping[str, float]


def workload_of(observation: Observation | None) -> dict[str, float]:
    """What a trial's record keeps. `requests`: how many were seen, so how sure the rest is."""
    if observation is None:
        return {}
    profile = workload_profile(observation)
    rate = profile.arrivals_per_second
    known = {
        RATE: None if rate is None else rate / max(1, observation.pods),
        PROMPT: profile.prompt_tokens_mean,
        OUTPUT: profile.output_tokens_mean,
        ABORTS: profile.abort_rate,
        SEEN: observation.requests,
    }
    return {n: float(v) for n, v in known.items() if v is not None and math.isfinite(v)}


def place(workload: Workload) -> tuple[float, ...]:
    """Where a load stands among loads, in octaves; nan where it is not known. The last says whose load: 0 is ours."""
    out = [math.log2(workload[n]) if workload.get(n, 0.0) > 0 else math.nan for n in _RATIOS]
    return (*out, _ABORT_OCTAVES * workload.get(ABORTS, math.nan), 0.0)


def of_another_target(known: tuple[float, ...]) -> tuple[float, ...]:
    """The place of the same load on a like target."""
    return (*(known or place({}))[:-1], _OTHER_TARGET)


def filled(known: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """A place without nan: what is not known of either load counts as equal."""
    here = [0.0 if math.isnan(n) else n for n in now]
    if len(known) != len(here):
        return tuple(here)
    return tuple(h if math.isnan(k) or math.isnan(n) else k for k, h, n in zip(known, here, now, strict=True))


def apart(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Octaves between two places, in the direction in which they differ most; the unknown counts as equal."""
    return max((abs(a - b) for a, b in zip(first, second, strict=False) if not math.isnan(a - b)), default=0.0)


def drift(then: Workload, now: Workload, percent: float) -> str:
    """What has changed by more than `percent` (beyond doubt) and how, in words; "" when nothing has.

    Halved and doubled are the same distance: both are 100%. The abort rate counts in points.
    """
    few = min((w[SEEN] for w in (then, now) if w.get(SEEN)), default=0.0)
    doubt = _SURE / math.sqrt(few) if few > 0 else math.inf
    for name in _RATIOS:
        if _both(then, now, name):
            apart = abs(math.log(now[name] / then[name]))
            if apart > math.log1p(percent / 100) + doubt:
                return f"{name} went from {then[name]:.3g} to {now[name]:.3g}"
    if ABORTS in then and ABORTS in now and abs(now[ABORTS] - then[ABORTS]) > percent / 100 + doubt:
        return f"{ABORTS} went from {then[ABORTS]:.0%} to {now[ABORTS]:.0%}"
    return ""


def _both(first: Workload, second: Workload, name: str) -> bool:
    return first.get(name, 0.0) > 0 and second.get(name, 0.0) > 0
