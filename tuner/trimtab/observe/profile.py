"""`WorkloadProfile`: the shape of the load, from an Observation. What a setting can do depends on it.

Unknown stays None. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.observe.observation import Histogram, Observation


@dataclass(frozen=True)
class WorkloadProfile:
    """Lengths are in tokens of finished requests.

    Quantiles interpolate in buckets, so they are coarse for long outputs.
    """

    #: requests per second over all observed pods
    arrivals_per_second: float | None
    prompt_tokens_mean: float | None
    prompt_tokens_p50: float | None
    prompt_tokens_p90: float | None
    output_tokens_mean: float | None
    output_tokens_p50: float | None
    output_tokens_p90: float | None
    #: standard deviation / mean of output length: how much a static max_new_tokens over-reserves
    output_tokens_cv: float | None
    #: 0 to 1
    prefix_hit_ratio: float | None
    #: 0 to 1, an estimate (a client disconnect is counted nowhere)
    abort_rate: float | None


def workload_profile(observation: Observation) -> WorkloadProfile:
    prompt, output = observation.prompt_length, observation.output_length
    return WorkloadProfile(
        arrivals_per_second=observation.arrivals_per_second,
        prompt_tokens_mean=prompt.mean if prompt else None,
        prompt_tokens_p50=prompt.quantile(0.5) if prompt else None,
        prompt_tokens_p90=prompt.quantile(0.9) if prompt else None,
        output_tokens_mean=output.mean if output else None,
        output_tokens_p50=output.quantile(0.5) if output else None,
        output_tokens_p90=output.quantile(0.9) if output else None,
        output_tokens_cv=coefficient_of_variation(output) if output else None,
        prefix_hit_ratio=observation.prefix_hit_ratio,
        abort_rate=observation.abort_rate,
    )


def coefficient_of_variation(histogram: Histogram) -> float | None:
    """Standard deviation / mean, values taken as uniform in their bucket; None when empty or the mean is not positive.

    vLLM's 1-2-5 edges are wide: equal lengths in one bucket still show a CV of 0.14 to 0.25. What lies above the
    highest finite edge is taken as that edge, a lower bound.
    """
    mean = histogram.mean
    if mean is None or mean <= 0:
        return None
    first = second = 0.0
    low = below = 0.0
    for bound, cumulative in zip(histogram.bounds, histogram.counts, strict=True):
        high = low if math.isinf(bound) else bound
        weight = (cumulative - below) / histogram.count
        first += weight * (low + high) / 2
        second += weight * (low * low + low * high + high * high) / 3
        low, below = high, cumulative
    return math.sqrt(max(0.0, second - first * first)) / first if first > 0 else None
