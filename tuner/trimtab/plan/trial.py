"""The trial's state machine: one function per phase, a table from phase to function.

`advance(spec, record, view, evidence, wish, now)` gives the next record. The shell persists it *before* it acts on it,
and what it then does to the target follows from the phase alone (`desired`). So a kill between any two writes repeats
a step, never skips one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from trimtab.judge import measures
from trimtab.judge.guardrail import Breach, GuardrailLimits, serving_breach, startup_breach
from trimtab.judge.settle import LEAST_WINDOWS, unsettled
from trimtab.judge.verdict import Kind, Objective, Pair, Verdict, evaluate
from trimtab.judge.windows import usable
from trimtab.plan.accept import Step, accept
from trimtab.plan.looks import age_remark, count, evaluation_start, longest_warmup, window_seconds
from trimtab.plan.record import (
    BASELINE_EXPECTED,
    ENDED,
    NO_ROOM,
    SERVING,
    Desired,
    Evidence,
    Phase,
    Strategy,
    TargetView,
    Template,
    TrialKind,
    TrialRecord,
    Wish,
)
from trimtab.plan.room import excused, no_room, seen_beside
from trimtab.plan.spec import TunerSpec

#: how often a measurement may begin anew because samples were lost (an operator restart with direct scrapes)
MAX_REMEASURE: Final = 2
#: share of a measurement that samples must cover
MIN_COVERAGE: Final = 0.6
#: breaches that are a measurement (it serves, but worse); the others are failures to serve
_SERVES_WORSE: Final = frozenset({"ErrorsTooHigh", "LatencyTooHigh"})
#: `metrics_seen_at` is written only this often, so that a tick without news writes no status
METRICS_STAMP_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Situation:
    """Everything a phase looks at."""

    spec: TunerSpec
    record: TrialRecord
    view: TargetView
    evidence: Evidence
    wish: Wish
    now: float

    @property
    def in_phase(self) -> float:
        return self.now - self.record.phase_since


def desired(phase: Phase, template: Template) -> Desired:
    """What the target should look like in `phase`, given whose template it carries. Foreign templates are never
    overwritten.
    """
    if phase in ENDED or phase is Phase.AWAITING_APPROVAL or template is Template.MISSING:
        return Desired.KEEP
    if template is Template.FOREIGN:
        return Desired.RELEASE
    if phase is Phase.STARTING:
        return Desired.HOLD
    if phase in SERVING:
        return Desired.KEEP  # held since STARTING; whoever lifts the pause now ends the trial, they are not fought
    return Desired.RESTORE if phase is Phase.ROLLING_BACK else Desired.PROMOTE


def advance(
    spec: TunerSpec,
    record: TrialRecord,
    view: TargetView,
    evidence: Evidence,
    wish: Wish,
    now: float,
    phases: Mapping[Phase, Callable[[Situation], TrialRecord]] | None = None,
) -> TrialRecord:
    """The next record; equal to `record` when nothing is to be written. phases: of another strategy than the canary."""
    if record.ended:
        return record
    at = Situation(spec, _stamp(record, evidence, now), view, evidence, wish, now)
    return outside(at) or (phases or PHASES)[record.phase](at)


def objective(spec: TunerSpec) -> Objective:
    o = spec.objective
    return Objective(
        ttft_seconds=o.slo.ttft_seconds,
        tpot_seconds=o.slo.tpot_seconds,
        min_gain_percent=o.min_gain_percent,
        max_latency_regression_percent=o.max_latency_regression_percent,
        start_variation_percent=o.variation.start_percent,
        pod_variation_percent=o.variation.pod_percent,
        ttft_weight=o.weights.ttft,
        tpot_weight=o.weights.tpot,
        ttft_p99_limit_seconds=o.limits.ttft_p99_seconds,
        max_error_percent=o.limits.error_percent,
        max_truncated_percent=o.limits.truncated_percent,
    )


def guardrail_limits(spec: TunerSpec) -> GuardrailLimits:
    g = spec.guardrails
    slo = spec.objective.slo
    return GuardrailLimits(
        g.max_error_percent, g.max_latency_ratio, g.max_restarts, g.min_requests, slo.ttft_seconds, slo.tpot_seconds
    )


# --- what can end any phase -------------------------------------------------------------------------------------------
def outside(at: Situation) -> TrialRecord | None:
    """Causes from outside the trial: the target is gone or changed by someone else, or the person wants it stopped."""
    r, view = at.record, at.view
    if view.template is Template.MISSING:
        return cancel(at, "TargetGone", "the target was deleted during the trial")
    if view.template is Template.FOREIGN and (r.phase is not Phase.ROLLING_BACK or not view.held):
        return _foreign(at)
    if r.phase is Phase.AWAITING_APPROVAL or r.phase is Phase.ROLLING_BACK:
        return None
    if at.wish.stop:
        return roll_back(at, _verdict(Kind.INCONCLUSIVE, "Stopped", at.wish.stop))
    if view.template is Template.BASELINE and (r.applied or r.phase not in BASELINE_EXPECTED):
        text = "the target's owner put the old pod template back during the trial; Trimtab does not fight over it"
        return roll_back(at, _verdict(Kind.INCONCLUSIVE, "Reverted", text))
    if view.replicas != r.replicas:
        text = (
            f"replicas went from {r.replicas} to {view.replicas} during the trial, so canary and "
            "control saw different loads"
        )
        return roll_back(at, _verdict(Kind.INCONCLUSIVE, "ReplicasChanged", text))
    return None


def _foreign(at: Situation) -> TrialRecord:
    """Someone changed the pod template: give back what is ours, then end. Never write over their change."""
    text = (
        "the pod template was changed by someone else during the trial; their change stays, Trimtab's marks are removed"
    )
    if at.record.phase is not Phase.AWAITING_APPROVAL and at.view.held:
        return at.record.to(
            Phase.ROLLING_BACK, at.now, text, verdict=_verdict(Kind.INCONCLUSIVE, "ExternalChange", text)
        )
    return cancel(at, "ExternalChange", text)


def cancel(at: Situation, reason: str, text: str) -> TrialRecord:
    verdict = at.record.verdict or _verdict(Kind.INCONCLUSIVE, reason, text)
    return at.record.to(Phase.CANCELLED, at.now, text, verdict=verdict)


def roll_back(at: Situation, verdict: Verdict, *, infeasible: bool = False) -> TrialRecord:
    """Begin the way back; counts the pods that must be started anew for it."""
    # a pod added by surge is only removed again; each other pod of the candidate is started anew with the baseline
    spare = at.record.max_surge if at.record.strategy is Strategy.CANARY else 0
    anew = max(0, len(at.view.canary) - spare) if at.view.template is Template.CANDIDATE else 0
    moved = _restarts(at.record, anew)
    return at.record.to(
        Phase.ROLLING_BACK,
        at.now,
        verdict.message,
        verdict=verdict,
        infeasible=infeasible,
        restarts=at.record.restarts + moved,
    )


def breached(at: Situation, breach: Breach) -> TrialRecord:
    kind = Kind.WORSE if breach.reason in _SERVES_WORSE else Kind.ERROR
    return roll_back(at, _verdict(kind, breach.reason, breach.message), infeasible=breach.infeasible)


# --- phases -----------------------------------------------------------------------------------------------------------
def _awaiting_approval(at: Situation) -> TrialRecord:
    if at.wish.rejected:
        return cancel(at, "Rejected", "rejected by annotation")
    if at.wish.stop:
        return cancel(at, "Stopped", at.wish.stop)
    if at.wish.approved:
        return at.record.to(Phase.STARTING, at.now, "approved; starting one canary pod", started_at=at.now)
    return at.record


def _starting(at: Situation) -> TrialRecord:
    r = at.record
    if not r.applied and at.view.template is Template.BASELINE and at.view.paused:
        return cancel(at, "ExternalChange", "the Deployment was paused by someone else before the trial touched it")
    if not r.applied and at.view.template is Template.CANDIDATE:
        r = replace(r, applied=True)
        at = replace(at, record=r)
    if not r.held and at.view.paused and at.view.canary:
        r = replace(r, held=True, restarts=r.restarts + _restarts(r, len(at.view.canary)))
        at = replace(at, record=r)
    elif r.held and not at.view.paused:
        return _unpaused(at)
    deadline = at.spec.rollout.progress_deadline_seconds
    at = replace(at, record=(r := seen_beside(r, at.view)))
    for pod in at.view.canary:
        if breach := startup_breach(pod.health, at.in_phase, deadline):
            return excused(r, at.view, breach) or breached(at, breach)
    if full := no_room(r, at.view, at.in_phase, auto=at.spec.rollout.max_surge is None):
        return replace(roll_back(at, _verdict(Kind.INCONCLUSIVE, NO_ROOM, full)), restarts=0)  # it never ran
    if not at.view.canary and at.in_phase > deadline:
        text = _NO_CANARY[at.record.kind is TrialKind.POLICY].format(deadline)
        return roll_back(at, _verdict(Kind.ERROR, "NoCanary", text))
    if r.held and at.view.canary and all(p.health.ready for p in at.view.canary):
        return r.to(
            Phase.WARMING_UP, at.now, f"canary {at.view.canary[0].name} is ready; warming up", metrics_seen_at=at.now
        )
    return r


def _unpaused(at: Situation) -> TrialRecord:
    text = "the rollout was resumed by someone else before the verdict; the untested configuration is rolled back"
    return roll_back(at, _verdict(Kind.INCONCLUSIVE, "ExternalChange", text))


def _serving_trouble(at: Situation) -> TrialRecord | None:
    """Guardrails and lost footing while the canary serves."""
    if not at.view.paused:
        return _unpaused(at)
    if not any(p.health.ready for p in at.view.control):
        text = "no control pod is ready, so there is nothing to compare with"
        return roll_back(at, _verdict(Kind.INCONCLUSIVE, "ControlLost", text))
    if not at.view.canary:
        return roll_back(at, _verdict(Kind.INCONCLUSIVE, "CanaryLost", "the canary pod is gone (evicted or deleted)"))
    limits = guardrail_limits(at.spec)
    for pod in at.view.canary:
        if breach := serving_breach(pod.health, at.evidence.recent_canary, at.evidence.recent_control, limits):
            return breached(at, breach)
    seen = at.record.metrics_seen_at or at.record.phase_since
    if at.now - seen > at.spec.guardrails.max_metrics_gap_seconds:
        text = (
            f"no metrics for {at.now - seen:.0f} s ({at.evidence.problem or 'no fresh samples'}); "
            "nothing unwatched stays in traffic"
        )
        return roll_back(at, _verdict(Kind.ERROR, "MetricsLost", text))
    return None


def _warming_up(at: Situation) -> TrialRecord:
    if trouble := _serving_trouble(at):
        return trouble
    spec, r = at.spec, at.record
    if at.in_phase < spec.rollout.warmup_seconds:
        return r
    seen, over = count(spec, r.phase_since, at.now), at.in_phase >= longest_warmup(spec)
    if seen < LEAST_WINDOWS or over:
        moving = unsettled(at.evidence.pairs) if over else None
        return _measure(at, f"measuring canary against control{f', though {moving}' if moving else ''}")
    if evaluation_start(spec, r, at.now) is None:
        return r
    moving = unsettled(at.evidence.pairs)
    if moving is None:
        return _measure(at, "the canary has settled; measuring it against control")
    return replace(r, evaluations=seen, message=f"warming up: {moving}")


def _measure(at: Situation, text: str) -> TrialRecord:
    return at.record.to(Phase.MEASURING, at.now, text, measure_from=at.now, evaluations=0)


def _measuring(at: Situation) -> TrialRecord:
    if trouble := _serving_trouble(at):
        return trouble
    r, rollout = at.record, at.spec.rollout
    start = evaluation_start(at.spec, r, at.now)
    if start is None:
        return r
    if again := _measure_again(at, start):
        return again
    elapsed = at.now - start
    last, enough = (elapsed >= s for s in (rollout.max_measurement_seconds, rollout.measurement_seconds))
    confirm = rollout.confirmation_seconds > 0
    verdict = _evaluate(at)
    step, verdict = accept(
        r.kind, verdict, last=last, confirm=confirm, seen=at.evidence.middleware_seen, enough=enough
    )  # fmt: skip
    said = verdict.message.rstrip(".")
    if step is Step.CONFIRM:
        text = f"{said}; measuring again before promotion"
        return r.to(Phase.CONFIRMING, at.now, text, confirm_from=at.now, verdict=verdict)
    if step is Step.PROMOTE:
        return _promote(at, verdict)
    if step is Step.WAIT:
        text = f"{said}; measuring longer"
        return replace(r, evaluations=count(at.spec, start, at.now), verdict=verdict, message=text)
    return roll_back(at, verdict)


def _measure_again(at: Situation, start: float) -> TrialRecord | None:
    """Begin the measurement anew when samples of a good part of it are lost, a bounded number of times."""
    covered = min((o.window_seconds if o else 0.0) for o in (at.evidence.canary, at.evidence.control))
    if covered >= MIN_COVERAGE * (at.now - start):
        return None
    if at.record.remeasured < MAX_REMEASURE:
        text = f"samples cover only {covered:.0f} of {at.now - start:.0f} s; measuring anew"
        return at.record.to(
            Phase.MEASURING, at.now, text, measure_from=at.now, evaluations=0, remeasured=at.record.remeasured + 1
        )
    text = f"samples cover only {covered:.0f} of {at.now - start:.0f} s, again and again"
    return roll_back(at, _verdict(Kind.ERROR, "MetricsMissing", text))


def _confirming(at: Situation) -> TrialRecord:
    if trouble := _serving_trouble(at):
        return trouble
    start = evaluation_start(at.spec, at.record, at.now)
    if start is None:
        return at.record
    if again := _measure_again(at, start):
        return again
    since = at.record.confirm_from if at.record.confirm_from is not None else at.record.phase_since
    verdict = _evaluate(at)
    fresh = mean_gain([p for p in at.evidence.pairs if p.start >= since - 1e-6], objective(at.spec), verdict.reason)
    # windows begin with the measurement: the first whole one since then may begin a window later
    enough = at.now - since >= at.spec.rollout.confirmation_seconds + 2 * window_seconds(at.spec)
    if verdict.kind is Kind.BETTER and fresh is None and not enough:
        return at.record
    own = verdict.numbers.get("bias") or 0.0  # what the pod had before the trial is no gain
    if verdict.kind is Kind.BETTER and fresh is not None and (fresh > own or verdict.reason == "LatencyBetter"):
        return _promote(at, verdict)
    if verdict.kind is Kind.BETTER:
        text = f"a first measurement was better, the second was not; {verdict.message}"
        verdict = replace(verdict, kind=Kind.INCONCLUSIVE, reason="NotConfirmed", message=text)
    return roll_back(at, verdict)


def _evaluate(at: Situation) -> Verdict:
    seen = at.evidence
    if seen.canary is None or seen.control is None:
        return _verdict(Kind.INCONCLUSIVE, "MetricsMissing", "the metrics source has no samples of canary or control")
    goal = objective(at.spec)
    if at.record.kind is TrialKind.POLICY:
        goal = replace(goal, start_variation_percent=0.0)  # nothing is started anew
    verdict = evaluate(
        seen.pairs, seen.canary, seen.control, goal, seen.before, own=seen.own, earlier=seen.earlier
    )  # fmt: skip
    remark = age_remark(at.record, at.view)
    return replace(verdict, message=f"{verdict.message.rstrip('.')}; {remark}.") if remark else verdict


def mean_gain(pairs: Sequence[Pair], goal: Objective, reason: str = "") -> float | None:
    """Mean difference canary - control over `pairs` of what decided, as a share: goodput, or SLO attainment where the
    verdict's `reason` says so. None when no pair knows both."""
    by_attainment = reason.startswith("Attainment")
    known = usable(pairs)
    found = measures.attainment(known, (), goal) if by_attainment else measures.goodput(known, (), goal)
    return fmean(found.values) if found is not None else None


