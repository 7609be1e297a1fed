"""What a person reads first: the tuner's phase, its conditions' content and the best gain. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.judge.verdict import Kind
from trimtab.plan.preconditions import Block
from trimtab.plan.record import Phase, TrialRecord
from trimtab.plan.spec import TunerSpec


class TunerPhase(StrEnum):
    PENDING = "Pending"  # something must be mended first
    OBSERVING = "Observing"  # healthy, waiting for its turn
    TUNING = "Tuning"  # a trial is in flight
    AWAITING_APPROVAL = "AwaitingApproval"
    RECOMMENDED = "Recommended"  # says what it would do, does nothing
    CONVERGED = "Converged"
    SUSPENDED = "Suspended"
    FAILED = "Failed"  # the spec cannot be worked with


@dataclass(frozen=True)
class Tally:
    """Ended trials by how they ended. Chained gain: each promotion was measured against the configuration before it."""

    total: int
    promoted: int
    rolled_back: int
    failed: int
    inconclusive: int
    #: product of the promoted gains - 1, None before the first promotion
    best_gain: float | None


def tally(trials: Sequence[TrialRecord]) -> Tally:
    ended = [t for t in trials if t.ended]
    factor, promoted = 1.0, [t for t in ended if t.phase is Phase.PROMOTED]
    for t in promoted:
        factor *= 1.0 + (t.verdict.gain or 0.0 if t.verdict else 0.0)
    kinds = [t.verdict.kind if t.verdict else None for t in ended]
    return Tally(
        total=len(ended),
        promoted=len(promoted),
        rolled_back=sum(t.phase is Phase.ROLLED_BACK for t in ended),
        failed=kinds.count(Kind.ERROR),
        inconclusive=kinds.count(Kind.INCONCLUSIVE),
        best_gain=factor - 1.0 if promoted else None,
    )


def tuner_phase(spec: TunerSpec, trial: TrialRecord | None, block: Block | None, *, recommended: bool) -> TunerPhase:
    """The one word of the PHASE column."""
    if trial is not None:
        return TunerPhase.AWAITING_APPROVAL if trial.phase is Phase.AWAITING_APPROVAL else TunerPhase.TUNING
    if spec.suspend:
        return TunerPhase.SUSPENDED
    if block is not None and block.hard:
        return (
            TunerPhase.RECOMMENDED
            if recommended and block.reason in ("OwnedByOther", "OwnerReverts", "TooFewReplicas")
            else TunerPhase.PENDING
        )
    if spec.mode == "Recommend":
        return TunerPhase.RECOMMENDED if recommended else TunerPhase.OBSERVING
    if block is not None and block.reason == "Converged":
        return TunerPhase.CONVERGED
    return TunerPhase.OBSERVING


def percent(value: float | None) -> str:
    """+12.3%, or empty when unknown."""
    return "" if value is None else f"{value * 100:+.1f}%"
