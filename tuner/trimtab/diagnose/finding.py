"""`Finding`: a diagnosis with evidence, what to do, what to leave alone, and whether a setting is the lever."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    INFO = "Info"
    WARNING = "Warning"
    CRITICAL = "Critical"


class Role(StrEnum):
    """How a finding stands to the others: the one cause, what follows from it, or what is true besides."""

    MAIN = "main"
    CONSEQUENCE = "consequence"
    CONTEXT = "context"


#: most severe first
ORDER: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True)
class Limits:
    """The objective's SLO in seconds; None is no limit."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True)
class Finding:
    """`name` is the cause, stable CamelCase; `confidence` 0 to 1; `message` what was seen; `advice` what to do;
    `evidence` the numbers; `avoid` what not to do.

    tunable: a setting of the engine is the lever, and `settings` (the engine's own names) are those. `said`: facts from
    the report that speak for it, as they were written.
    """

    name: str
    severity: Severity
    confidence: float
    message: str
    advice: str
    evidence: dict[str, float] = field(default_factory=dict)
    avoid: str = ""
    tunable: bool = False
    settings: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    role: Role = Role.CONTEXT


#: names after which no setting should be tried: the engine is broken or idle, not badly tuned
DO_NOT_TUNE: Final = frozenset({"SchedulerDeadlock", "Hang", "HeadNeverAdmissible", "LeakedBlocks", "NoTraffic"})
#: an alarm below this confidence is told, but stops nothing
ALARM_CONFIDENCE: Final = 0.7


def stops_tuning(finding: Finding) -> bool:
    """Whether nothing may be tried while this is found."""
    return finding.name in DO_NOT_TUNE and finding.confidence >= ALARM_CONFIDENCE
