"""A trace is a list of Requests in order of arrival; everything here is pure and deterministic by seed.

Each transformation draws from its own stream of random numbers, one draw per request and purpose: adding cancellations
does not change the lengths, and a larger share of cancellations contains the smaller one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trimtab.errors import InputError


@dataclass(frozen=True, slots=True)
class Request:
    """One request to be sent `arrival_seconds` after the start.

    `prompt_tokens` counts the whole prompt, with its shared prefix of `prefix_tokens`. Requests of one `prefix_group`
    share their first tokens up to the shorter of their prefixes. `prefix_blocks` refines the group where a trace
    knows a tree of prefixes (Mooncake): block ids from the start of the prompt, `block_tokens` each; it is empty
    where the group says it all. `output_tokens` is what the model would say left alone; the server stops at
    `max_tokens`. After `cancel_after_tokens` the client leaves.
    """

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    prefix_group: int | None
    prefix_tokens: int
    cancel_after_tokens: int | None
    max_tokens: int
    prefix_blocks: tuple[int, ...] = ()
    block_tokens: int = 512

    @property
    def planned_tokens(self) -> int:
        """Tokens the server will generate if nobody leaves and nothing fails."""
        return min(self.output_tokens, self.max_tokens)


@dataclass(frozen=True, slots=True)
class RateStep:
    """Requests per second for some time; the last step may last forever (`seconds` None)."""

    per_second: float
    seconds: float | None = None


def parse_steps(text: str, option: str = "--rate") -> tuple[RateStep, ...]:
    """`4` or `2@30,8@60,2`: requests per second, each held for the seconds behind `@`; the last without `@` lasts to
    the end.
    """
    fix = "Write one rate such as 4, or steps such as 2@30,8@60,2 (requests per second @ seconds)."
    steps = []
    parts = text.split(",")
    for number, part in enumerate(parts, start=1):
        rate, at, seconds = part.strip().partition("@")
        try:
            step = RateStep(float(rate), float(seconds) if at else None)
        except ValueError:
            raise InputError(option, f"step {number} {part.strip()!r} is not a number", fix) from None
        if not (math.isfinite(step.per_second) and step.per_second >= 0):
            raise InputError(option, f"step {number} has rate {rate}", fix)
        if step.seconds is None and number < len(parts):
            raise InputError(option, f"step {number} of {len(parts)} does not say how long it lasts", fix)
        if step.seconds is not None and not (math.isfinite(step.seconds) and step.seconds > 0):
            raise InputError(option, f"step {number} lasts {seconds} seconds", fix)
        steps.append(step)
    if not any(step.per_second > 0 for step in steps):
        raise InputError(option, "no step has a rate above 0", fix)
    return tuple(steps)


def steps_total(steps: Sequence[RateStep], duration_seconds: float) -> float:
    """Requests expected within the duration."""
    total, start = 0.0, 0.0
    for step in steps:
        end = duration_seconds if step.seconds is None else min(duration_seconds, start + step.seconds)
        total += max(0.0, end - start) * step.per_second
        start = end
    return total


def warp(unit_seconds: Iterable[float], steps: Sequence[RateStep]) -> list[float]:
    """Carry arrivals at a mean rate of 1/s (ascending) over to the stepwise rate; those beyond the last step are
    dropped.

    The time at which the integral of the rate reaches u takes the place of u, so bursts keep their shape and Poisson
    stays Poisson.
    """
    out: list[float] = []
    index, start, passed = 0, 0.0, 0.0
    for unit in unit_seconds:
        while index < len(steps):
            step = steps[index]
            end = math.inf if step.seconds is None else start + step.seconds
            share = step.per_second * (end - start) if step.per_second else 0.0
            if unit < passed + share:
                break
            index, start, passed = index + 1, end, passed + share
        else:
            return out
        out.append(start + (unit - passed) / step.per_second)
    return out


def mean_rate(requests: Sequence[Request]) -> float:
    """Requests per second between the first and the last arrival; 0.0 where that span is empty."""
    if len(requests) < 2:
        return 0.0
    span = requests[-1].arrival_seconds - requests[0].arrival_seconds
    return (len(requests) - 1) / span if span > 0 else 0.0


def paced(requests: Sequence[Request], steps: Sequence[RateStep], option: str = "--rate") -> list[Request]:
    """Rescale arrivals so that the mean rate follows the steps; order and relative gaps within a step stay."""
    rate = mean_rate(requests)
    if len(requests) > 1 and rate == 0.0:
        raise InputError(
            option,
            "all requests of the trace arrive at once: there is no rate to scale",
            "Give a longer piece of the trace.",
        )
    origin = requests[0].arrival_seconds if requests else 0.0
    arrivals = warp(((r.arrival_seconds - origin) * rate for r in requests), steps)
    return [replace(r, arrival_seconds=at) for r, at in zip(requests, arrivals, strict=False)]


def truncated(requests: Iterable[Request], duration_seconds: float) -> list[Request]:
    """Only what arrives before the duration is over."""
    return [r for r in requests if r.arrival_seconds < duration_seconds]


def clipped(
    requests: Iterable[Request], max_prompt_tokens: int | None = None, max_output_tokens: int | None = None
) -> list[Request]:
    """Cut prompts (their end, so prefixes stay shared) and outputs down to limits of at least 1 token.

    A cancellation point beyond the new end of the output moves onto it.
    """
    out = []
    for r in requests:
        prompt = r.prompt_tokens if max_prompt_tokens is None else min(r.prompt_tokens, max_prompt_tokens)
        output = r.output_tokens if max_output_tokens is None else min(r.output_tokens, max_output_tokens)
        limit = r.max_tokens if max_output_tokens is None else min(r.max_tokens, max_output_tokens)
        cancel = None if r.cancel_after_tokens is None else min(r.cancel_after_tokens, output)
        prefix = min(r.prefix_tokens, prompt)
        out.append(
            replace(
                r,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=limit,
                cancel_after_tokens=cancel,
                prefix_tokens=prefix,
            )
        )
    return out


def with_cancellations(requests: Iterable[Request], share: float, seed: int) -> list[Request]:
    """Let a share of the requests leave mid-stream, after a uniformly random token before the last one.

    Outputs of a single token cannot be left mid-stream and stay as they are.
    """
    rng = random.Random(f"{seed}:cancel")
    out = []
    for r in requests:
        chosen, where = rng.random() < share, rng.random()
        planned = r.planned_tokens
        out.append(replace(r, cancel_after_tokens=1 + int(where * (planned - 1))) if chosen and planned > 1 else r)
    return out


def with_max_tokens(requests: Iterable[Request], low: float, high: float, seed: int) -> list[Request]:
    """Set max_tokens to the output length times a uniformly random ratio in [low, high]; below 1 the server cuts the
    output.
    """
    rng = random.Random(f"{seed}:max_tokens")
    return [replace(r, max_tokens=max(1, round(r.output_tokens * rng.uniform(low, high)))) for r in requests]


def with_prefixes(requests: Iterable[Request], share: float, groups: int, tokens: int, seed: int) -> list[Request]:
    """Put one of `groups` shared prefixes of `tokens` tokens before a share of the prompts, which grow by as much."""
    rng = random.Random(f"{seed}:prefix")
    out = []
    for r in requests:
        chosen, group = rng.random() < share, rng.randrange(groups)
        if chosen:
            r = replace(r, prompt_tokens=r.prompt_tokens + tokens, prefix_group=group, prefix_tokens=tokens)
        out.append(r)
    return out
