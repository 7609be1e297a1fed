"""A trial about to be created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.engine.settings import Configuration
from trimtab.plan.record import PolicyChange, TrialKind

Json = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """label: the question it answers."""

    template: Json
    configuration: Configuration | None
    origin: str
    label: str
    kind: TrialKind = TrialKind.TUNE
    change: str = ""
    policy: PolicyChange | None = None
