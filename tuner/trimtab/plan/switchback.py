"""The switchback: the whole target with the baseline, the candidate and the baseline again. For one replica. Pure.

    MeasuringBefore -> Starting -> WarmingUp -> Measuring -> Returning -> MeasuringAfter -> Promoting -> Verifying
      baseline          candidate ...                        baseline ...                   candidate

The phases that it shares with the canary are the canary's own. What the target carries follows from the phase, so a
kill repeats a step. It costs 3 restarts, 4 where a promotion is taken back.

Hazards: the two settings serve at different hours. The judge pairs each window of the candidate with one before and
one after it, which takes out a steady drift; what the baseline drifted between its two periods widens the verdict by
half of it, because a sudden change may lie anywhere. Nothing serves while the only pod is restarted, unless one more
fits beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from trimtab.judge.guardrail import serving_breach, startup_breach
from trimtab.judge.verdict import Kind, Verdict, evaluate
from trimtab.plan import trial
from trimtab.plan.accept import Step, accept
from trimtab.plan.drift import less_drift
from trimtab.plan.record import (
    NO_ROOM,
    Desired,
    Evidence,
    Phase,
    PodView,
    Span,
    Strategy,
    TargetView,
    Template,
    TrialKind,
    TrialRecord,
    Wish,
)
from trimtab.plan.room import excused, no_room, seen_beside
from trimtab.plan.spec import TunerSpec
from trimtab.plan.trial import MAX_REMEASURE, MIN_COVERAGE, Situation, breached, cancel, roll_back

#: pod restarts that one may need: there, back, there again, and back when the promotion is taken back
MOST_RESTARTS: Final = 4
#: trials that need no gain: what was before tells whether anything is worse, so they stay when it is not
_NO_RETURN: Final = frozenset({TrialKind.INSTALL, TrialKind.DRAIN})


def advance(
    spec: TunerSpec, record: TrialRecord, view: TargetView, evidence: Evidence, wish: Wish, now: float
) -> TrialRecord:
    """The next record of a trial of either strategy; equal to `record` when nothing is to be written."""
    phases = PHASES if record.strategy is Strategy.SWITCHBACK else None
    return trial.advance(spec, record, view, evidence, wish, now, phases)


def desired(record: TrialRecord, template: Template) -> Desired:
    """What the target should look like, for either strategy. Foreign templates are never overwritten."""
    phase = record.phase
    if record.strategy is Strategy.CANARY or template in (Template.FOREIGN, Template.MISSING):
        return trial.desired(phase, template)
    if phase is Phase.STARTING or (phase is Phase.PROMOTING and template is Template.BASELINE):
        return Desired.SPREAD
    if phase in (Phase.MEASURING_BEFORE, Phase.MEASURING_AFTER):
        return Desired.KEEP
    return Desired.RESTORE if phase is Phase.RETURNING else trial.desired(phase, template)


def measured(record: TrialRecord, spec: TunerSpec, now: float) -> bool:
    """Whether the period under way is long enough to be judged or left; its samples are needed then."""
    open_span = record.spans[-1] if record.spans else None
    return open_span is not None and open_span.end is None and now - open_span.start >= spec.rollout.measurement_seconds


# --- the baseline serves ----------------------------------------------------------------------------------------------
def _awaiting_approval(at: Situation) -> TrialRecord:
    after = trial.PHASES[Phase.AWAITING_APPROVAL](at)
    if after.phase is not Phase.STARTING:
        return after
    text = "approved; measuring the baseline first"
    return at.record.to(Phase.MEASURING_BEFORE, at.now, text, started_at=at.now)


def _measuring_before(at: Situation) -> TrialRecord:
    if trouble := _baseline_trouble(at, 0):
        return trouble
    if not at.record.spans:
        return _began(at, at.view.control[0])
    if not measured(at.record, at.spec, at.now):
        return at.record
    if again := _measure_again(at, 0):
        return again
    text = "the baseline is measured; rolling the candidate out to the whole target"
    return _ended(at).to(Phase.STARTING, at.now, text, restarts=at.record.restarts + at.record.replicas)


def _measuring_after(at: Situation) -> TrialRecord:
    if trouble := _baseline_trouble(at, 2):
        return trouble
    if len(at.record.spans) < 3:
        return _began(at, at.view.control[0]) if at.in_phase >= at.spec.rollout.warmup_seconds else at.record
    if not measured(at.record, at.spec, at.now):
        return at.record
    if again := _measure_again(at, 2):
        return again
    step, verdict = accept(at.record.kind, _judged(at), last=True, confirm=False, seen=True)
    return _promote(at, verdict) if step is Step.PROMOTE else roll_back(at, verdict)


def _baseline_trouble(at: Situation, number: int) -> TrialRecord | None:
    """While the baseline serves alone, nothing of the target is Trimtab's doing: every change ends the trial."""
    if at.view.template is Template.CANDIDATE or at.view.paused:
        return cancel(at, "ExternalChange", "the Deployment was rolled out or paused by someone else during the trial")
    pods = [p for p in at.view.control if p.health.ready]
    span = at.record.spans[number] if len(at.record.spans) > number else None
    if len(pods) != 1 or (span is not None and pods[0].name != span.pod):
        text = "the pod that was measured is gone or not ready, so there is nothing to compare with"
        return roll_back(at, Verdict(Kind.INCONCLUSIVE, "ControlLost", text))
    return _metrics_lost(at)


