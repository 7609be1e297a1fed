"""The paused-rollout canary, as pure functions: Deployment, ReplicaSets, pods in; a view and the next JSON patch out.

Hazards, each seen on a real Deployment controller (1.36):
- the pause must land after the new ReplicaSet has its first replica (a paused Deployment creates none) and before a
  second moves; `minReadySeconds` is raised in the same patch as the template, so a killed operator has that long to
  come back and pause;
- where the target is one replica, the canary is a *complete* new ReplicaSet, and the controller removes the old pod as
  soon as the canary counts as available, paused or not: so it must not count as available before it is promoted, which
  `minReadySeconds` (and `progressDeadlineSeconds`, which must be above it) of a month does. Traffic goes by readiness;
- with maxSurge 0 the new ReplicaSet is made with 0 replicas, then an old one goes, then the new one gets its first;
- a restored template reuses the old ReplicaSet: pods that never moved are not touched;
- `Recreate` must be narrowed to RollingUpdate for the trial, or the patch would stop every pod.
`replicas` is never written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trimtab.engine.ownership import TOOLS, owners
from trimtab.judge.guardrail import PodHealth
from trimtab.plan.record import Desired, PodView, TargetView, Template

Json = dict[str, Any]

#: annotation on the Deployment while a trial holds it; its value is the TuningTrial's name
TRIAL_ANNOTATION: Final = "trimtab.dev/trial"
#: while a trial holds the Deployment: how long a new pod must be ready before the controller may move the next one
HOLD_MIN_READY_SECONDS: Final = 30
#: the same for a target of one replica: longer than any trial, and than anybody leaves an operator dead
HOLD_ONE_REPLICA_SECONDS: Final = 30 * 24 * 3600
_HASH_LABEL: Final = "pod-template-hash"


@dataclass(frozen=True)
class Baseline:
    """What the target was before the first write, and the candidate's template. Kept in the trial's immutable spec."""

    deployment_uid: str
    template: Json
    candidate: Json
    strategy: Json | None
    min_ready_seconds: int | None
    progress_deadline_seconds: int | None
    #: how the trial narrows the strategy; fixed at its start, whatever the tuner's spec says later
    max_surge: int = 0

    @classmethod
    def of(cls, deployment: Json, candidate: Json, max_surge: int = 0) -> Baseline:
        spec = deployment["spec"]
        return cls(
            deployment_uid=deployment["metadata"]["uid"],
            template=spec["template"],
            candidate=candidate,
            strategy=spec.get("strategy"),
            min_ready_seconds=spec.get("minReadySeconds"),
            progress_deadline_seconds=spec.get("progressDeadlineSeconds"),
            max_surge=max_surge,
        )

    def to_spec(self) -> Json:
        """For TuningTrial.spec.baseline: templates as JSON texts, so that no schema prunes a field."""
        out: Json = {
            "deploymentUid": self.deployment_uid,
            "templateJson": json.dumps(self.template, sort_keys=True),
            "candidateTemplateJson": json.dumps(self.candidate, sort_keys=True),
            "strategyJson": json.dumps(self.strategy),
            "maxSurge": self.max_surge,
        }
        if self.min_ready_seconds is not None:
            out["minReadySeconds"] = self.min_ready_seconds
        if self.progress_deadline_seconds is not None:
            out["progressDeadlineSeconds"] = self.progress_deadline_seconds
        return out

    @classmethod
    def from_spec(cls, stored: Json) -> Baseline:
        return cls(
            deployment_uid=stored["deploymentUid"],
            template=json.loads(stored["templateJson"]),
            candidate=json.loads(stored["candidateTemplateJson"]),
            strategy=json.loads(stored["strategyJson"]),
            min_ready_seconds=stored.get("minReadySeconds"),
            progress_deadline_seconds=stored.get("progressDeadlineSeconds"),
            max_surge=stored.get("maxSurge", 0),
        )


def narrowed(max_surge: int) -> Json:
    """One pod at a time: by surge where a spare pod fits, in place of an old one otherwise."""
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": 1 - max_surge}}


# --- looking ----------------------------------------------------------------------------------------------------------
def whose(deployment: Json | None, baseline: Baseline) -> Template:
    """Whose template the Deployment carries. Another uid is another Deployment of the same name: not ours to touch."""
    if deployment is None or deployment["metadata"].get("deletionTimestamp"):
        return Template.MISSING
    if deployment["metadata"]["uid"] != baseline.deployment_uid:
        return Template.FOREIGN
    template = deployment["spec"]["template"]
    if template == baseline.template:
        return Template.BASELINE
    return Template.CANDIDATE if template == baseline.candidate else Template.FOREIGN


def view(
    deployment: Json | None,
    replica_sets: Sequence[Json],
    pods: Sequence[Json],
    baseline: Baseline,
    container: str,
    excused: int = 0,
) -> TargetView:
    """The target in a trial's terms. excused: deaths of each canary's container that count for nothing."""
    template = whose(deployment, baseline)
    if deployment is None or template is Template.MISSING:
        return TargetView(Template.MISSING, paused=False, held=False, replicas=0, settled=False)
    canary = [rs for rs in replica_sets if _template_of(rs) == baseline.candidate]
    control = [rs for rs in replica_sets if _template_of(rs) == baseline.template]
    return TargetView(
        template=template,
        paused=bool(deployment["spec"].get("paused")),
        held=TRIAL_ANNOTATION in (deployment["metadata"].get("annotations") or {}),
        replicas=deployment["spec"].get("replicas", 1),
        settled=settled(deployment),
        canary=pod_views(pods, canary, container, excused),
        control=pod_views(pods, control, container),
        ending=sum(
            "deletionTimestamp" in p["metadata"] for p in owned_by(pods, {s["metadata"]["uid"] for s in control})
        ),
    )


def settled(deployment: Json) -> bool:
    """Every replica runs the current template and is available, and the controller has seen the latest spec."""
    spec, status = deployment["spec"], deployment.get("status") or {}
    want = spec.get("replicas", 1)
    counts = [status.get(k, 0) for k in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")]
    return status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0) and counts == [want] * 4


def _template_of(replica_set: Json) -> Json:
    """A ReplicaSet's template without the hash label that the Deployment controller adds."""
    template: Json = json.loads(json.dumps(replica_set["spec"]["template"]))
    (template.get("metadata", {}).get("labels") or {}).pop(_HASH_LABEL, None)
    return template


