"""A profile from the baseline's own metrics, before the first trial: then candidates are simulated before one costs a
restart. Blocking, some seconds of CPU: call from a thread.

Hazard: settings that neither the command line nor a metric shows are unknown here, and then nothing is simulated: a
guess would rule out the wrong candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError, MetricsError
from trimtab.observe.observation import Observation
from trimtab.observe.samples import MetricsSource, PodRef, Samples

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile

#: settings of the model that no metric shows but which decide how it behaves
_NEEDED: Final = ("max_num_seqs",)
_TAKEN: Final = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_num_active_seqs", "watermark")
#: time per token this far off on the part that was not fitted: then its ranking is worth nothing either. Not by tokens
#: per second: in some minutes chance lengths and what is in flight at the ends move that by more
MOST_ERROR: Final = 0.15
#: requests waiting per pod that make a queue, and the share of clients that leave which explains that it does not grow
_STANDING: Final = 4.0
_LEAVES: Final = 0.05
#: finished requests of one pod that are waited for, and for how many seconds at most: fewer restarts are worth some
#: minutes of looking on
_WANTED_REQUESTS: Final = 180.0
_MOST_WAIT_SECONDS: Final = 240.0
#: pods that are asked, and how far back: one that has served for an hour says what there is to know
_MOST_PODS: Final = 3
_LONGEST_SECONDS: Final = 3600.0


def closed_loop(observation: Observation | None) -> bool:
    """Whether a queue stands: it is long, and nobody leaves. Arrivals then follow the engine's speed, and a simulation
    of the arrivals that were seen would find that no setting serves more."""
    if observation is None or observation.waiting is None or observation.running is None:
        return False
    leave = observation.abort_rate
    return observation.waiting >= max(_STANDING, observation.running / 2) and (leave is None or leave < _LEAVES)


def waits(observation: Observation | None, warm_seconds: float) -> bool:
    """Whether a calibration should wait for more finished requests. observation: of all pods, lately. warm_seconds: for
    which they have been warm and unchanged."""
    if observation is None or not observation.finished or warm_seconds >= _MOST_WAIT_SECONDS:
        return False
    per_second = observation.finished / observation.window_seconds / max(1, observation.pods)
    wanted = _WANTED_REQUESTS / per_second
    return warm_seconds < wanted <= _MOST_WAIT_SECONDS


@dataclass(frozen=True)
class AtRest:
    """What a calibration is made from: metrics of a target at which nothing is tried."""

    #: by name of the pod, as far as the source answered
    samples: Sequence[tuple[str, Samples]]
    configuration: Configuration
    #: of all pods
    observation: Observation | None
    #: the span of the samples, unix seconds
    since: float
    now: float
    #: why there are none
    trouble: str = "no pod serves"


def fetched(
    source: MetricsSource,
    pods: Sequence[PodRef],
    configuration: Configuration,
    observation: Observation | None,
    since: float,
    now: float,
) -> AtRest:
    """Of the first pods, and of the last hour at most. Blocking. since: for which they have been warm and unchanged."""
    begin = max(since, now - _LONGEST_SECONDS)
    found, trouble = [], AtRest.trouble
    for pod in pods[:_MOST_PODS]:
        try:
            found.append((pod.name, source.fetch([pod], begin, now, 1.0)))
        except MetricsError as error:
            trouble = str(error)
    return AtRest(found, configuration, observation, begin, now, trouble)


def baseline_profile(rest: AtRest) -> tuple[Profile | None, str]:
    """Of the first pod whose metrics suffice, and one line for people: what came of it."""
    if closed_loop(rest.observation):
        return None, "not simulated: requests wait but no more come than are served, so clients wait for answers"
    configuration = rest.configuration
    missing = [name for name in _NEEDED if configuration.integer(name) is None]
    if missing:
        return None, f"not simulated: {missing[0]} is not on the command line"
    settings = {n: v for n in _TAKEN if n in configuration and not isinstance(v := configuration[n], str)}
    # the simulator and numba behind it are loaded only here
    from trimtab.simulate.calibrate.make import from_metrics

    why = rest.trouble
    for pod, samples in rest.samples:
        try:
            profile = from_metrics(samples, pod, rest.since, rest.now, settings)
        except InputError as error:
            why = error.problem
            continue
        pair = profile.heldout.get("tpot_mean_seconds")
        if pair is not None and abs(pair.error) <= MOST_ERROR:
            text = f"candidates are simulated first: calibrated from {profile.source}"
            return profile, f"{text}, time per token {pair.error:+.0%} off on the rest"
        why = "the simulator does not meet what it was not fitted to"
        if pair is not None:
            why += f": {1e3 * pair.predicted:.0f} ms per token for {1e3 * pair.measured:.0f} ms"
    return None, f"not simulated: {why}"
