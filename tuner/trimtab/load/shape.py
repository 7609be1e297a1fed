"""From what a person asks for (`--rate 2@30,8`, `--shared-prefix 0.5:4:512`, ...) to the list of Requests to send.

Errors name the option. Order matters: prefixes are added before lengths are clipped, and max_tokens and cancellations
are drawn last, so that they refer to what will be generated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.errors import InputError
from trimtab.load.generate import generate
from trimtab.load.readers import read_trace
from trimtab.load.trace import (
    RateStep,
    Request,
    clipped,
    paced,
    parse_steps,
    steps_total,
    truncated,
    with_cancellations,
    with_max_tokens,
    with_prefixes,
)

DEFAULT_RATE, DEFAULT_DURATION_SECONDS = 1.0, 60.0
_PREFIX_FIX = "Write SHARE:GROUPS:TOKENS, such as 0.5:4:512, with SHARE within 0-1 and the others at least 1."
_RATIO_FIX = "Write LOW:HIGH, such as 1:3."


@dataclass(frozen=True)
class LoadShape:
    """The options in a person's words; None where nothing was said. `trace` None: generate."""

    trace: str | None = None
    rate: str | None = None
    duration_seconds: float | None = None
    #: of prompt and output in tokens, MEDIAN or MEDIAN:SIGMA
    lengths: tuple[str, str] = ("256:0.6", "128:0.8")
    shared_prefix: str | None = None
    max_tokens_ratio: str = "1:1"
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    cancel_share: float = 0.0
    seed: int = 0

    def requests(self) -> list[Request]:
        """In order of arrival, at least one; raises InputError."""
        require_positive("--duration", self.duration_seconds)
        require_positive("--max-prompt-tokens", self.max_prompt_tokens)
        require_positive("--max-output-tokens", self.max_output_tokens)
        require_share("--cancel", self.cancel_share)
        requests = self._generated() if self.trace is None else self._replayed(self.trace)
        if not requests:
            raise InputError("--rate", "no request arrives within the duration", "Raise --rate or --duration.")
        requests = clipped(self._prefixed(requests), self.max_prompt_tokens, self.max_output_tokens)
        low, high = numbers("--max-tokens-ratio", self.max_tokens_ratio, 2, _RATIO_FIX)
        if not 0 < low <= high:
            raise InputError("--max-tokens-ratio", f"{self.max_tokens_ratio} is no range above 0", _RATIO_FIX)
        if (low, high) != (1.0, 1.0):
            requests = with_max_tokens(requests, low, high, self.seed)
        return with_cancellations(requests, self.cancel_share, self.seed)

    def _generated(self) -> list[Request]:
        steps = parse_steps(self.rate) if self.rate is not None else (RateStep(DEFAULT_RATE),)
        prompt_median, prompt_sigma = lengths("--prompt", self.lengths[0])
        output_median, output_sigma = lengths("--output", self.lengths[1])
        return generate(
            steps,
            self.duration_seconds or DEFAULT_DURATION_SECONDS,
            prompt_median_tokens=prompt_median,
            prompt_sigma=prompt_sigma,
            output_median_tokens=output_median,
            output_sigma=output_sigma,
            seed=self.seed,
        )

    def _replayed(self, trace: str) -> list[Request]:
        steps = parse_steps(self.rate) if self.rate is not None else None
        requests = read_trace(trace)
        if steps and self.duration_seconds:
            # only what will be sent sets the mean rate: else a quiet beginning would stay below --rate
            requests = requests[: max(2, math.ceil(steps_total(steps, self.duration_seconds)))]
        if steps:
            requests = paced(requests, steps)
        return truncated(requests, self.duration_seconds) if self.duration_seconds else requests

    def _prefixed(self, requests: list[Request]) -> list[Request]:
        if self.shared_prefix is None:
            return requests
        if any(r.prefix_group is not None for r in requests):
            raise InputError("--shared-prefix", "the trace has shared prefixes of its own", "Leave the option out.")
        share, groups, tokens = numbers("--shared-prefix", self.shared_prefix, 3, _PREFIX_FIX)
        if not 0 <= share <= 1 or groups < 1 or tokens < 1:
            raise InputError("--shared-prefix", f"{self.shared_prefix} is out of range", _PREFIX_FIX)
        return with_prefixes(requests, share, int(groups), int(tokens), self.seed)


def lengths(option: str, text: str) -> tuple[float, float]:
    """MEDIAN or MEDIAN:SIGMA."""
    fix = "Write MEDIAN or MEDIAN:SIGMA, such as 256:0.6 (tokens, and the standard deviation of their logarithm)."
    median, sigma = numbers(option, text if ":" in text else f"{text}:0", 2, fix)
    if median < 1 or not 0 <= sigma <= 5:
        raise InputError(option, f"{text} is out of range", fix)
    return median, sigma


def numbers(option: str, text: str, count: int, fix: str) -> list[float]:
    """Finite numbers between colons."""
    try:
        out = [float(part) for part in text.split(":")]
    except ValueError:
        raise InputError(option, f"{text!r} holds something that is not a number", fix) from None
    if len(out) != count or not all(map(math.isfinite, out)):
        raise InputError(option, f"{text!r} does not hold {count} numbers", fix)
    return out


def require_positive(option: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InputError(option, f"{value:g} is not above 0", "Give a number above 0.")


def require_share(option: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(option, f"{value:g} is not a share", "Give a number from 0 to 1.")