def owned_by(objects: Sequence[Json], uids: set[str]) -> list[Json]:
    """Those whose controller is one of `uids`."""
    return [
        o
        for o in objects
        if any(r.get("controller") and r["uid"] in uids for r in o["metadata"].get("ownerReferences") or ())
    ]


def pod_views(
    pods: Sequence[Json], replica_sets: Sequence[Json], container: str, excused: int = 0
) -> tuple[PodView, ...]:
    """Living pods of these ReplicaSets, by name. Terminating ones are on their way out and count for nothing."""
    uids = {rs["metadata"]["uid"] for rs in replica_sets}
    alive = [
        p
        for p in owned_by(pods, uids)
        if not p["metadata"].get("deletionTimestamp") and (p.get("status") or {}).get("phase") != "Failed"
    ]
    views = (_pod_view(p, container, excused) for p in alive)
    return tuple(sorted(views, key=lambda v: v.name))


def _pod_view(pod: Json, container: str, excused: int) -> PodView:
    status = pod.get("status") or {}
    own: Json = next((s for s in status.get("containerStatuses") or () if s["name"] == container), {})
    since = ((own.get("state") or {}).get("running") or {}).get("startedAt")
    return PodView(
        pod["metadata"]["name"],
        status.get("podIP"),
        pod_health(pod, container, excused),
        place=(pod.get("spec") or {}).get("nodeName", ""),
        started_at=datetime.fromisoformat(since).timestamp() if since else None,
    )


def pod_health(pod: Json, container: str, excused: int = 0) -> PodHealth:
    """Readiness of the pod; restarts and states of the engine's container (falling back to the worst container)."""
    status = pod.get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    states = status.get("containerStatuses") or []
    own = next((s for s in states if s["name"] == container), None)
    if own is None:
        restarts = max((s.get("restartCount", 0) for s in states), default=0)
        return PodHealth(ready, restarts, None, None, None, age_seconds=0.0, scheduled=_scheduled(status))
    waiting = (own.get("state") or {}).get("waiting") or {}
    if 0 < _deaths(own) <= excused:
        return PodHealth(ready, 0, None, None, None, age_seconds=0.0, scheduled=_scheduled(status))
    # the state before counts only while the container is not back: a pod that recovered is not crashing now
    last = (own.get("lastState") or {}).get("terminated") if not ready else None
    ended = (own.get("state") or {}).get("terminated") or last or {}
    return PodHealth(
        ready=ready,
        restarts=own.get("restartCount", 0),
        waiting_reason=waiting.get("reason"),
        terminated_reason=ended.get("reason"),
        exit_code=ended.get("exitCode"),
        age_seconds=0.0,
        scheduled=_scheduled(status),
    )


