"""Between the custom resources (camelCase JSON, RFC 3339 times) and the state machine's records (unix seconds)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Peer, Phase, PodView, PolicyChange, Span, Strategy, TrialKind, TrialRecord
from trimtab.plan.summary import gain_text
from trimtab.text import plain
from trimtab_operator.rollout import Baseline

Json = dict[str, Any]

#: label of a TuningTrial: the tuner it belongs to
TUNER_LABEL: Final = "trimtab.dev/tuner"
#: label of a TuningTrial in flight, "true": what runs everywhere is counted with one small list
ACTIVE_LABEL: Final = "trimtab.dev/active"
#: label of a TuningTrial: which question (search, objective, token policy) it answers; a changed question starts a
#: new count
SEARCH_LABEL: Final = "trimtab.dev/search"
_HISTORY_LIMIT: Final = 50
#: characters of one text in a status. With the history of 50 lines a TuningTrial stays far below etcd's 1.5 MB
MOST_TEXT: Final = 1024
#: pods of before that a trial remembers; a canary replaces one
_MOST_PEERS: Final = 100


def rfc3339(seconds: float, precision: str = "milliseconds") -> str:
    """Unix seconds as UTC. Kubernetes' MicroTime (Events, Leases) wants `precision` microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def unix(text: str) -> float:
    """RFC 3339 as unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Trial(dict[str, Any]):
    """A TuningTrial as read. A pass asks for its record some seven times; it is worked out once.

    Hazard: change nothing in it that the record is made of.
    """

    @cached_property
    def record(self) -> TrialRecord:
        return _record(self)


def record_of(trial: Json) -> TrialRecord:
    """The record in a TuningTrial. A trial without status was created but not begun: it has written nothing."""
    return trial.record if isinstance(trial, Trial) else _record(trial)


def _record(trial: Json) -> TrialRecord:
    meta, spec, status = trial["metadata"], trial["spec"], trial.get("status") or {}
    created = unix(meta["creationTimestamp"])
    strategy = Strategy(spec.get("strategy") or Strategy.CANARY)
    first = Phase.STARTING if strategy is Strategy.CANARY else Phase.MEASURING_BEFORE
    first = Phase.AWAITING_APPROVAL if spec.get("approvalRequired") else first
    times = {name: unix(status[key]) if status.get(key) else None for name, key in _TIMES.items()}
    return TrialRecord(
        name=meta["name"],
        number=spec["number"],
        configuration=Configuration.from_camel(spec["configuration"]),
        baseline=Configuration.from_camel(spec.get("baselineConfiguration") or {}),
        phase=Phase(status.get("phase") or first),
        phase_since=unix(status["phaseSince"]) if status.get("phaseSince") else created,
        started_at=unix(status["startedAt"]) if status.get("startedAt") else created,
        replicas=spec["baseline"].get("replicas", 1),
        kind=TrialKind(spec.get("kind") or TrialKind.TUNE),
        change=spec.get("change", ""),
        policy=_policy_of(spec.get("policy")),
        peers=tuple(Peer(p["name"], p.get("place", "")) for p in spec.get("peers") or ()),
        undisturbed_since=unix(spec["undisturbedSince"]) if spec.get("undisturbedSince") else None,
        workload={k: float(v) for k, v in (spec.get("workload") or {}).items()},
        origin=spec.get("origin", ""),
        applied=status.get("applied", False),
        held=status.get("held", False),
        evaluations=status.get("evaluations", 0),
        remeasured=status.get("remeasured", 0),
        verdict=_verdict_of(status.get("verdict")),
        strategy=strategy,
        max_surge=spec["baseline"].get("maxSurge", 0),
        overlapped=status.get("overlapped", False),
        excused=status.get("excused", 0),
        spans=tuple(_span_of(s) for s in status.get("spans") or ()),
        infeasible=status.get("infeasible", False),
        restarts=status.get("restarts", 0),
        message=status.get("message", spec.get("origin", "")),
        **times,
    )


def _span_of(stored: Json) -> Span:
    return Span(stored["pod"], stored.get("ip"), unix(stored["from"]), unix(stored["to"]) if stored.get("to") else None)


def _span_json(span: Span) -> Json:
    ends = {"to": rfc3339(span.end)} if span.end is not None else {}
    return {"pod": span.pod, **({"ip": span.ip} if span.ip else {}), "from": rfc3339(span.start), **ends}


def _policy_of(stored: Json | None) -> PolicyChange | None:
    if not stored:
        return None
    return PolicyChange(stored["pod"], json.loads(stored["baselineJson"]), json.loads(stored["candidateJson"]))


_TIMES: Final = {
    "measure_from": "measureFrom",
    "confirm_from": "confirmFrom",
    "metrics_seen_at": "metricsSeenAt",
    "finished_at": "finishedAt",
}


def status_of(record: TrialRecord, previous: Json, canary_pod: str, generation: int) -> Json:
    """The TuningTrial's whole status. `previous` is the status before; its history and transition times live on."""
    status: Json = {
        "phase": record.phase.value,
        "phaseSince": rfc3339(record.phase_since),
        "startedAt": rfc3339(record.started_at),
        "applied": record.applied,
        "held": record.held,
        "evaluations": record.evaluations,
        "remeasured": record.remeasured,
        "infeasible": record.infeasible,
        "restarts": record.restarts,
        "message": plain(record.message, MOST_TEXT),
        "settings": record.change or settings_text(record.baseline, record.configuration),
        "gain": gain_text(record.verdict),
        "history": _history(record, previous),
    }
    for name, key in _TIMES.items():
        if (value := getattr(record, name)) is not None:
            status[key] = rfc3339(value)
    if record.overlapped:
        status["overlapped"] = True
    if record.excused:
        status["excused"] = record.excused
    if record.spans:
        status["spans"] = [_span_json(s) for s in record.spans]
    if pod := canary_pod or previous.get("canaryPod", ""):
        status["canaryPod"] = pod
    if record.verdict is not None:
        status["verdict"] = verdict_json(record.verdict)
    status["conditions"] = conditions(
        _trial_conditions(record), previous.get("conditions") or [], generation, record.phase_since
    )
    return status