def _promote(at: Situation, verdict: Verdict) -> TrialRecord:
    rest = max(0, at.view.replicas - len(at.view.canary))
    return at.record.to(
        Phase.PROMOTING,
        at.now,
        f"{verdict.message.rstrip('.')}; rolling out to {rest} more pods",
        verdict=verdict,
        restarts=at.record.restarts + _restarts(at.record, rest),
    )


def _promoting(at: Situation) -> TrialRecord:
    deadline = at.spec.rollout.progress_deadline_seconds * max(1, at.record.replicas - 1)
    at = replace(at, record=seen_beside(at.record, at.view))
    for pod in at.view.canary:
        if breach := startup_breach(pod.health, 0.0, deadline):
            return excused(at.record, at.view, breach) or breached(at, breach)
    if at.in_phase > deadline:
        text = f"the promotion did not finish within {deadline:.0f} s"
        return roll_back(at, _verdict(Kind.ERROR, "PromotionTimedOut", text))
    if at.view.settled and not at.view.control and not at.view.held:
        return at.record.to(Phase.VERIFYING, at.now, "promoted; watching the fleet", metrics_seen_at=at.now)
    return at.record


def _verifying(at: Situation) -> TrialRecord:
    """Guardrails over the promoted fleet, against nothing but itself: crashes and errors, since the control is gone."""
    limits = guardrail_limits(at.spec)
    for pod in at.view.canary:
        if breach := serving_breach(pod.health, at.evidence.recent_canary, None, limits):
            return breached(at, breach)
    if at.in_phase >= at.spec.rollout.verification_seconds:
        gain = at.record.verdict.message if at.record.verdict else ""
        return at.record.to(Phase.PROMOTED, at.now, f"promoted: {gain}")
    return at.record


