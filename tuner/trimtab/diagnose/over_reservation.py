"""OverReservation: requests ask for far more tokens than they use. On vLLM that reserves nothing: information, not an
alarm."""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

_HALF = 0.5


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    share = observation.useful_token_ratio
    if share is None or share > _HALF:
        return None
    return Finding(
        "OverReservation", Severity.INFO, 0.9,
        f"Requests use {share:.0%} of the tokens they ask for. vLLM reserves no KV for the rest.",
        "A tighter token cap bounds the worst case only; engines that reserve at admission would gain memory.",
        {"useful_token_ratio": share},
    )  # fmt: skip
