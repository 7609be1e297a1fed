"""What must hold before a trial may start: a table from reason to a small pure check.

Messages hold no countdowns: they land in a condition, and a text that changes on every tick is a write on every tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.diagnose.finding import Finding, stops_tuning
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.plan import around as surroundings
from trimtab.plan.around import Around
from trimtab.plan.block import Block
from trimtab.plan.budgets import DAY_SECONDS
from trimtab.plan.looks import rest_seconds
from trimtab.plan.power import about, seconds_to_see, traffic_of
from trimtab.plan.record import NO_ROOM, Phase, TrialKind, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.plan.way import Way, way


@dataclass(frozen=True)
class FleetView:
    """The target between trials. None is "not known"."""

    exists: bool
    replicas: int = 0
    #: all replicas updated and available, no rollout under way
    settled: bool = False
    paused: bool = False
    #: seconds since the target last changed or had an unready pod
    stable_seconds: float = 0.0
    #: why the engine's command line cannot be read or edited, else ""
    engine_problem: str = ""
    #: a controller or GitOps tool that would undo a live change, else ""
    owner: str = ""
    #: whether the API server lets us patch the target
    may_write: bool = True
    metrics_problem: str = ""
    observation: Observation | None = None
    findings: tuple[Finding, ...] = ()
    configuration: Configuration | None = None
    #: output lengths of the last hour; looked up only for the percentile policy
    lengths: Histogram | None = None
    #: vLLM's version by the pod template or by the engine itself
    engine_version: str | None = None
    #: what a pod that ends would lose requests by, and what to do; "" where nothing, or where nobody wants to know
    drain_problem: str = ""


@dataclass(frozen=True)
class Ground:
    """What the checks look at. `history` holds this search's ended trials, oldest first; `recent` every trial of the
    last day.
    """

    spec: TunerSpec
    fleet: FleetView
    history: Sequence[TrialRecord]
    recent: Sequence[TrialRecord]
    now: float
    search_exhausted: bool = False
    #: why it is, in the search's own words
    search_ended: str = ""
    #: of the trial that would begin
    kind: TrialKind = TrialKind.TUNE
    #: on a cluster: what else acts on the target; None for `trimtab tune`
    around: Around | None = None


def _target(g: Ground) -> Block | None:
    name = g.spec.target_ref.name
    return (
        None
        if g.fleet.exists
        else Block("TargetNotFound", f"Deployment {name} does not exist in this namespace", hard=True)
    )


def _engine(g: Ground) -> Block | None:
    return Block("EngineUnreadable", g.fleet.engine_problem, hard=True) if g.fleet.engine_problem else None


def _metrics(g: Ground) -> Block | None:
    return Block("MetricsUnavailable", g.fleet.metrics_problem, hard=True) if g.fleet.metrics_problem else None


def _owner(g: Ground) -> Block | None:
    if not g.fleet.owner:
        return None
    return Block(
        "OwnedByOther",
        f"{g.fleet.owner} owns the Deployment and would undo a live change; apply the recommendation there",
        hard=True,
    )


def _permitted(g: Ground) -> Block | None:
    if g.fleet.may_write:
        return None
    text = "this operator may not patch Deployments here: install the chart with rbac.mode=Apply, or use mode Recommend"
    return Block("NotPermitted", text, hard=True)


def _reverted(g: Ground) -> Block | None:
    last = g.history[-1] if g.history else None
    if last is None or last.verdict is None or last.verdict.reason != "Reverted":
        return None
    text = (
        f"trial {last.name} was reverted by the target's owner; apply changes at their source, or "
        "change spec.search to try again"
    )
    return Block("OwnerReverts", text, hard=True)


def _replicas(g: Ground) -> Block | None:
    found = _way(g)
    return found if isinstance(found, Block) else None


def _way(g: Ground) -> Way | Block:
    return way(g.spec.rollout, g.fleet.replicas, g.kind, g.recent, g.now)


def _drain(g: Ground) -> Block | None:
    """Only where pods would be restarted, and not before the trial that mends it."""
    if not g.fleet.drain_problem or g.kind in (TrialKind.POLICY, TrialKind.DRAIN):
        return None
    return Block("DrainUnsafe", g.fleet.drain_problem, hard=True)


def _health(g: Ground) -> Block | None:
    if g.fleet.paused:
        return Block("TargetPaused", "the Deployment is paused by someone else; resume it first", hard=True)
    if not g.fleet.settled:
        return Block("TargetNotSettled", "a rollout is under way or a pod is not available")
    asked = g.spec.preconditions.stable_seconds
    # before settings are tried, the pods' own differences are measured (A/A); one pod has none
    compared = g.kind is TrialKind.TUNE and g.fleet.replicas > 1
    last = g.history[-1].verdict if g.history else None
    again = last is not None and last.reason == "AnotherStartNeeded"
    need = max(asked, rest_seconds(g.spec, again=again) if compared else 0.0)
    if g.fleet.stable_seconds < need:
        why = ", so that its pods can be compared with each other first" if need > asked else ""
        return Block("TargetNotStable", f"waiting until the target has been unchanged and ready for {need:.0f} s{why}")
    return None


def _traffic(g: Ground) -> Block | None:
    need = g.spec.preconditions.min_requests_per_second
    rate = g.fleet.observation.arrivals_per_second if g.fleet.observation else None
    if rate is None:
        return Block("NoData", "the request rate is not known yet")
    if rate < need:
        return Block("TooLittleTraffic", f"less than {need:g} requests/s: too little for a verdict")
    return _evidence_in_time(g)


def _evidence_in_time(g: Ground) -> Block | None:
    """Whether a gain of the size asked for would show within the time a trial has; an install needs no gain."""
    traffic = traffic_of(g.fleet.observation, g.fleet.replicas)
    seek, most = g.spec.preconditions.visible_gain_percent, g.spec.rollout.max_measurement_seconds
    if g.around is None or g.kind is TrialKind.INSTALL or traffic is None or seek == 0:
        return None
    seconds = seconds_to_see(seek / 100, traffic, control_pods=g.fleet.replicas - 1)
    if seconds <= most:
        return None
    text = (
        f"at this traffic a gain of {seek:g}% takes {about(seconds)} to show, a trial may measure for {most:.0f} s: "
        "wait for more traffic, or raise spec.rollout.maxMeasurementSeconds or spec.preconditions.visibleGainPercent"
    )
    return Block("TooLittleTraffic", text)


def _broken(g: Ground) -> Block | None:
    """An engine that is broken is not badly tuned: alarm, do not tune."""
    alarm = next((f for f in g.fleet.findings if stops_tuning(f) and f.name != "NoTraffic"), None)
    return Block(alarm.name, f"{alarm.message} {alarm.advice}", hard=True) if alarm else None


def _converged(g: Ground) -> Block | None:
    if g.search_exhausted and g.search_ended:
        return Block("Converged", g.search_ended)
    if g.search_exhausted:
        return Block("Converged", "every configuration in the search space that is worth a restart was tried")
    ended = [t for t in g.history if t.phase in (Phase.PROMOTED, Phase.ROLLED_BACK) and not _had_no_room(t)]
    if len(ended) >= g.spec.search.max_trials:
        return Block("Converged", f"all {g.spec.search.max_trials} trials of spec.search.maxTrials are done")
    tail = 0
    for trial in reversed(ended):
        if trial.phase is Phase.PROMOTED:
            break
        tail += 0 if trial.verdict is not None and trial.verdict.reason == "AnotherStartNeeded" else 1
    if tail >= g.spec.search.patience:
        return Block("Converged", f"{tail} trials in a row brought no gain (spec.search.patience)")
    return None


def _had_no_room(trial: TrialRecord) -> bool:
    return trial.verdict is not None and trial.verdict.reason == NO_ROOM


def _window(g: Ground) -> Block | None:
    return None if g.spec.window_open(g.now) else Block("WindowClosed", "outside spec.rollout.windows")


def _budget(g: Ground) -> Block | None:
    if g.kind is TrialKind.POLICY:
        return None  # restarts nothing
    spent, limit = restarts_within_day(g.recent, g.now), g.spec.rollout.max_restarts_per_day
    found = _way(g)
    need = found.restarts if isinstance(found, Way) else 0  # taking a promotion back costs more; safety has no budget
    if need > limit:
        text = f"a trial may restart {need} pods, spec.rollout.maxRestartsPerDay allows {limit}: raise it"
        return Block("RestartBudgetTooSmall", text, hard=True)
    if spent + need > limit:
        return Block(
            "RestartBudgetSpent", f"{spent} of {limit} pod restarts in 24 h are spent, a trial may need {need}"
        )
    return None


def _cooldown(g: Ground) -> Block | None:
    last = max(g.recent, key=lambda t: t.finished_at or 0.0, default=None)
    if last is None or last.finished_at is None:
        return None
    no_room = last.verdict is not None and last.verdict.reason == NO_ROOM  # nothing was restarted
    back = last.phase is Phase.ROLLED_BACK and not no_room
    pause = g.spec.rollout.cooldown_after(rolled_back=back)
    if last.finished_at + pause <= g.now:
        return None
    why = "after a rollback" if back else "between trials"
    return Block("CoolingDown", f"pausing {pause:.0f} s {why}")


#: in this order; the first that blocks is shown
CHECKS: Final[tuple[Callable[[Ground], Block | None], ...]] = (
    surroundings.braked, _target, _engine, _metrics, _owner, _permitted, surroundings.rivalled, _reverted, _replicas,
    _drain, _converged, surroundings.resized, _health, _broken, surroundings.beyond_settings, _traffic, _window,
    surroundings.undisrupted, _budget, _cooldown,
)  # fmt: skip


def first_block(ground: Ground) -> Block | None:
    """The first reason why no trial may start, None when one may."""
    return next((block for check in CHECKS if (block := check(ground)) is not None), None)


def restarts_within_day(trials: Sequence[TrialRecord], now: float) -> int:
    """Pods that trials started anew in the last 24 h; a trial counts whole by its start."""
    return sum(t.restarts for t in trials if now - t.started_at < DAY_SECONDS)
