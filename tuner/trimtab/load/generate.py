"""Seeded synthetic traces: Poisson arrivals at a (stepwise) rate, lognormal lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from trimtab.load.trace import RateStep, Request, warp


def generate(
    steps: Sequence[RateStep],
    duration_seconds: float,
    *,
    prompt_median_tokens: float = 256.0,
    prompt_sigma: float = 0.6,
    output_median_tokens: float = 128.0,
    output_sigma: float = 0.8,
    seed: int = 0,
) -> list[Request]:
    """Requests that arrive within the duration.

    sigma is the standard deviation of the logarithm: 0 makes all lengths equal, 0.8 puts p90 at 2.8 times the median.
    max_tokens equals the output; see `trimtab.load.trace` for cancellations, prefixes and looser limits. Same seed,
    same requests; a longer duration only appends.
    """
    units = _poisson(random.Random(f"{seed}:arrival"))
    prompts, outputs = random.Random(f"{seed}:prompt"), random.Random(f"{seed}:output")
    out: list[Request] = []
    for arrival in _arrivals(units, steps, duration_seconds):
        prompt = _lognormal(prompts, prompt_median_tokens, prompt_sigma)
        output = _lognormal(outputs, output_median_tokens, output_sigma)
        out.append(Request(arrival, prompt, output, None, 0, None, output))
    return out


def _poisson(rng: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += rng.expovariate(1.0)
        yield at


def _arrivals(units: Iterator[float], steps: Sequence[RateStep], duration_seconds: float) -> list[float]:
    """Cut the last step at the duration: then warp() ends by itself."""
    bounded, start = [], 0.0
    for step in steps:
        seconds = duration_seconds - start if step.seconds is None else min(step.seconds, duration_seconds - start)
        if seconds > 0:
            bounded.append(RateStep(step.per_second, seconds))
            start += seconds
    return [at for at in warp(units, bounded) if at < duration_seconds]


def _lognormal(rng: random.Random, median: float, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(median), sigma)))
