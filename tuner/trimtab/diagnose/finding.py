"""`Finding`: a diagnosis with evidence and advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation


class Severity(StrEnum):
    INFO = "Info"
    WARNING = "Warning"
    CRITICAL = "Critical"


#: most severe first
ORDER: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True)
class Limits:
    """The objective's SLO in seconds; None is no limit."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True)
class Finding:
    """`name` is stable CamelCase, `confidence` 0 to 1, `message` what was seen, `advice` what to do, `evidence` the
    numbers."""

    name: str
    severity: Severity
    confidence: float
    message: str
    advice: str
    evidence: dict[str, float] = field(default_factory=dict)


Rule = Callable[[Observation, Configuration, Limits], Finding | None]

#: names after which no setting should be tried: the engine is broken or idle, not badly tuned
DO_NOT_TUNE: Final = frozenset({"SchedulerDeadlock", "Hang", "NoTraffic"})