def _deaths(container: Json) -> int:
    """Times that it died. The count of restarts goes up only when it runs again."""
    state = container.get("state") or {}
    waiting = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return int(container.get("restartCount", 0)) + (1 if waiting or "terminated" in state else 0)


def _scheduled(status: Json) -> bool:
    """False only where the scheduler says that no node fits."""
    return not any(c["type"] == "PodScheduled" and c["status"] == "False" for c in status.get("conditions") or ())


# --- acting -----------------------------------------------------------------------------------------------------------
def next_patch(
    desired: Desired, deployment: Json, replica_sets: Sequence[Json], baseline: Baseline, trial: str
) -> list[Json]:
    """The JSON patch operations that bring the Deployment one step nearer to `desired`; empty when nothing is to be
    written.
    """
    table: dict[Desired, Callable[[], list[Json]]] = {
        Desired.KEEP: list,
        Desired.HOLD: lambda: _hold(deployment, replica_sets, baseline, trial),
        Desired.SPREAD: lambda: _spread(deployment, baseline, trial),
        Desired.PROMOTE: lambda: _finish(deployment, baseline),
        Desired.RESTORE: lambda: _restore(deployment, baseline, trial),
        Desired.RELEASE: lambda: _give_back(deployment, baseline),
    }
    return table[desired]()


def _hold(deployment: Json, replica_sets: Sequence[Json], baseline: Baseline, trial: str) -> list[Json]:
    spec = deployment["spec"]
    if spec["template"] == baseline.template and spec.get("paused"):
        return []  # someone paused it just now: a pause that is not ours is not ours to lift
    if spec["template"] == baseline.template:
        return [
            *_annotate(deployment, trial),
            {"op": "add", "path": "/spec/strategy", "value": narrowed(baseline.max_surge)},
            *_held_back(spec.get("replicas", 1), baseline),
            {"op": "replace", "path": "/spec/template", "value": baseline.candidate},
        ]
    if not spec.get("paused") and first_replica(replica_sets, baseline):
        return [{"op": "add", "path": "/spec/paused", "value": True}]
    return []


def _held_back(replicas: int, baseline: Baseline) -> list[Json]:
    """The first new pod counts as available late, or (one replica) never."""
    if replicas <= 1:
        hold = max(baseline.min_ready_seconds or 0, HOLD_ONE_REPLICA_SECONDS)
        deadline = max(baseline.progress_deadline_seconds or 0, hold + 1)
        return [
            {"op": "add", "path": "/spec/minReadySeconds", "value": hold},
            {"op": "add", "path": "/spec/progressDeadlineSeconds", "value": deadline},
        ]
    deadline = baseline.progress_deadline_seconds if baseline.progress_deadline_seconds is not None else 600
    hold = max(baseline.min_ready_seconds or 0, min(HOLD_MIN_READY_SECONDS, deadline - 1))
    return [{"op": "add", "path": "/spec/minReadySeconds", "value": hold}]


def _spread(deployment: Json, baseline: Baseline, trial: str) -> list[Json]:
    """The candidate for the whole target, by the narrowed strategy. Someone's pause is not lifted."""
    spec = deployment["spec"]
    if spec["template"] != baseline.template or spec.get("paused"):
        return []
    return [
        *_annotate(deployment, trial),
        {"op": "add", "path": "/spec/strategy", "value": narrowed(baseline.max_surge)},
        {"op": "replace", "path": "/spec/template", "value": baseline.candidate},
    ]


def first_replica(replica_sets: Sequence[Json], baseline: Baseline) -> bool:
    """Whether the candidate's ReplicaSet has been given a replica: from then on the rollout can be paused."""
    return any(_template_of(rs) == baseline.candidate and rs["spec"].get("replicas", 0) >= 1 for rs in replica_sets)


