"""What the state machine remembers (`TrialRecord`, kept in the TuningTrial's status) and what it sees (`TargetView`,
`Evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from trimtab.engine.settings import Configuration
from trimtab.judge.bias import Start
from trimtab.judge.guardrail import PodHealth
from trimtab.judge.verdict import Pair, Verdict
from trimtab.observe.observation import Observation


class Phase(StrEnum):
    """Phases of a trial, in their usual order. The last three are ends."""

    AWAITING_APPROVAL = "AwaitingApproval"
    MEASURING_BEFORE = "MeasuringBefore"  # switchback only: the baseline, before the candidate
    STARTING = "Starting"
    WARMING_UP = "WarmingUp"
    MEASURING = "Measuring"
    CONFIRMING = "Confirming"
    RETURNING = "Returning"  # switchback only: on the way back to the baseline, the verdict still open
    MEASURING_AFTER = "MeasuringAfter"  # switchback only: the baseline again, after the candidate
    PROMOTING = "Promoting"
    VERIFYING = "Verifying"
    ROLLING_BACK = "RollingBack"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"
    CANCELLED = "Cancelled"


#: the trial is over and the target is as it should be
ENDED = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.CANCELLED})
#: the canary serves beside the control and is watched
SERVING = frozenset({Phase.WARMING_UP, Phase.MEASURING, Phase.CONFIRMING})


#: phases in which the metrics of what serves are looked at
WATCHED = SERVING | {Phase.MEASURING_BEFORE, Phase.MEASURING_AFTER, Phase.VERIFYING}
#: phases in which the target may carry the baseline without its owner having put it back
BASELINE_EXPECTED = frozenset(
    {Phase.MEASURING_BEFORE, Phase.STARTING, Phase.RETURNING, Phase.MEASURING_AFTER, Phase.PROMOTING}
)

#: verdict reason: one more pod did not fit; the next trial replaces a pod instead
NO_ROOM = "NoRoom"
#: verdict reasons of trials that ended before what they tried could show
NOT_TRIED = frozenset({"Rejected", "Stopped", "ExternalChange", "TargetGone", "ReplicasChanged", "Reverted", NO_ROOM})


class Strategy(StrEnum):
    """How the candidate is compared; fixed at the trial's start."""

    CANARY = "Canary"  # one pod beside the others, over the same minutes
    SWITCHBACK = "Switchback"  # the whole target: baseline, candidate, baseline; for one replica


class TrialKind(StrEnum):
    """What a trial tries; `plan/accept.py` says what the kinds ask of it."""

    TUNE = "Tune"  # other settings of the engine
    INSTALL = "Install"  # the middleware in the pods
    POLICY = "Policy"  # another token policy, delivered without a restart
    DRAIN = "Drain"  # what a pod needs to end without losing requests


class Desired(StrEnum):
    """What the target should look like. A pure function of the phase, so that a killed operator repeats itself
    safely.
    """

    KEEP = "Keep"  # do not touch
    HOLD = "Hold"  # one pod of the candidate beside the old ones, rollout paused
    SPREAD = "Spread"  # the candidate everywhere, Trimtab's marks kept: the middle of a switchback
    PROMOTE = "Promote"  # the candidate everywhere, then the owner's strategy back
    RESTORE = "Restore"  # the baseline everywhere, then the owner's strategy back
    RELEASE = "Release"  # give back strategy and pause, leave the template: someone else changed it


@dataclass(frozen=True)
class PolicyChange:
    """The token policies of a trial without restarts, as bodies of the policy file. pod: the canary's name."""

    pod: str
    baseline: Mapping[str, Any]
    candidate: Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """A period of a switchback and the pod that served in it: unix seconds, `end` None while it lasts."""

    pod: str
    ip: str | None
    start: float
    end: float | None = None


@dataclass(frozen=True)
class Peer:
    """A pod that served before the trial. place: where it ran (`PodView.place`)."""

    name: str
    place: str = ""