def settings_text(baseline: Configuration, candidate: Configuration) -> str:
    """What the candidate changes, short enough for a column."""
    changes = baseline.changes_to(candidate)
    shown = (
        f"{n}={'default' if v is None else str(v).lower() if isinstance(v, bool) else v}" for n, v in changes.items()
    )
    return " ".join(shown) or "(no change)"


def _history(record: TrialRecord, previous: Json) -> list[Json]:
    """One line per phase entered, newest last; a new message in the same phase replaces the line's text."""
    lines: list[Json] = list(previous.get("history") or [])
    message = plain(record.message, MOST_TEXT)
    line = {"phase": record.phase.value, "at": rfc3339(record.phase_since), "message": message}
    if lines and lines[-1]["phase"] == line["phase"] and lines[-1]["at"] == line["at"]:
        lines[-1] = line
    else:
        lines.append(line)
    return lines[-_HISTORY_LIMIT:]


def verdict_json(verdict: Verdict) -> Json:
    """For a status. JSON has no NaN and no infinity, and the API server would refuse the whole status for one."""
    out: Json = {"kind": verdict.kind.value, "reason": verdict.reason, "message": plain(verdict.message, MOST_TEXT)}
    for key, value in (
        ("gainPercent", verdict.gain),
        ("gainLowPercent", verdict.gain_low),
        ("gainHighPercent", verdict.gain_high),
    ):
        if value is not None and math.isfinite(value):
            out[key] = round(value * 100, 4)
    if verdict.score is not None and math.isfinite(verdict.score):
        out["score"] = round(verdict.score, 6)
    numbers = {k: round(v, 6) for k, v in verdict.numbers.items() if v is not None and math.isfinite(v)}
    if numbers:
        out["numbers"] = numbers
    return out