def _finish(deployment: Json, baseline: Baseline) -> list[Json]:
    """Go on with the rollout, then give the owner's strategy back. Never writes the template."""
    if not _marked(deployment):
        return []
    if deployment["spec"].get("paused"):
        return [*_times(deployment, baseline), {"op": "remove", "path": "/spec/paused"}]
    return _times(deployment, baseline) or (_give_back(deployment, baseline) if settled(deployment) else [])


def _restore(deployment: Json, baseline: Baseline, trial: str) -> list[Json]:
    """The baseline's template and an end of the pause in one patch; the owner's strategy once all pods are back."""
    spec = deployment["spec"]
    operations: list[Json] = []
    if spec["template"] == baseline.candidate:
        operations += [{"op": "replace", "path": "/spec/template", "value": baseline.template}]
        if not _marked(
            deployment
        ):  # after a promotion the owner's own strategy is back: narrow it again for the way home
            operations += [
                *_annotate(deployment, trial),
                {"op": "add", "path": "/spec/strategy", "value": narrowed(baseline.max_surge)},
            ]
    if _marked(deployment):
        operations += _times(deployment, baseline)
        operations += [{"op": "remove", "path": "/spec/paused"}] if spec.get("paused") else []
    if operations:
        return operations
    return _give_back(deployment, baseline) if _marked(deployment) and settled(deployment) else []


def _give_back(deployment: Json, baseline: Baseline) -> list[Json]:
    """Remove Trimtab's marks: annotation, pause, narrowed strategy. A strategy that someone else changed meanwhile
    stays.
    """
    if not _marked(deployment):
        return []
    spec = deployment["spec"]
    operations: list[Json] = [{"op": "remove", "path": f"/metadata/annotations/{pointer(TRIAL_ANNOTATION)}"}]
    if spec.get("strategy") == narrowed(baseline.max_surge) and baseline.strategy is not None:
        operations.append({"op": "replace", "path": "/spec/strategy", "value": baseline.strategy})
    if spec.get("paused"):
        operations.append({"op": "remove", "path": "/spec/paused"})
    return operations + _times(deployment, baseline)


def _times(deployment: Json, baseline: Baseline) -> list[Json]:
    """Put the owner's minReadySeconds and progressDeadlineSeconds back where they differ. A deadline that someone else
    changed meanwhile stays.
    """
    spec = deployment["spec"]
    operations = _owners(spec, "minReadySeconds", baseline.min_ready_seconds)
    if spec.get("progressDeadlineSeconds", 0) > HOLD_ONE_REPLICA_SECONDS:
        operations += _owners(spec, "progressDeadlineSeconds", baseline.progress_deadline_seconds)
    return operations


def _owners(spec: Json, name: str, value: int | None) -> list[Json]:
    if spec.get(name) == value:
        return []
    if value is None:
        return [{"op": "remove", "path": f"/spec/{name}"}]
    return [{"op": "replace", "path": f"/spec/{name}", "value": value}]


def _marked(deployment: Json) -> bool:
    return TRIAL_ANNOTATION in (deployment["metadata"].get("annotations") or {})


def _annotate(deployment: Json, trial: str) -> list[Json]:
    if deployment["metadata"].get("annotations") is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {TRIAL_ANNOTATION: trial}}]
    return [{"op": "add", "path": f"/metadata/annotations/{pointer(TRIAL_ANNOTATION)}", "value": trial}]


def pointer(key: str) -> str:
    """A key as a JSON pointer token (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


# --- ownership --------------------------------------------------------------------------------------------------------
def owner(deployment: Json) -> str:
    """Who would undo a live change: a controller or a GitOps tool, "" when nobody is known to."""
    reverting = next((o for o in owners(deployment["metadata"]) if o.reverts), None)
    return "" if reverting is None else TOOLS.get(reverting.kind, reverting.name)


def stable_seconds(deployment: Json, pods: Sequence[Json], now: float) -> float:
    """Seconds since the last change of the Deployment's conditions or of a pod's readiness; 0 when nothing is known."""
    from trimtab_operator.records import unix

    changes = [
        c.get("lastTransitionTime")
        for c in (deployment.get("status") or {}).get("conditions") or ()
        if c["type"] == "Available"
    ]
    for pod in pods:
        changes += [
            c.get("lastTransitionTime")
            for c in (pod.get("status") or {}).get("conditions") or ()
            if c["type"] == "Ready"
        ]
    times = [unix(c) for c in changes if c]
    return max(0.0, now - max(times)) if times else 0.0
