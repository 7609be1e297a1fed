"""What a person reads first: the tuner's phase, its conditions' content and the best gain. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.block import Block
from trimtab.plan.record import Phase, TrialKind, TrialRecord
from trimtab.plan.spec import TunerSpec

#: reason of a verdict that is Better by latency while goodput is equal within noise: its goodput "gain" is noise
LATENCY: Final = "LatencyBetter"


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
    #: goodput: product of the promoted gains - 1; None before the first promotion for goodput
    best_gain: float | None
    #: for the column: the goodput gain, else what the last promotion made better
    best: str


def tally(trials: Sequence[TrialRecord]) -> Tally:
    ended = [t for t in trials if t.ended]
    promoted = [t for t in ended if t.phase is Phase.PROMOTED]
    factor, tuned = 1.0, [t for t in promoted if t.kind is not TrialKind.INSTALL]
    gains = [t.verdict.gain for t in tuned if t.verdict and t.verdict.gain and t.verdict.reason != LATENCY]
    for gain in gains:
        factor *= 1.0 + gain
    # an install may be promoted without a clear gain
    kinds = [t.verdict.kind if t.verdict else None for t in ended if t.phase is not Phase.PROMOTED]
    return Tally(
        total=len(ended),
        promoted=len(promoted),
        rolled_back=sum(t.phase is Phase.ROLLED_BACK for t in ended),
        failed=kinds.count(Kind.ERROR),
        inconclusive=kinds.count(Kind.INCONCLUSIVE),
        best_gain=factor - 1.0 if gains else None,
        best=percent(factor - 1.0) if gains else gain_text(tuned[-1].verdict) if tuned else "",
    )


#: the search is over, or no setting mends what is left; both until the load or the finding changes
_NOTHING_LEFT: Final = frozenset({"Converged", "TuningCannotHelp"})


def tuner_phase(spec: TunerSpec, trial: TrialRecord | None, block: Block | None, *, recommended: bool) -> TunerPhase:
    """The one word of the PHASE column."""
    if trial is not None:
        return TunerPhase.AWAITING_APPROVAL if trial.phase is Phase.AWAITING_APPROVAL else TunerPhase.TUNING
    if spec.suspend:
        return TunerPhase.SUSPENDED
    if block is not None and block.hard:
        return (
            TunerPhase.RECOMMENDED
            if recommended and block.reason in ("OwnedByOther", "OwnerReverts", "TooFewReplicas", "NotPermitted")
            else TunerPhase.PENDING
        )
    if spec.mode == "Recommend":
        return TunerPhase.RECOMMENDED if recommended else TunerPhase.OBSERVING
    if block is not None and block.reason in _NOTHING_LEFT:
        return TunerPhase.CONVERGED
    return TunerPhase.OBSERVING


def gain_text(verdict: Verdict | None) -> str:
    """What a verdict gained, short: goodput, or for a latency verdict the latency that fell most (p50, canary against
    control).
    """
    if verdict is None:
        return ""
    if verdict.reason != LATENCY:
        return percent(verdict.gain)
    falls: list[tuple[float, str]] = []
    for name in ("ttft", "tpot"):
        ours, theirs = (verdict.numbers.get(f"{arm}_{name}_p50_seconds") for arm in ("canary", "control"))
        if ours is not None and theirs:
            falls.append((ours / theirs - 1.0, name.upper()))
    return f"{min(falls)[1]} {percent(min(falls)[0])}" if falls else "latency"


def percent(value: float | None) -> str:
    """+12.3%, or empty when unknown."""
    return "" if value is None else f"{value * 100:+.1f}%"