def _verdict_of(stored: Json | None) -> Verdict | None:
    if not stored:
        return None
    share = {
        k: stored[f"{k}Percent"] / 100 if f"{k}Percent" in stored else None for k in ("gain", "gainLow", "gainHigh")
    }
    return Verdict(
        kind=Kind(stored["kind"]),
        reason=stored["reason"],
        message=stored["message"],
        gain=share["gain"],
        gain_low=share["gainLow"],
        gain_high=share["gainHigh"],
        score=stored.get("score"),
        numbers=dict(stored.get("numbers") or {}),
    )


def _trial_conditions(record: TrialRecord) -> list[tuple[str, str, str, str]]:
    if not record.ended:
        return [("Complete", "False", record.phase.value, record.message)]
    reason = record.verdict.reason if record.verdict else record.phase.value
    return [("Complete", "True", reason, record.message or record.phase.value)]


def conditions(wanted: list[tuple[str, str, str, str]], before: list[Json], generation: int, now: float) -> list[Json]:
    """Kubernetes conditions from (type, status, reason, message); lastTransitionTime moves only when status flips."""
    known = {c["type"]: c for c in before}
    out: list[Json] = []
    for kind, status, reason, message in wanted:
        old = known.get(kind)
        same = old is not None and old["status"] == status
        since = old["lastTransitionTime"] if old is not None and same else rfc3339(now).split(".")[0] + "Z"
        out.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": plain(message, MOST_TEXT),
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return out


def owned_by(api_version: str, kind: str, meta: Json) -> Json:
    """An entry of ownerReferences: with that object this one goes, too. meta: of the owner."""
    return {"apiVersion": api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}


def new_trial(
    tuner: Json,
    number: int,
    baseline: Baseline,
    replicas: int,
    before: Configuration,
    candidate: Configuration,
    origin: str,
    *,
    approval: bool,
    search: str,
    kind: TrialKind = TrialKind.TUNE,
    change: str = "",
    policy: PolicyChange | None = None,
    strategy: Strategy = Strategy.CANARY,
    pods: Sequence[PodView] = (),
    undisturbed_since: float | None = None,
    workload: Mapping[str, float] | None = None,
) -> Json:
    """A TuningTrial: owned by its tuner, with the baseline inside, so that it exists before the first write to the
    target.
    """
    meta = tuner["metadata"]
    owner = owned_by(tuner["apiVersion"], tuner["kind"], meta)
    extra: Json = {"change": plain(change, 256)} if change else {}
    if undisturbed_since is not None:
        extra["peers"] = [{"name": p.name, "place": p.place} for p in pods if p.health.ready][:_MOST_PEERS]
        extra["undisturbedSince"] = rfc3339(undisturbed_since)
    if workload:
        extra["workload"] = {k: round(v, 6) for k, v in workload.items()}
    if policy is not None:
        extra["policy"] = {
            "pod": policy.pod,
            "baselineJson": json.dumps(policy.baseline, sort_keys=True),
            "candidateJson": json.dumps(policy.candidate, sort_keys=True),
        }
    return {
        "apiVersion": tuner["apiVersion"],
        "kind": "TuningTrial",
        "metadata": {
            "name": f"{meta['name']}-{number}",
            "namespace": meta["namespace"],
            "labels": {TUNER_LABEL: meta["name"], SEARCH_LABEL: search, ACTIVE_LABEL: "true"},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "tunerName": meta["name"],
            "number": number,
            "kind": kind.value,
            "strategy": strategy.value,
            **extra,
            "configuration": candidate.to_camel(),
            "baselineConfiguration": before.to_camel(),
            "origin": plain(origin, MOST_TEXT),
            "approvalRequired": approval,
            "baseline": {**baseline.to_spec(), "replicas": replicas},
        },
    }
