"""VLLMTuners and TuningTrials, as `kubectl get -o json` prints them, as a `Report`.

Hazard: written by any version of the operator, or cut out of a larger list by hand; what is not there is unknown. A
TuningTrial that expired is gone, so the first baseline is that of the oldest trial left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Phase, TrialKind, TrialRecord
from trimtab.report.fields import needed, number, numbers, rows, table, text, unix, whole
from trimtab.report.read_tune import cause, limits
from trimtab.report.story import Report, figures_of_ends
from trimtab.text import whole_number

Json = dict[str, Any]
#: extended resources that are whole GPUs
_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")


def from_objects(data: Mapping[str, Any], name: str, wanted: str | None) -> Report:
    """`wanted`: the tuner's name, needed where there are several."""
    objects = rows(data.get("items")) if "items" in data else [dict(data)]
    tuners = {text(table(o.get("metadata")).get("name")): o for o in objects if o.get("kind") == "VLLMTuner"}
    if not tuners:
        raise InputError(name, "holds no VLLMTuner", "Use `kubectl get vllmtuners,tuningtrials -n NAMESPACE -o json`.")
    if wanted is None and len(tuners) > 1:
        raise InputError("--tuner", f"is needed, as {name} holds several", f"Use one of {', '.join(sorted(tuners))}.")
    if wanted is not None and wanted not in tuners:
        raise InputError("--tuner", f"{wanted!r} is not in {name}", f"Use one of {', '.join(sorted(tuners))}.")
    tuner = tuners[wanted] if wanted is not None else next(iter(tuners.values()))
    own = table(tuner.get("metadata"))
    trials = [o for o in objects if o.get("kind") == "TuningTrial" and _of(o, own)]
    return _report(tuner, trials)


def _of(trial: Json, tuner: Mapping[str, Any]) -> bool:
    same = table(trial.get("metadata")).get("namespace") == tuner.get("namespace")
    return same and table(trial.get("spec")).get("tunerName") == tuner.get("name")


def _report(tuner: Json, objects: Sequence[Json]) -> Report:
    meta, spec, status = (table(tuner.get(k)) for k in ("metadata", "spec", "status"))
    trials = tuple(sorted((trial_record(o) for o in objects), key=lambda t: t.number))
    recommendation = table(status.get("recommendation"))
    before, after = figures_of_ends(trials)
    target, namespace = text(table(spec.get("targetRef")).get("name")), text(meta.get("namespace"))
    return Report(
        title=f"{namespace}/{target}" if namespace else target,
        where=f"Kubernetes, VLLMTuner {text(meta.get('name'))}, mode {text(spec.get('mode')) or 'Recommend'}",
        state=_state(status),
        trials=trials,
        patch=text(recommendation.get("patch")),
        recommendation=text(recommendation.get("message")),
        before=before,
        after=after,
        findings=tuple(cause(f) for f in rows(status.get("findings"))),
        limits=limits(spec),
        replicas=max((t.replicas for t in trials), default=0) or None,
        gpus=_gpus(objects[-1]) if objects else None,
    )


def _state(status: Mapping[str, Any]) -> str:
    """The phase, and why nothing happens where it is stalled or idle."""
    phase = text(status.get("phase")) or "not looked at yet"
    said = {text(c.get("type")): c for c in rows(status.get("conditions"))}
    why = next((said[k] for k in ("Stalled", "Progressing") if said.get(k, {}).get("message")), None)
    return f"{phase}: {text(why.get('message'))}" if why is not None else phase


def trial_record(trial: Mapping[str, Any]) -> TrialRecord:
    """A TuningTrial of any version; InputError names the field that cannot be read."""
    meta, spec, status = (table(trial.get(k)) for k in ("metadata", "spec", "status"))
    where = f"TuningTrial {text(meta.get('name')) or '?'}"
    created = unix(meta.get("creationTimestamp"), f"{where}: metadata.creationTimestamp") or 0.0

    def at(key: str) -> float | None:
        return unix(status.get(key), f"{where}: status.{key}")

    first = Phase.AWAITING_APPROVAL if spec.get("approvalRequired") else Phase.STARTING
    return TrialRecord(
        name=text(meta.get("name")),
        number=whole(needed(spec, "number", f"{where}: spec")),
        configuration=_configuration(spec, "configuration", where),
        baseline=_configuration(spec, "baselineConfiguration", where),
        phase=_enum(Phase, status.get("phase") or first, f"{where}: status.phase"),
        phase_since=at("phaseSince") or created,
        started_at=at("startedAt") or created,
        replicas=whole(table(spec.get("baseline")).get("replicas"), 1),
        origin=text(spec.get("origin")),
        measure_from=at("measureFrom"),
        confirm_from=at("confirmFrom"),
        evaluations=whole(status.get("evaluations")),
        verdict=_verdict(status.get("verdict"), where),
        infeasible=status.get("infeasible") is True,
        restarts=whole(status.get("restarts")),
        finished_at=at("finishedAt"),
        message=text(status.get("message")),
        kind=_enum(TrialKind, spec.get("kind") or TrialKind.TUNE, f"{where}: spec.kind"),
        change=text(spec.get("change")),
    )


def _configuration(spec: Mapping[str, Any], key: str, where: str) -> Configuration:
    try:
        return Configuration.from_camel(table(spec.get(key)))
    except InputError as error:
        raise InputError(f"{where}: spec.{key}.{error.field}", error.problem, error.fix) from error


def _enum(kind: Any, value: object, where: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InputError(where, f"{str(value)[:40]!r} is not known", f"Known are {known}.") from None


def _verdict(stored: object, where: str) -> Verdict | None:
    data = table(stored)
    if not data:
        return None

    def share(key: str) -> float | None:
        value = number(data.get(key))
        return None if value is None else value / 100

    return Verdict(
        kind=_enum(Kind, data.get("kind"), f"{where}: status.verdict.kind"),
        reason=text(data.get("reason")),
        message=text(data.get("message")),
        gain=share("gainPercent"),
        gain_low=share("gainLowPercent"),
        gain_high=share("gainHighPercent"),
        score=number(data.get("score")),
        numbers=dict(numbers(data.get("numbers"))),
    )


def _gpus(trial: Mapping[str, Any]) -> float | None:
    """GPUs of one pod by the limits in the stored pod template; None where it names none."""
    try:
        template = table(json.loads(text(table(table(trial.get("spec")).get("baseline")).get("templateJson"))))
    except (ValueError, RecursionError):
        return None
    total = 0.0
    for container in rows(table(template.get("spec")).get("containers")):
        asked = table(table(container.get("resources")).get("limits"))
        total += sum(whole_number(str(asked.get(g, ""))) or 0 for g in _GPUS)
    return total or None
