"""What a judged measurement means for a trial, by its kind: the one place where kinds differ in judging. Pure."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import TrialKind


class Step(StrEnum):
    PROMOTE = "Promote"
    CONFIRM = "Confirm"
    WAIT = "Wait"  # measure longer
    ROLL_BACK = "RollBack"


#: more windows or requests may still come: an install waits for them as long as it may
_TOO_LITTLE: Final = frozenset({"NotEnoughWindows", "NotEnoughRequests", "MetricsMissing"})


def accept(
    kind: TrialKind, verdict: Verdict, *, last: bool, confirm: bool, seen: bool = False, enough: bool = True
) -> tuple[Step, Verdict]:
    """The next step, and the verdict to keep. The judge may be asked at any look; what is final ends the measurement.

    last: the measurement cannot be made longer. confirm: a gain is measured again. seen: the canary shows the
    middleware. enough: it is long enough to say that nothing is worse. An install needs no gain: it must be seen, and
    nothing may be worse.
    """
    if kind in (TrialKind.INSTALL, TrialKind.DRAIN):
        return _accept_install(verdict, last=last, seen=seen or kind is TrialKind.DRAIN, enough=enough)
    if verdict.kind is Kind.BETTER:
        return (Step.CONFIRM if confirm else Step.PROMOTE), verdict
    if not verdict.final and not last:
        return Step.WAIT, verdict
    return Step.ROLL_BACK, verdict


def _accept_install(verdict: Verdict, *, last: bool, seen: bool, enough: bool) -> tuple[Step, Verdict]:
    if verdict.kind not in (Kind.BETTER, Kind.INCONCLUSIVE):
        return Step.ROLL_BACK, verdict
    if (verdict.reason in _TOO_LITTLE or not seen or not enough) and not last:
        return Step.WAIT, verdict
    if verdict.reason == "MetricsMissing":
        return Step.ROLL_BACK, verdict
    if not seen:
        text = "the canary serves, but its /metrics shows no middleware, or the operator cannot reach it"
        return Step.ROLL_BACK, replace(verdict, kind=Kind.ERROR, reason="MiddlewareNotSeen", message=text)
    text = f"the canary shows what was added and nothing is worse: {verdict.message}"
    return Step.PROMOTE, replace(verdict, reason="NothingWorse", message=text)