# --- the candidate serves ---------------------------------------------------------------------------------------------
def _starting(at: Situation) -> TrialRecord:
    r, view = at.record, at.view
    if not r.applied and view.template is Template.BASELINE and view.paused:
        return cancel(at, "ExternalChange", "the Deployment was paused by someone else before the trial touched it")
    r = replace(seen_beside(r, view), applied=r.applied or view.template is Template.CANDIDATE)
    at = replace(at, record=r)
    if view.paused:
        return _paused(at)
    deadline = at.spec.rollout.progress_deadline_seconds
    for pod in view.canary:
        if breach := startup_breach(pod.health, at.in_phase, deadline):
            return excused(r, view, breach) or breached(at, breach)
    if full := no_room(r, view, at.in_phase, auto=at.spec.rollout.max_surge is None):
        back = roll_back(at, Verdict(Kind.INCONCLUSIVE, NO_ROOM, full))
        return replace(back, restarts=0)  # it never ran
    if at.in_phase > deadline:
        text = f"the candidate did not take over within {deadline:.0f} s"
        return roll_back(at, Verdict(Kind.ERROR, "StartTimedOut", text))
    if _took_over(view):
        text = f"{view.canary[0].name} serves alone with the candidate; warming up"
        return r.to(Phase.WARMING_UP, at.now, text, metrics_seen_at=at.now)
    return r


def _took_over(view: TargetView) -> bool:
    ready = len(view.canary) == 1 and view.canary[0].health.ready
    return view.template is Template.CANDIDATE and view.settled and not view.control and ready


def _warming_up(at: Situation) -> TrialRecord:
    if trouble := _candidate_trouble(at):
        return trouble
    if at.in_phase < at.spec.rollout.warmup_seconds:
        return at.record
    began = _began(at, at.view.canary[0])
    return began.to(Phase.MEASURING, at.now, "measuring the candidate", measure_from=at.now)


def _measuring(at: Situation) -> TrialRecord:
    if trouble := _candidate_trouble(at):
        return trouble
    if not measured(at.record, at.spec, at.now):
        return at.record
    if again := _measure_again(at, 1):
        return again
    if at.record.kind in _NO_RETURN:
        step, verdict = accept(at.record.kind, _judged(at), last=True, confirm=False, seen=at.evidence.middleware_seen)
        return _promote(at, verdict) if step is Step.PROMOTE else roll_back(at, verdict)
    text = "the candidate is measured; back to the baseline, to measure it again"
    moved = at.record.restarts + at.record.replicas
    return _ended(at).to(Phase.RETURNING, at.now, text, applied=False, restarts=moved)


def _candidate_trouble(at: Situation) -> TrialRecord | None:
    """Guardrails against the baseline's last minutes, and lost footing."""
    if at.view.paused:
        return _paused(at)
    span = at.record.spans[1] if len(at.record.spans) > 1 else None
    if len(at.view.canary) != 1 or (span is not None and at.view.canary[0].name != span.pod):
        text = "the candidate's pod is gone (evicted or deleted)"
        return roll_back(at, Verdict(Kind.INCONCLUSIVE, "CanaryLost", text))
    limits = trial.guardrail_limits(at.spec)
    health = at.view.canary[0].health
    if breach := serving_breach(health, at.evidence.recent_canary, at.evidence.recent_control, limits):
        return breached(at, breach)
    return _metrics_lost(at)


