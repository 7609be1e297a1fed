"""The VLLMTuner's status, whole, from records and what was seen. Pure; says the same thing for the same input, so
ticks without news write nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.diagnose.finding import Finding
from trimtab.errors import SpecError
from trimtab.plan.block import Block, Note
from trimtab.plan.handover import Handover
from trimtab.plan.middleware import Decision
from trimtab.plan.preconditions import FleetView, restarts_within_day
from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.plan.summary import TunerPhase, tally, tuner_phase
from trimtab.text import plain
from trimtab.tune.suggestion import Suggestion
from trimtab_operator.output import forms
from trimtab_operator.records import MOST_TEXT, conditions

Json = dict[str, Any]
#: of status.notes, as the CRD has it
MOST_NOTES = 10
#: characters of a patch in the status; etcd takes 1.5 MB of the whole object
MOST_PATCH = 100_000
#: of status.findings
MOST_FINDINGS = 50
#: blocks that mean "the tuner cannot do its work until someone mends this": Ready is False
_NOT_READY = frozenset({"TargetNotFound", "EngineUnreadable", "MetricsUnavailable"})


@dataclass(frozen=True)
class Middleware:
    """The condition, None to keep the last one; and status.middleware, None where no pod has it."""

    decision: Decision | None
    pods: Json | None


@dataclass(frozen=True)
class Situation:
    """What the idle look found; empty while a trial is in flight."""

    block: Block | None = None
    fleet: FleetView | None = None
    suggestion: Suggestion | None = None
    spec_error: SpecError | None = None
    #: None keeps what was said before
    middleware: Middleware | None = None
    notes: Sequence[Note] = ()
    #: the suggestion in forms for the Deployment's owner
    handover: Handover | None = None


def tuner_status(
    tuner: Json,
    spec: TunerSpec,
    records: Sequence[TrialRecord],
    active: TrialRecord | None,
    situation: Situation,
    now: float,
) -> Json:
    before: Json = tuner.get("status") or {}
    generation = tuner["metadata"].get("generation", 1)
    if situation.spec_error is not None:
        error = situation.spec_error
        wanted = [("Ready", "False", "InvalidSpec", str(error)), ("Stalled", "True", "InvalidSpec", str(error))]
        return {**before, "observedGeneration": generation, "phase": TunerPhase.FAILED.value,
                "conditions": conditions(wanted, before.get("conditions") or [], generation, now)}  # fmt: skip
    counts = tally(records)
    recommended = situation.suggestion is not None
    status: Json = {
        "observedGeneration": generation,
        "phase": tuner_phase(spec, active, situation.block, recommended=recommended).value,
        "trials": {
            "total": counts.total, "promoted": counts.promoted, "rolledBack": counts.rolled_back,
            "failed": counts.failed, "inconclusive": counts.inconclusive,
        },
        "restartsToday": restarts_within_day(records, now),
        "bestGain": counts.best,
        "conditions": conditions(
            [*_conditions(spec, active, situation), *_middleware(before, situation)],
            before.get("conditions") or [], generation, now,
        ),
    }  # fmt: skip
    pods = situation.middleware.pods if situation.middleware is not None else before.get("middleware")
    if pods is not None:
        status["middleware"] = pods
    if counts.best_gain is not None:
        status["bestGainPercent"] = round(counts.best_gain * 100, 2)
    if active is not None:
        status["currentTrial"] = active.name
    for key in (
        "finding",
        "findings",
        "configuration",
        "recommendation",
        "notes",
    ):  # a trial in flight keeps what was last found
        if key in before:
            status[key] = before[key]
    if situation.fleet is not None:
        status.pop("notes", None)
        notes = [{"reason": n.reason, "message": plain(n.message, MOST_TEXT)} for n in situation.notes[:MOST_NOTES]]
        status |= {"notes": notes} if notes else {}
        _add_fleet(status, situation.fleet)
        _add_suggestion(status, situation.suggestion, situation.handover)
    return status


def _add_fleet(status: Json, fleet: FleetView) -> None:
    if fleet.configuration is not None:
        status["configuration"] = fleet.configuration.to_camel()
    if fleet.observation is not None:
        found = [_finding(f) for f in fleet.findings[:MOST_FINDINGS]]
        status["findings"] = _settle(status.get("findings") or [], found)
        status["finding"] = fleet.findings[0].name if fleet.findings else "None"


def _settle(before: list[Json], now: list[Json]) -> list[Json]:
    """The old findings where only their numbers moved: a status write each tick would tell nobody anything."""
    return before if [f["name"] for f in before] == [f["name"] for f in now] else now


#: a recommended number within this factor of the one already shown is the same advice
_SAME_ADVICE = 1.25


def _same_advice(shown: Json, new: Json) -> bool:
    """Whether two configurations (camelCase) say the same thing: equal keys and switches, numbers close."""
    if shown.keys() != new.keys():
        return False
    return all(
        shown[k] == new[k]
        if isinstance(new[k], bool)
        else max(shown[k], new[k]) <= _SAME_ADVICE * min(shown[k], new[k])
        for k in new
    )


def _add_suggestion(status: Json, suggestion: Suggestion | None, made: Handover | None) -> None:
    shown = status.pop("recommendation", None)
    if suggestion is not None:
        same = shown and _same_advice(shown["configuration"], suggestion.configuration.to_camel())
        if same and _same_forms(shown, made):
            status["recommendation"] = shown
            return
        status["recommendation"] = {
            "configuration": suggestion.configuration.to_camel(),
            "message": suggestion.message,
            "patch": _shown(suggestion.patch),
            "snippet": _shown(suggestion.snippet),
            **(forms(made) if made is not None else {}),
        }


def _same_forms(shown: Json, made: Handover | None) -> bool:
    """Whether the advice is for the same owner in the same forms: a right or an owner may have come meanwhile."""
    new = forms(made) if made is not None else {}
    return shown.get("owner") == new.get("owner") and set(shown.get("forms") or ()) == set(new.get("forms") or ())


def _shown(text: str) -> str:
    """A patch as it is, or why it is not here: cut it would be wrong."""
    if len(text) <= MOST_PATCH:
        return text
    return f"# {len(text):,} characters, too long for a status: set the flags of configuration in the manifest."


def _finding(finding: Finding) -> Json:
    return {
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": round(finding.confidence, 3),
        "message": plain(finding.message, MOST_TEXT),
        "advice": plain(finding.advice, MOST_TEXT),
        "avoid": plain(finding.avoid, MOST_TEXT),
        "tunable": finding.tunable,
        "role": finding.role.value,
        "evidence": {k: round(v, 6) for k, v in finding.evidence.items() if math.isfinite(v)},
    }


def _conditions(spec: TunerSpec, active: TrialRecord | None, situation: Situation) -> list[tuple[str, str, str, str]]:
    """Ready: it can see and read the target. Progressing: a trial is in flight. Stalled: only a person can help."""
    block = situation.block
    if active is not None:
        return [
            ("Ready", "True", "Watching", "target, engine and metrics can be read"),
            ("Progressing", "True", active.phase.value, f"{active.name}: {active.message}"),
            ("Stalled", "False", "TrialInFlight", ""),
        ]
    reason, why = _idle_reason(spec, block)
    idle = ("Progressing", "False", reason, why)
    if block is not None and block.hard:
        ready = ("Ready", "False", block.reason, block.message) if block.reason in _NOT_READY else _READY
        return [ready, idle, ("Stalled", "True", block.reason, block.message)]
    return [_READY, idle, ("Stalled", "False", "Working", "")]


_READY = ("Ready", "True", "Watching", "target, engine and metrics can be read")


def _idle_reason(spec: TunerSpec, block: Block | None) -> tuple[str, str]:
    """Why nothing happens now."""
    if block is not None and block.reason in ("KillSwitch", "NamespaceFrozen"):
        return block.reason, block.message
    if spec.suspend:
        return "Suspended", "suspended; set spec.suspend: false to go on"
    if block is not None:
        return block.reason, block.message
    if spec.mode == "Recommend":
        return "RecommendOnly", "mode Recommend writes nothing to the target; see status.recommendation"
    return "Idle", "the next trial is due"


def _middleware(before: Json, situation: Situation) -> list[tuple[str, str, str, str]]:
    """The condition Middleware, where spec.tokenPolicy.middleware is Install or the pods have it."""
    said = situation.middleware.decision if situation.middleware is not None else None
    if said is None:
        old = [c for c in before.get("conditions") or () if c["type"] == "Middleware"]
        return [(c["type"], c["status"], c["reason"], c["message"]) for c in old]
    if not said.reason:
        return []
    if said.status == "True":
        return [("Middleware", "True", said.reason, said.message)]
    return [("Middleware", "False", said.reason, said.message)]