@dataclass(frozen=True)
class TrialRecord:
    """One trial. Times are unix seconds. Everything a restarted operator needs to go on is here."""

    name: str
    number: int
    configuration: Configuration
    baseline: Configuration
    phase: Phase
    phase_since: float
    started_at: float
    #: replicas of the target at the start; a change makes the trial inconclusive
    replicas: int
    origin: str = ""
    #: the candidate was written to the target; if the baseline is there again, its owner reverted it
    applied: bool = False
    #: the pause was seen; from then on an unpaused rollout is someone else's doing
    held: bool = False
    measure_from: float | None = None
    #: where confirmation began: the data before it chose the candidate, the data after it confirms
    confirm_from: float | None = None
    #: windows that the phase had at its latest look
    evaluations: int = 0
    remeasured: int = 0
    metrics_seen_at: float | None = None
    verdict: Verdict | None = None
    infeasible: bool = False
    #: pods that this trial started anew, on the way there and back
    restarts: int = 0
    finished_at: float | None = None
    message: str = ""
    kind: TrialKind = TrialKind.TUNE
    #: what is changed besides settings, in words
    change: str = ""
    #: only for trials of the policy
    policy: PolicyChange | None = None
    strategy: Strategy = Strategy.CANARY
    #: pods that the trial may add (1) instead of replacing one (0)
    max_surge: int = 0
    #: an old pod was still ending while the canary's container ran: both wanted the device
    overlapped: bool = False
    #: deaths of the canary's container that count for nothing, for that reason
    excused: int = 0
    #: of a switchback, in order: baseline, candidate, baseline
    spans: tuple[Span, ...] = ()
    #: the pods that served when the trial began
    peers: tuple[Peer, ...] = ()
    #: since when they had been warm and unchanged
    undisturbed_since: float | None = None
    #: the load when the trial began (`search.context.workload_of`)
    workload: Mapping[str, float] = field(default_factory=dict)

    def to(self, phase: Phase, now: float, message: str, **changes: object) -> TrialRecord:
        """The record in another phase; an end also gets its time."""
        finished = now if phase in ENDED else None
        return replace(self, phase=phase, phase_since=now, message=message, finished_at=finished, **changes)  # type: ignore[arg-type]

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


@dataclass(frozen=True)
class PodView:
    """One pod of the target. `ip` is None until it has one. place: the node, or the slot of this machine; "" where that
    is not known. started_at: unix seconds at which its engine's process started, None where that is not known."""

    name: str
    ip: str | None
    health: PodHealth
    place: str = ""
    started_at: float | None = None


class Template(StrEnum):
    """Whose pod template the target carries."""

    BASELINE = "Baseline"
    CANDIDATE = "Candidate"
    FOREIGN = "Foreign"
    MISSING = "Missing"  # the target itself is gone


@dataclass(frozen=True)
class TargetView:
    """The target as seen now, in a trial's terms."""

    template: Template
    paused: bool
    #: Trimtab's marks are on the target: narrowed strategy, annotation, maybe the pause
    held: bool
    replicas: int
    #: every replica runs the current template and is available
    settled: bool
    canary: tuple[PodView, ...] = ()
    control: tuple[PodView, ...] = ()
    #: pods of the baseline that are on their way out and may still hold their device
    ending: int = 0


@dataclass(frozen=True)
class Evidence:
    """Metrics for the phase at hand. None is "not known"; `metrics_ok` says whether canary and control gave fresh
    samples.
    """

    metrics_ok: bool = False
    problem: str = ""
    recent_canary: Observation | None = None
    recent_control: Observation | None = None
    pairs: Sequence[Pair] = field(default_factory=tuple)
    canary: Observation | None = None
    control: Observation | None = None
    #: the canary's own metrics show the middleware; asked only for trials that install it
    middleware_seen: bool = False
    #: windows before the trial: of the canary's own place beside the control with `own`, else of a pod that is gone
    before: Sequence[Pair] = field(default_factory=tuple)
    own: bool = False
    #: earlier starts of the same configuration
    earlier: tuple[Start, ...] = ()
    #: of a switchback: the baseline after the candidate against the baseline before it
    drift: Sequence[Pair] = field(default_factory=tuple)


@dataclass(frozen=True)
class Wish:
    """What the person wants, read from the tuner: it can end a trial at any time."""

    stop: str = ""  # a reason, when the trial must be rolled back at once (suspend, deletion, mode Recommend)
    approved: bool = False
    rejected: bool = False
