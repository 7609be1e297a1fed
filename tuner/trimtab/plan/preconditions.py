"""What must hold before a trial may start: a table from reason to a small pure check.

Messages hold no countdowns: they land in a condition, and a text that changes on every tick is a write on every tick.
A block is *hard* when only a person (or another system) can lift it, *soft* when waiting is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.diagnose.finding import Finding, stops_tuning
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.plan.record import Phase, TrialKind, TrialRecord
from trimtab.plan.spec import TunerSpec

DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True)
class Block:
    """Why no trial starts. `reason` is stable CamelCase."""

    reason: str
    message: str
    hard: bool = False


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
    #: of the trial that would begin
    kind: TrialKind = TrialKind.TUNE


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
    more = g.spec.rollout.max_surge == 1 and g.kind is not TrialKind.POLICY  # a policy makes no pod
    if g.fleet.replicas >= 2 or (g.fleet.replicas == 1 and more):
        return None
    if g.fleet.replicas == 0:
        return Block("ScaledToZero", "the target has no replicas")
    text = "a canary needs a control: run 2 replicas, or set spec.rollout.maxSurge: 1 where one more pod fits"
    return Block("TooFewReplicas", text, hard=True)


def _health(g: Ground) -> Block | None:
    if g.fleet.paused:
        return Block("TargetPaused", "the Deployment is paused by someone else; resume it first", hard=True)
    if not g.fleet.settled:
        return Block("TargetNotSettled", "a rollout is under way or a pod is not available")
    need = g.spec.preconditions.stable_seconds
    if g.fleet.stable_seconds < need:
        return Block("TargetNotStable", f"waiting until the target has been unchanged and ready for {need:.0f} s")
    return None


def _traffic(g: Ground) -> Block | None:
    need = g.spec.preconditions.min_requests_per_second
    rate = g.fleet.observation.arrivals_per_second if g.fleet.observation else None
    if rate is None:
        return Block("NoData", "the request rate is not known yet")
    return (
        None if rate >= need else Block("TooLittleTraffic", f"less than {need:g} requests/s: too little for a verdict")
    )


def _broken(g: Ground) -> Block | None:
    """An engine that is broken is not badly tuned: alarm, do not tune."""
    alarm = next((f for f in g.fleet.findings if stops_tuning(f) and f.name != "NoTraffic"), None)
    return Block(alarm.name, f"{alarm.message} {alarm.advice}", hard=True) if alarm else None


def _converged(g: Ground) -> Block | None:
    if g.search_exhausted:
        return Block("Converged", "every configuration in the search space that is worth a restart was tried")
    ended = [t for t in g.history if t.phase in (Phase.PROMOTED, Phase.ROLLED_BACK)]
    if len(ended) >= g.spec.search.max_trials:
        return Block("Converged", f"all {g.spec.search.max_trials} trials of spec.search.maxTrials are done")
    tail = 0
    for trial in reversed(ended):
        if trial.phase is Phase.PROMOTED:
            break
        tail += 1
    if tail >= g.spec.search.patience:
        return Block("Converged", f"{tail} trials in a row brought no gain (spec.search.patience)")
    return None


def _window(g: Ground) -> Block | None:
    return None if g.spec.window_open(g.now) else Block("WindowClosed", "outside spec.rollout.windows")


def _budget(g: Ground) -> Block | None:
    if g.kind is TrialKind.POLICY:
        return None  # restarts nothing
    spent, limit = restarts_within_day(g.recent, g.now), g.spec.rollout.max_restarts_per_day
    need = g.fleet.replicas + 1  # taking a promotion back costs more; safety has no budget
    if need > limit:
        text = f"a trial may restart {need} pods, spec.rollout.maxRestartsPerDay allows {limit}: raise it"
        return Block("RestartBudgetTooSmall", text, hard=True)
    if spent + need > limit:
        return Block(
            "RestartBudgetSpent", f"{spent} of {limit} pod restarts in 24 h are spent, a trial may need {need}"
        )
    return None


def _cooldown(g: Ground) -> Block | None:
    last = max((t.finished_at or 0.0 for t in g.recent), default=0.0)
    left = last + g.spec.rollout.cooldown_seconds - g.now
    return Block("CoolingDown", f"pausing {g.spec.rollout.cooldown_seconds:.0f} s between trials") if left > 0 else None


#: in this order; the first that blocks is shown
CHECKS: Final[tuple[Callable[[Ground], Block | None], ...]] = (
    _target, _engine, _metrics, _owner, _permitted, _reverted, _replicas, _converged,
    _health, _broken, _traffic, _window, _budget, _cooldown,
)  # fmt: skip


def first_block(ground: Ground) -> Block | None:
    """The first reason why no trial may start, None when one may."""
    return next((block for check in CHECKS if (block := check(ground)) is not None), None)


def restarts_within_day(trials: Sequence[TrialRecord], now: float) -> int:
    """Pods that trials started anew in the last 24 h; a trial counts whole by its start."""
    return sum(t.restarts for t in trials if now - t.started_at < DAY_SECONDS)
