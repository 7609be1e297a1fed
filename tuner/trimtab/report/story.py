"""`Report`: what a page is made of, whichever file it was read from, and the numbers that follow from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.engine.settings import Configuration, Value
from trimtab.judge.verdict import Kind
from trimtab.plan.record import NOT_TRIED, Phase, TrialKind, TrialRecord
from trimtab.plan.summary import LATENCY, Tally, tally

#: figures of the whole target, or of one arm; None is unknown
Figures = Mapping[str, float | None]
#: name of a latency (ttft, tpot) -> (seconds, share of requests that took no longer), ascending
Shares = Mapping[str, Sequence[tuple[float, float]]]
#: measured trials below which a share per setting says nothing
LEAST_FOR_IMPORTANCE: Final = 5
#: how a forecast (`trimtab.search.prospects.Prospect`) begins in a trial's origin
_SIMULATED: Final = re.compile(r"simulated (?:([+-]\d+)%|x(\d+)) \(")


@dataclass(frozen=True)
class Limits:
    """What a request, and a canary, had to keep; None is no limit, or not known. latency_ratio: the guardrail, canary
    p99 over the control's."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    latency_ratio: float | None = None
    min_gain_percent: float | None = None


@dataclass(frozen=True)
class Cause:
    """A finding. tunable: whether a setting is the lever; None where the file does not say."""

    name: str
    severity: str
    confidence: float
    message: str
    advice: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    avoid: str = ""
    tunable: bool | None = None
    role: str = ""


@dataclass(frozen=True)
class Forecast:
    """What a simulation said of a configuration before it was tried: gain as a share, with its ends."""

    configuration: Configuration
    gain: float
    low: float | None = None
    high: float | None = None
    dropped: str = ""


@dataclass(frozen=True)
class Sample:
    """One look at one arm of a trial. `at` in unix seconds; figures as in a verdict's numbers."""

    at: float
    trial: int
    arm: str
    figures: Figures


@dataclass(frozen=True)
class Report:
    """`title`: the target. `given`, `result`: command lines, or "". `patch`: a command that applies the recommendation.

    state: what the tuner says of itself. before, after: whole target, per replica where it is a rate.
    gpus: of one replica, None where it is not known. warnings: what could not be read, in words. screened: what came of
    a simulation from the baseline, in words.
    """

    title: str
    where: str
    state: str
    trials: tuple[TrialRecord, ...] = ()
    given: str = ""
    result: str = ""
    patch: str = ""
    recommendation: str = ""
    before: Figures | None = None
    after: Figures | None = None
    shares_before: Shares = field(default_factory=dict)
    shares_after: Shares = field(default_factory=dict)
    findings: tuple[Cause, ...] = ()
    limits: Limits = Limits()
    forecasts: tuple[Forecast, ...] = ()
    samples: tuple[Sample, ...] = ()
    replicas: int | None = None
    gpus: float | None = None
    load: Mapping[str, object] | None = None
    screened: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def counts(self) -> Tally:
        return tally(self.trials)

    @property
    def promoted(self) -> tuple[TrialRecord, ...]:
        return tuple(t for t in self.trials if t.phase is Phase.PROMOTED and t.kind is not TrialKind.INSTALL)

    @property
    def tried(self) -> tuple[TrialRecord, ...]:
        """Ended by what the configuration did, not by something from outside."""
        return tuple(t for t in self.trials if t.ended and (t.verdict is None or t.verdict.reason not in NOT_TRIED))

    @property
    def began(self) -> float | None:
        return min((t.started_at for t in self.trials), default=None)

    @property
    def ended(self) -> float | None:
        return max((t.finished_at or t.phase_since for t in self.trials), default=None)

    @property
    def restarts(self) -> int:
        return sum(t.restarts for t in self.trials)

    @property
    def trial_seconds(self) -> float:
        """Time in which the target ran with a canary in it."""
        return sum(max(0.0, (t.finished_at or t.phase_since) - t.started_at) for t in self.trials)

    def changed(self) -> list[tuple[str, Value | None, Value | None]]:
        """(setting, at first, now) over all promotions; None is the engine's own default."""
        if not self.promoted:
            return []
        first, last = self.trials[0].baseline, self.promoted[-1].configuration
        return [(name, first.get(name), value) for name, value in first.changes_to(last).items()]


def arm(trial: TrialRecord, name: str) -> dict[str, float]:
    """The known figures of `canary` or `control` of a trial."""
    numbers = trial.verdict.numbers if trial.verdict is not None else {}
    return {k.removeprefix(f"{name}_"): v for k, v in numbers.items() if k.startswith(f"{name}_") and v is not None}


def figures_of_ends(trials: Sequence[TrialRecord]) -> tuple[Figures | None, Figures | None]:
    """Before and after where the whole target was not measured: the control of the first promoted trial, the canary of
    the last one. Each stands beside its own arm of the same minutes only."""
    won = [t for t in trials if t.phase is Phase.PROMOTED and t.kind is not TrialKind.INSTALL]
    if not won:
        return None, None
    return _whole(arm(won[0], "control")), _whole(arm(won[-1], "canary"))


def _whole(found: Mapping[str, float]) -> Figures | None:
    renamed = {("goodput_tokens_per_second" if k == "goodput" else k): v for k, v in found.items()}
    return renamed or None


def by_latency(trial: TrialRecord) -> bool:
    """Whether it was decided by latency: its goodput "gain" is noise then."""
    return trial.verdict is not None and trial.verdict.reason == LATENCY


def better(trial: TrialRecord) -> bool:
    return trial.verdict is not None and trial.verdict.kind is Kind.BETTER


def simulated_gain(trial: TrialRecord) -> float | None:
    """What a simulation had said of it, as a share; None where none was asked. The trial's origin is its record."""
    said = _SIMULATED.match(trial.origin)
    if said is None:
        return None
    return int(said[1]) / 100 if said[1] is not None else float(said[2]) - 1.0
