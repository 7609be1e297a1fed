"""Trials without restarts: another token policy on one pod, by an experiment in the policy file. Pure.

The ConfigMap is the target: what it must say follows from the phase alone, so a killed operator writes the same again.
`hot_view` tells ConfigMap and pods in the terms of `plan/trial.py`, whose state machine is used as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trimtab.observe.observation import Histogram
from trimtab.plan.record import (
    NOT_TRIED,
    SERVING,
    Phase,
    PodView,
    PolicyChange,
    TargetView,
    Template,
    TrialKind,
    TrialRecord,
)
from trimtab.plan.spec import TunerSpec
from trimtab.policy.hysteresis import InForce, settle
from trimtab.policy.lengths import Estimate, Lengths, estimate, split_at_cap
from trimtab.policy.percentile import Rules, percentile

Json = dict[str, Any]
CONTROL: Final = "control"
TRIAL: Final = "trial"
#: a cap this close (as a share) to one that was tried tells nothing new
_NEAR: Final = 0.1


# --- what the ConfigMap must say --------------------------------------------------------------------------------------
def experiment(change: PolicyChange, name: str) -> Json:
    """The old policy for all pods, the new one for one. The arm's rules come first, as they will when promoted."""
    new = change.candidate
    trial = {"name": TRIAL, "pods": [change.pod]}
    trial |= {part: new[part] for part in ("tokens", "rules", "admission") if new.get(part)}
    arms = [{"name": CONTROL}, trial]
    return {**change.baseline, "experiment": {"name": name[:80], "arms": arms}}


def desired_body(record: TrialRecord) -> Mapping[str, Any]:
    """The body that the phase asks for."""
    assert record.policy is not None
    if record.phase is Phase.STARTING or record.phase in SERVING:
        return experiment(record.policy, record.name)
    if record.phase in (Phase.PROMOTING, Phase.VERIFYING, Phase.PROMOTED):
        return record.policy.candidate
    return record.policy.baseline


def policy_in_force(spec: TunerSpec, trials: Sequence[TrialRecord]) -> Json:
    """The body between trials: the person's own policy, with the cap that was last promoted for it.

    trials: of this policy question only, oldest first.
    """
    own = spec.token_policy.body()
    if spec.token_policy.method != "Percentile":
        return own
    won = [t for t in trials if t.phase is Phase.PROMOTED and t.policy is not None]
    cap = cap_of(won[-1].policy.candidate) if won and won[-1].policy is not None else None
    return own if cap is None else with_cap(own, cap)


def cap_of(body: Mapping[str, Any]) -> int | None:
    cap = (body.get("tokens") or {}).get("cap_max_tokens")
    return cap if isinstance(cap, int) else None


def with_cap(body: Mapping[str, Any], cap: int) -> Json:
    """The policy with this cap, also as the limit of requests that name none; lower ones of the person stay."""
    tokens = dict(body.get("tokens") or {})
    for name in ("cap_max_tokens", "default_max_tokens"):
        tokens[name] = min(cap, tokens.get(name) or cap)
    return {**body, "tokens": tokens}


# --- what is seen -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class HotPod:
    """A pod that mounts the middleware. taken: the body that the ConfigMap has now is in effect in it."""

    view: PodView
    taken: bool


def hot_view(
    record: TrialRecord, body: Mapping[str, Any] | None, pods: Sequence[HotPod], *, exists: bool, replicas: int,
    settled: bool,
) -> TargetView:  # fmt: skip
    """The target as the state machine sees it. body: what the ConfigMap has now; one that is none of the trial's counts
    as the phase's own, in no pod yet: it is written again.
    """
    assert record.policy is not None
    if not exists:
        return TargetView(Template.MISSING, paused=False, held=False, replicas=0, settled=False)
    change, wanted = record.policy, desired_body(record)
    known = body in (change.baseline, change.candidate, experiment(change, record.name))
    now = body if known else wanted
    taken = {p.view.name for p in pods if p.taken and known}
    ready = [p.view for p in pods if p.view.health.ready]
    late = [p for p in ready if p.name not in taken]
    trying = now == experiment(change, record.name)
    if trying:
        canary = [p.view for p in pods if p.view.name == change.pod and p.view.name in taken]
        control = [p for p in ready if p.name != change.pod]
    else:
        canary, control = [p for p in ready if p.name in taken], late
    return TargetView(
        template=Template.BASELINE if now == change.baseline else Template.CANDIDATE,
        paused=trying,
        held=trying,
        replicas=replicas,
        settled=settled and not late,
        canary=tuple(canary),
        control=tuple(control),
    )


def since(view: PodView, died_at: float | None, started_at: float) -> PodView:
    """The pod with only those deaths that the trial can have caused: the pod is older than the trial."""
    if died_at is not None and died_at >= started_at:
        return view
    return replace(view, health=replace(view.health, restarts=0))


# --- what to try ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CapProposal:
    cap: int
    origin: str


def propose_cap(
    spec: TunerSpec, lengths: Histogram | None, body: Mapping[str, Any], trials: Sequence[TrialRecord], now: float
) -> CapProposal | None:
    """A cap from the output lengths seen, within `tokenPolicy.maxNewTokens`; None where nothing is worth a trial.

    trials: of this policy question, oldest first. The percentile policy asks for 200 finished requests.
    """
    bounds = spec.token_policy.max_new_tokens
    if bounds is None or lengths is None:
        return None
    current = cap_of(body)
    decision = percentile(
        _estimate(lengths, current), current, Rules(floor_tokens=bounds.min, ceiling_tokens=bounds.max)
    )
    if not decision.decides or decision.max_new_tokens is None:
        return None
    cap = min(bounds.max, max(bounds.min, decision.max_new_tokens))
    ended = [t for t in trials if t.ended and t.policy is not None]
    since_seconds = max((t.finished_at or 0.0 for t in ended if t.phase is Phase.PROMOTED), default=0.0)
    in_force = InForce(current, since_seconds) if current is not None else None
    if not settle(cap, in_force, now).changed or with_cap(body, cap) == body:
        return None
    tried = [c for t in ended if _told(t) and t.policy is not None and (c := cap_of(t.policy.candidate)) is not None]
    if any(abs(cap - c) <= _NEAR * c for c in tried):
        return None
    return CapProposal(cap, f"{decision.reason} {decision.cost}".strip())


def _told(trial: TrialRecord) -> bool:
    """Whether it ended by what the cap did, so that the same is not tried again."""
    reason = trial.verdict.reason if trial.verdict else ""
    return trial.kind is TrialKind.POLICY and (reason == "Rejected" or reason not in NOT_TRIED)


def _estimate(lengths: Histogram, cap: int | None) -> Estimate:
    """vLLM does not tell which requests ended by their limit: all in the cap's bucket are taken to have, which can only
    make the cap higher."""
    if cap is None or cap > max(b for b in lengths.bounds[:-1]):
        return estimate(Lengths(lengths))
    return estimate(split_at_cap(lengths, float(cap), lengths.count))
