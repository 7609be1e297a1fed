"""When a new limit may take the place of the one in force: not for trifles, not too often. `now` is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import InputError


@dataclass(frozen=True)
class InForce:
    """The limit in force and when it was set (seconds, the caller's clock)."""

    max_new_tokens: int
    since_seconds: float


@dataclass(frozen=True)
class Hysteresis:
    """No change below `least_change` (a share), none within `interval_seconds` of the last.

    Defaults: 10% is about the p90's own 95% interval for a thousand requests of CV 1; ten minutes cover the 8 to 84 s
    that a ConfigMap takes to reach a pod several times, so that what is measured is what was set.
    """

    least_change: float = 0.1
    interval_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.least_change < 1 or self.interval_seconds < 0:
            raise InputError("hysteresis", "is out of range", "Give a share below 1 and seconds of at least 0.")


@dataclass(frozen=True)
class Settled:
    """What holds from now on."""

    max_new_tokens: int
    changed: bool
    reason: str


def settle(
    proposed_tokens: int, in_force: InForce | None, now_seconds: float, rule: Hysteresis | None = None
) -> Settled:
    """The first limit is always taken."""
    rule = rule or Hysteresis()
    if in_force is None:
        return Settled(proposed_tokens, True, "No limit was in force.")
    old = in_force.max_new_tokens
    change = abs(proposed_tokens - old) / max(1, old)
    if change < rule.least_change or proposed_tokens == old:
        return Settled(
            old, False, f"{old} stays: {proposed_tokens} differs by {change:.0%}, {rule.least_change:.0%} count."
        )
    if now_seconds - in_force.since_seconds < rule.interval_seconds:
        return Settled(old, False, f"{old} stays for now: it was set less than {rule.interval_seconds:g} s ago.")
    return Settled(proposed_tokens, True, f"{old} becomes {proposed_tokens}.")