# --- on the way -------------------------------------------------------------------------------------------------------
def _returning(at: Situation) -> TrialRecord:
    view = at.view
    if view.template is Template.BASELINE and view.settled and not view.held and not view.canary:
        text = "the baseline serves again; warming up"
        return at.record.to(Phase.MEASURING_AFTER, at.now, text, metrics_seen_at=at.now)
    deadline = at.spec.rollout.progress_deadline_seconds
    if at.in_phase > deadline:
        text = f"the baseline was not back within {deadline:.0f} s"
        return roll_back(at, Verdict(Kind.ERROR, "ReturnTimedOut", text))
    return at.record


def _promote(at: Situation, verdict: Verdict) -> TrialRecord:
    """The whole target once more, where it does not run the candidate already."""
    moved = 0 if at.view.template is Template.CANDIDATE else at.record.replicas
    text = f"{verdict.message.rstrip('.')}; rolling out"
    return _ended(at).to(
        Phase.PROMOTING, at.now, text, verdict=verdict, restarts=at.record.restarts + moved,
        applied=at.view.template is Template.CANDIDATE, overlapped=False, excused=0,
    )  # fmt: skip


def _promoting(at: Situation) -> TrialRecord:
    if not at.record.applied and at.view.template is Template.BASELINE and at.view.paused:
        return cancel(at, "ExternalChange", "the Deployment was paused by someone else before the promotion")
    applied = at.record.applied or at.view.template is Template.CANDIDATE
    return trial.PHASES[Phase.PROMOTING](replace(at, record=replace(at.record, applied=applied)))


# --- small helpers ----------------------------------------------------------------------------------------------------
def _paused(at: Situation) -> TrialRecord:
    text = "the rollout was paused by someone else during the trial; the untested configuration is rolled back"
    return roll_back(at, Verdict(Kind.INCONCLUSIVE, "ExternalChange", text))


def _metrics_lost(at: Situation) -> TrialRecord | None:
    seen = at.record.metrics_seen_at or at.record.phase_since
    if at.now - seen <= at.spec.guardrails.max_metrics_gap_seconds:
        return None
    text = f"no metrics for {at.now - seen:.0f} s ({at.evidence.problem or 'no fresh samples'})"
    return roll_back(at, Verdict(Kind.ERROR, "MetricsLost", text))


def _began(at: Situation, pod: PodView) -> TrialRecord:
    return replace(at.record, spans=(*at.record.spans, Span(pod.name, pod.ip, at.now)))


def _ended(at: Situation) -> TrialRecord:
    """The record with its last period closed."""
    *before, last = at.record.spans
    return replace(at.record, spans=(*before, last if last.end is not None else replace(last, end=at.now)))


def _measure_again(at: Situation, number: int) -> TrialRecord | None:
    """Begin the period anew where samples of a good part of it are lost, a bounded number of times."""
    seen = at.evidence.canary if number == 1 else at.evidence.control
    asked = at.spec.rollout.measurement_seconds
    covered = seen.window_seconds if seen is not None else 0.0
    if covered >= MIN_COVERAGE * asked:
        return None
    if at.record.remeasured < MAX_REMEASURE:
        anew = replace(at.record.spans[number], start=at.now)
        text = f"samples cover only {covered:.0f} of {asked:.0f} s; measuring anew"
        spans = (*at.record.spans[:number], anew)
        return replace(at.record, spans=spans, remeasured=at.record.remeasured + 1, message=text)
    text = f"samples cover only {covered:.0f} of {asked:.0f} s, again and again"
    return roll_back(at, Verdict(Kind.ERROR, "MetricsMissing", text))


def _judged(at: Situation) -> Verdict:
    """The candidate against the baseline of before and, where it was measured again, of after."""
    canary, control = at.evidence.canary, at.evidence.control
    goal = replace(trial.objective(at.spec), pod_variation_percent=0.0)  # one place, compared with itself
    verdict = evaluate(at.evidence.pairs, canary, control, goal)
    return verdict if len(at.record.spans) < 3 else less_drift(verdict, at.evidence.drift, goal)


PHASES: Final[Mapping[Phase, Callable[[Situation], TrialRecord]]] = {
    **trial.PHASES,
    Phase.AWAITING_APPROVAL: _awaiting_approval,
    Phase.MEASURING_BEFORE: _measuring_before,
    Phase.STARTING: _starting,
    Phase.WARMING_UP: _warming_up,
    Phase.MEASURING: _measuring,
    Phase.RETURNING: _returning,
    Phase.MEASURING_AFTER: _measuring_after,
    Phase.PROMOTING: _promoting,
}
