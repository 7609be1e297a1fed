"""What the plugin knows of a tuner, read from the objects as they are; pure. What is not there is unknown, no error.

Hazard: every text comes from the cluster and is made fit for a terminal here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from trimtab.text import plain

Json = dict[str, Any]
#: phases in which a trial is over
ENDED: Final = frozenset({"Promoted", "RolledBack", "Cancelled"})
AWAITING: Final = "AwaitingApproval"
_MOST: Final = 300
#: default of spec.guardrails.maxMetricsGapSeconds, for objects from before the API server filled it in
METRICS_GAP_SECONDS: Final = 60.0


def text(value: object, most: int = _MOST) -> str:
    """Fit for one line of a terminal."""
    return plain(str(value), most) if value is not None else ""


def table(value: object) -> Json:
    return dict(value) if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Json]:
    return [dict(v) for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []


def whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


@dataclass(frozen=True)
class Trial:
    """A TuningTrial. gain and interval as text; since: RFC 3339, when the phase began; seen: when metrics were last
    looked at, "" where never.
    """

    name: str
    number: int
    phase: str
    settings: str
    message: str
    verdict: str
    reason: str
    gain: str
    interval: str
    restarts: int
    since: str
    started: str
    finished: str
    canary: str
    origin: str
    strategy: str = "Canary"
    seen: str = ""

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


@dataclass(frozen=True)
class Pod:
    name: str
    ready: bool
    restarts: int
    role: str
    phase: str


@dataclass(frozen=True)
class Target:
    """The Deployment; None of its figures where it could not be read (`problem` says why)."""

    name: str
    wanted: int = 0
    ready: int = 0
    updated: int = 0
    paused: bool = False
    pods: tuple[Pod, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Tuner:
    """A VLLMTuner with its trials, oldest first. waiting: (reason, why nothing happens), or ("", ""); stalled: (reason,
    message) where only a person can help; found: names of all findings; looked: whether an operator ever did.
    """

    namespace: str
    name: str
    mode: str
    phase: str
    ready: str
    suspended: bool
    target: Target
    finding: str
    severity: str
    seen: str
    waiting: tuple[str, str]
    restarts_today: int
    restarts_allowed: int
    trials_allowed: int
    gain: str
    outcomes: Mapping[str, int]
    recommendation: str
    trials: tuple[Trial, ...] = field(default=())
    stalled: tuple[str, str] = ("", "")
    found: tuple[str, ...] = ()
    looked: bool = True
    metrics_gap_seconds: float = METRICS_GAP_SECONDS

    @property
    def active(self) -> Trial | None:
        return next((t for t in self.trials if not t.ended), None)

    @property
    def last(self) -> Trial | None:
        """The newest trial that is over."""
        return next((t for t in reversed(self.trials) if t.ended), None)

    @property
    def kept(self) -> Trial | None:
        """The newest trial whose settings were kept, which a rollback would take back."""
        return next((t for t in reversed(self.trials) if t.phase == "Promoted"), None)

    def to_json(self) -> Json:
        """For programs; the shape is documented in docs/kubectl.md."""
        out = asdict(self)
        for name in ("waiting", "stalled"):
            reason, message = getattr(self, name)
            out[name] = {"reason": reason, "message": message}
        out["outcomes"], out["trial"] = dict(self.outcomes), None if self.active is None else asdict(self.active)
        return out


def tuners(objects: Iterable[Json], around: Sequence[Json] = (), problem: str = "") -> list[Tuner]:
    """From VLLMTuners and TuningTrials in any order. `around`: Deployments and Pods; problem: why there are none."""
    seen = list(objects)
    out = []
    for o in seen:
        if o.get("kind") == "VLLMTuner":
            own = [t for t in seen if t.get("kind") == "TuningTrial" and _belongs(t, o)]
            out.append(_tuner(o, own, around, problem))
    return sorted(out, key=lambda t: (t.namespace, t.name))


def _belongs(trial: Json, tuner: Json) -> bool:
    own, its = table(tuner.get("metadata")), table(trial.get("metadata"))
    same = table(trial.get("spec")).get("tunerName") == own.get("name")
    return same and its.get("namespace") == own.get("namespace")


def _tuner(o: Json, own: Sequence[Json], around: Sequence[Json], problem: str) -> Tuner:
    meta, spec, status = (table(o.get(k)) for k in ("metadata", "spec", "status"))
    trials = tuple(sorted((trial(t) for t in own), key=lambda t: t.number))
    main = (rows(status.get("findings")) or [{}])[0]
    active = next((t for t in trials if not t.ended), None)
    rollout, search = table(spec.get("rollout")), table(spec.get("search"))
    gap = table(spec.get("guardrails")).get("maxMetricsGapSeconds")
    stalled = _condition(status, "Stalled")
    return Tuner(
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        mode=text(spec.get("mode") or "Recommend"),
        phase=text(status.get("phase") or "NotSeenYet"),
        ready=text(_condition(status, "Ready").get("status") or "Unknown"),
        suspended=spec.get("suspend") is True,
        target=_target(table(spec.get("targetRef")), text(meta.get("namespace")), around, active, problem),
        finding=text(main.get("name") or status.get("finding") or ""),
        severity=text(main.get("severity")),
        seen=text(main.get("message")),
        waiting=_waiting(status, active),
        restarts_today=whole(status.get("restartsToday")),
        restarts_allowed=whole(rollout.get("maxRestartsPerDay")),
        trials_allowed=whole(search.get("maxTrials")),
        gain=text(status.get("bestGain")),
        outcomes={k: whole(v) for k, v in table(status.get("trials")).items()},
        recommendation=text(table(status.get("recommendation")).get("message")),
        trials=trials,
        stalled=(text(stalled.get("reason")), text(stalled.get("message")))
        if stalled.get("status") == "True"
        else ("", ""),
        found=tuple(text(f.get("name")) for f in rows(status.get("findings"))),
        looked=bool(status),
        metrics_gap_seconds=float(gap) if isinstance(gap, int | float) else METRICS_GAP_SECONDS,
    )


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in rows(status.get("conditions")) if c.get("type") == kind), {})


def _waiting(status: Json, active: Trial | None) -> tuple[str, str]:
    """Why nothing happens now."""
    if active is not None:
        why = "a person must say yes or no" if active.phase == AWAITING else ""
        return (AWAITING, why) if why else ("", "")
    if not status:
        return "NotSeenYet", "no operator has looked at it; is one running that watches this namespace?"
    said = _condition(status, "Progressing")
    return text(said.get("reason")), text(said.get("message"))


def trial(o: Json) -> Trial:
    meta, spec, status = (table(o.get(k)) for k in ("metadata", "spec", "status"))
    verdict = table(status.get("verdict"))
    low, high = verdict.get("gainLowPercent"), verdict.get("gainHighPercent")
    known = isinstance(low, int | float) and isinstance(high, int | float)
    first = AWAITING if spec.get("approvalRequired") else "Starting"
    return Trial(
        name=text(meta.get("name")),
        number=whole(spec.get("number")),
        phase=text(status.get("phase") or first),
        settings=text(status.get("settings") or spec.get("change") or settings(spec)),
        message=text(status.get("message")),
        verdict=text(verdict.get("kind")),
        reason=text(verdict.get("reason")),
        gain=text(status.get("gain")),
        interval=f"{low:+.1f}% to {high:+.1f}%" if known else "",
        restarts=whole(status.get("restarts")),
        since=text(status.get("phaseSince") or meta.get("creationTimestamp")),
        started=text(status.get("startedAt") or meta.get("creationTimestamp")),
        finished=text(status.get("finishedAt")),
        canary=text(status.get("canaryPod")),
        origin=text(spec.get("origin")),
        strategy=text(spec.get("strategy") or "Canary"),
        seen=text(status.get("metricsSeenAt")),
    )


def settings(spec: Json) -> str:
    """What the candidate changes, before the operator has written it as text."""
    old, new = table(spec.get("baselineConfiguration")), table(spec.get("configuration"))
    return " ".join(f"{k}={str(new.get(k)).lower()}" for k in sorted({*old, *new}) if old.get(k) != new.get(k))


def _target(ref: Json, namespace: str, around: Sequence[Json], active: Trial | None, problem: str) -> Target:
    name = text(ref.get("name"))
    found = next((o for o in around if o.get("kind") == "Deployment" and _is(o, namespace, name)), None)
    if found is None:
        return Target(name, problem=problem or ("not found" if around else ""))
    spec, status = table(found.get("spec")), table(found.get("status"))
    labels = table(table(spec.get("selector")).get("matchLabels"))
    own = [
        o
        for o in around
        if o.get("kind") == "Pod" and table(o.get("metadata")).get("namespace") == namespace and _has(o, labels)
    ]
    there = {text(table(o.get("metadata")).get("name")) for o in own}
    canary = active.canary if active is not None and active.canary in there else ""
    pods = [_pod(o, canary) for o in own]
    return Target(
        name,
        whole(spec.get("replicas")),
        whole(status.get("readyReplicas")),
        whole(status.get("updatedReplicas")),
        spec.get("paused") is True,
        tuple(sorted(pods, key=lambda p: (p.role != "canary", p.name))),
    )


def _is(o: Json, namespace: str, name: str) -> bool:
    meta = table(o.get("metadata"))
    return meta.get("namespace") == namespace and meta.get("name") == name


def _has(o: Json, labels: Json) -> bool:
    """matchExpressions are not looked at: no writer of vLLM Deployments uses them for its own selector."""
    own = table(table(o.get("metadata")).get("labels"))
    return bool(labels) and all(own.get(k) == v for k, v in labels.items())


def _pod(o: Json, canary: str) -> Pod:
    meta, status = table(o.get("metadata")), table(o.get("status"))
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in rows(status.get("conditions")))
    restarts = sum(whole(c.get("restartCount")) for c in rows(status.get("containerStatuses")))
    name = text(meta.get("name"))
    role = "" if not canary else "canary" if name == canary else "control"
    phase = "Terminating" if meta.get("deletionTimestamp") else text(status.get("phase"))
    return Pod(name, ready, restarts, role, phase)


def unix(moment: str) -> float:
    """Seconds of an RFC 3339 time; 0 where it cannot be read."""
    try:
        return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def age(since: str, now: float) -> str:
    """4m, 3h, 2d; "" where the time cannot be read."""
    if not (begun := unix(since)):
        return ""
    seconds = now - begun
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length or (unit == "m" and seconds >= length):
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"
