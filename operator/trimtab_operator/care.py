"""What the reconcile does for the middleware: is it in the pods, does it have the policy, which trial is due for it.

Looks and writes ConfigMaps and pod annotations; the Deployment is written by trials only.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trimtab.engine.install import InstallNames, installed, installed_names
from trimtab.errors import EngineError, InputError, TargetRefused
from trimtab.plan.hot import CapProposal, HotPod, desired_body, hot_view, policy_in_force, propose_cap, since
from trimtab.plan.middleware import Decision, Installation, decide, question
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import TargetView, TrialKind, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.plan.token_policy import body_of
from trimtab_operator import rollout
from trimtab_operator.cluster import Cluster
from trimtab_operator.middleware import Delivery, Report, names, package
from trimtab_operator.records import SEARCH_LABEL, record_of, unix
from trimtab_operator.target import Target
from trimtab_operator.wishes import policy_label

Json = dict[str, Any]
_NO_RIGHT: Final = (
    "this operator may not write ConfigMaps here: install the chart with rbac.mode=Apply, of this version or later"
)

_MOST_SHOWN: Final = 1000
_NOTHING: Final = Decision(False)


@dataclass(frozen=True)
class Cared:
    """What was found. label: the question of the trials that install; policy_label: of those of the policy.

    candidate: the template with the middleware, where it can be put in. body: the policy in force.
    """

    decision: Decision = _NOTHING
    report: Report | None = None
    label: str = ""
    policy_label: str = ""
    candidate: Json | None = None
    names: InstallNames | None = None
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hurry(self) -> bool:
        return self.report is not None and self.report.hurry

    def status(self) -> Json | None:
        return None if self.report is None else self.report.status()


@dataclass
class Care:
    """`token` makes the drain hook's secret; passed in for tests."""

    cluster: Cluster
    delivery: Delivery
    token: Callable[[], str] = lambda: secrets.token_urlsafe(16)
    #: pods that have shown the middleware, oldest first
    _shown: dict[str, None] = field(default_factory=dict)

    # --- between trials -----------------------------------------------------------------------------------------------
    def look(self, tuner: Json, spec: TunerSpec, target: Target, trials: Sequence[Json], fleet: FleetView) -> Cared:
        """The middleware and its policy now; brings the policy to the pods where the mode allows it."""
        if target.deployment is None:
            return Cared()
        name, have = tuner["metadata"]["name"], installed_names(target.template)
        current = have is not None and have.code == names(name).code
        cared = Cared(policy_label=policy_label(spec))
        refusal = ""
        if spec.token_policy.middleware == "Install" and not current:
            cared, refusal = self._candidate(tuner, spec, target, have, fleet, cared)
        attempts = labelled(trials, cared.label)
        found = Installation(have is not None, current, package().version, refusal, attempts)
        cared = replace(cared, decision=decide(spec, found))
        if have is None:
            return cared
        body = policy_in_force(spec, labelled(trials, cared.policy_label))
        return self._deliver(tuner, spec, target, replace(cared, body=body), code=current)

    def _candidate(
        self, tuner: Json, spec: TunerSpec, target: Target, have: InstallNames | None, fleet: FleetView, cared: Cared
    ) -> tuple[Cared, str]:
        """The template with this operator's middleware, or why not."""
        meta, container = tuner["metadata"], spec.target_ref.container
        wanted = names(meta["name"], (have.drain_token if have else "") or self.token())
        try:
            label = question(target.template, container, package().version)
            cared = replace(cared, label=label, names=wanted)
            candidate = installed(target.template, container, wanted, fleet.engine_version)
        except (EngineError, InputError) as error:
            return cared, error.told
        if spec.mode != "Recommend" and not self.cluster.may("create", "ConfigMap", meta["namespace"], wanted.code):
            return cared, _NO_RIGHT
        return replace(cared, candidate=candidate), ""

    def prepare(self, tuner: Json, target: Target, cared: Cared, body: Mapping[str, Any]) -> None:
        """Before a trial installs it: what the pods will mount."""
        assert target.deployment is not None
        name = tuner["metadata"]["name"]
        self.delivery.ensure_code(name, target.deployment)
        self.delivery.write(name, target.deployment, dict(body), _generation(tuner))

    def _deliver(
        self, tuner: Json, spec: TunerSpec, target: Target, cared: Cared, *, code: bool, force: bool = False
    ) -> Cared:
        assert target.deployment is not None
        meta, port = tuner["metadata"], port_of(target, spec)
        may_write = force or (spec.mode != "Recommend" and not spec.suspend)
        try:
            if may_write and code:
                self.delivery.ensure_code(meta["name"], target.deployment)
            if may_write:
                text = self.delivery.write(meta["name"], target.deployment, dict(cared.body), _generation(tuner))
            else:
                text = self._written(meta)
            report = self.delivery.look(meta["name"], meta["namespace"], target.pods, port, text)
            if may_write:
                self.delivery.touch(report)
        except TargetRefused as error:
            said = replace(cared.decision, message=f"{cared.decision.message}; the policy is not delivered: {error}")
            return replace(cared, decision=said)
        if problem := report.problem():
            cared = replace(cared, decision=replace(cared.decision, message=f"{cared.decision.message}; {problem}"))
        return replace(cared, report=report)

    def _written(self, meta: Json) -> str:
        """The policy as it is; "" also without the right to read it, which mode Recommend does not need."""
        try:
            return self.delivery.written(meta["namespace"], meta["name"])
        except TargetRefused:
            return ""

    def propose(
        self, spec: TunerSpec, cared: Cared, fleet: FleetView, trials: Sequence[Json], now: float
    ) -> tuple[CapProposal, str] | None:
        """The next cap to try and the pod that tries it; only when every ready pod has the policy in force."""
        if spec.token_policy.method != "Percentile" or cared.report is None or fleet.lengths is None:
            return None
        if cared.decision.status != "True" or cared.report.late or not cared.report.taken:
            return None
        records = labelled(trials, cared.policy_label)
        proposal = propose_cap(spec, fleet.lengths, cared.body, records, now)
        return None if proposal is None else (proposal, min(r.name for r in cared.report.taken))

    # --- while a trial is in flight -----------------------------------------------------------------------------------
    def during(
        self, tuner: Json, spec: TunerSpec, target: Target, trials: Sequence[Json], record: TrialRecord
    ) -> Cared | None:
        """The policy goes on reaching pods: canary and control get the same, unless the trial is one of the policy."""
        hot = record.kind is TrialKind.POLICY  # its way back is written whatever became of mode and template
        if target.deployment is None or not (hot or installed_names(target.template)):
            return None
        own = labelled(trials, policy_label(spec))
        body = desired_body(record) if hot else policy_in_force(spec, own)
        have = installed_names(target.template)
        current = have is not None and have.code == names(tuner["metadata"]["name"]).code
        return self._deliver(tuner, spec, target, Cared(body=body), code=current, force=hot)

    def seen(self, view: TargetView, port: int) -> bool:
        """Whether every canary pod has shown the middleware: one busy moment must not condemn it."""
        for pod in view.canary:
            if pod.ip and pod.name not in self._shown and self.delivery.ask(pod.ip, port) is not None:
                self._shown[pod.name] = None
        while len(self._shown) > _MOST_SHOWN:
            del self._shown[next(iter(self._shown))]
        return bool(view.canary) and all(pod.name in self._shown for pod in view.canary)

    def hot(self, tuner: Json, target: Target, record: TrialRecord, container: str, port: int) -> TargetView:
        """The target of a trial of the policy, in the state machine's terms."""
        meta = tuner["metadata"]
        text = self.delivery.written(meta["namespace"], meta["name"])
        report = self.delivery.look(meta["name"], meta["namespace"], target.pods, port, text)
        taken = {r.name for r in report.taken}
        views = {v.name: v for v in rollout.pod_views(target.pods, target.replica_sets, container)}
        pods = [
            HotPod(since(views[r.name], died_at(r.pod, container), record.started_at), r.name in taken)
            for r in report.rows
            if r.name in views
        ]
        deployment = target.deployment
        return hot_view(
            record, body_of(text), pods,
            exists=deployment is not None and not deployment["metadata"].get("deletionTimestamp"),
            replicas=deployment["spec"].get("replicas", 1) if deployment else 0,
            settled=deployment is not None and rollout.settled(deployment),
        )  # fmt: skip


def labelled(trials: Sequence[Json], label: str) -> list[TrialRecord]:
    """Records of the trials that answer one question, oldest first."""
    return [record_of(t) for t in trials if label and t["metadata"].get("labels", {}).get(SEARCH_LABEL) == label]


def port_of(target: Target, spec: TunerSpec) -> int:
    return target.read_engine(spec.target_ref.container).port


def died_at(pod: Json, container: str) -> float | None:
    """When the container last ended, None where it never did."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status["name"] == container:
            ended = (status.get("lastState") or {}).get("terminated") or (status.get("state") or {}).get("terminated")
            return unix(ended["finishedAt"]) if ended and ended.get("finishedAt") else None
    return None


def _generation(tuner: Json) -> int:
    """The last generation told: a ConfigMap that was deleted must not begin again at 1."""
    return int(((tuner.get("status") or {}).get("middleware") or {}).get("generation", 0))
