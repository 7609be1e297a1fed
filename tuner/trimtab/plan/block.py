"""`Block`: why no trial starts. `Note`: what a person should know, which stops nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Why no trial starts. `reason` is stable CamelCase.

    *Hard* when only a person (or another system) can lift it, *soft* when waiting is enough.
    """

    reason: str
    message: str
    hard: bool = False


@dataclass(frozen=True)
class Note:
    """Shown in status.notes. `reason` is stable CamelCase; the message holds no numbers that move on every tick."""

    reason: str
    message: str