def _rolling_back(at: Situation) -> TrialRecord:
    if at.view.template is Template.BASELINE and at.view.settled and not at.view.held:
        why = at.record.verdict.message if at.record.verdict else at.record.message
        return at.record.to(Phase.ROLLED_BACK, at.now, why)
    return at.record


PHASES: Final[Mapping[Phase, Callable[[Situation], TrialRecord]]] = {
    Phase.AWAITING_APPROVAL: _awaiting_approval,
    Phase.STARTING: _starting,
    Phase.WARMING_UP: _warming_up,
    Phase.MEASURING: _measuring,
    Phase.CONFIRMING: _confirming,
    Phase.PROMOTING: _promoting,
    Phase.VERIFYING: _verifying,
    Phase.ROLLING_BACK: _rolling_back,
}


#: by whether the trial is one of the policy
_NO_CANARY: Final = {
    False: "no canary pod appeared within {:.0f} s (quota, no room on a node, or an admission policy)",
    True: "the canary pod did not take the policy within {:.0f} s; GET /trimtab/status on it says why",
}


# --- small helpers ----------------------------------------------------------------------------------------------------
def _stamp(record: TrialRecord, evidence: Evidence, now: float) -> TrialRecord:
    """Remember when metrics were last seen, coarsely."""
    if not evidence.metrics_ok:
        return record
    if record.metrics_seen_at is not None and now - record.metrics_seen_at < METRICS_STAMP_SECONDS:
        return record
    return replace(record, metrics_seen_at=now)


def _verdict(kind: Kind, reason: str, message: str) -> Verdict:
    return Verdict(kind=kind, reason=reason, message=message)


def _restarts(record: TrialRecord, pods: int) -> int:
    """Pods that are started anew when so many move: a policy moves without."""
    return 0 if record.kind is TrialKind.POLICY else pods
