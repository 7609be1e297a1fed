"""What a person can ask for: each asks for what is seen now, by a patch that fails if somebody changed it meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from trimtab.errors import InputError, TargetConflict, TrimtabError
from trimtab_operator.plugin.kubectl import Kubectl
from trimtab_operator.plugin.objects import AWAITING, Json, Trial, rows, table, text, trial

_POLL_SECONDS: Final = 2.0
KINDS: Final = "vllmtuners,tuningtrials"
TUNERS: Final = "vllmtuners.trimtab.dev"
TRIALS: Final = "tuningtrials.trimtab.dev"


class NotPossible(TrimtabError):
    """Asked for something that does not fit what is there now."""

    retry_seconds = None


def find(api: Kubectl, name: str) -> tuple[Json, list[Json]]:
    """The tuner of this name, or of the trial of this name; and its trials, oldest first."""
    objects = api.get(KINDS)
    tuners = {table(o.get("metadata")).get("name"): o for o in objects if o.get("kind") == "VLLMTuner"}
    trials = [o for o in objects if o.get("kind") == "TuningTrial"]
    named = next((table(o.get("spec")).get("tunerName") for o in trials if _name(o) == name), None)
    found = tuners.get(name, tuners.get(named))
    if found is None:
        known = ", ".join(sorted(text(n) for n in tuners)) or "none in this namespace"
        raise InputError("NAME", f"there is no VLLMTuner or TuningTrial {text(name, 80)}", f"VLLMTuners: {known}.")
    own = [o for o in trials if table(o.get("spec")).get("tunerName") == _name(found)]
    return found, sorted(own, key=lambda o: table(o.get("spec")).get("number") or 0)


def _name(o: Json) -> str:
    return str(table(o.get("metadata")).get("name"))


def decide(api: Kubectl, name: str, annotation: str) -> str:
    """Approve or reject the trial that waits: the annotation on the trial itself, so no other one is meant."""
    tuner, trials = find(api, name)
    waits = [o for o in trials if trial(o).phase == AWAITING and name in (_name(o), _name(tuner))]
    if not waits:
        now = next((trial(o) for o in trials if not trial(o).ended), None)
        seen = f"{now.name} is {now.phase}" if now is not None else "no trial is in flight"
        hint = "To end a trial that runs: kubectl trimtab rollback." if now is not None else "Nothing is to be decided."
        raise NotPossible(f"no trial of {_name(tuner)} waits for approval; {seen}", hint=hint)
    api.patch(TRIALS, waits[0], {"metadata": {"annotations": {annotation: "true"}}})
    seen_now = trial(waits[0])
    return f"{seen_now.name} ({seen_now.settings})"


def suspend(api: Kubectl, name: str, wanted: bool) -> tuple[bool, Trial | None]:
    """(whether it was changed, the trial in flight). A trial in flight is rolled back by the operator."""
    tuner, trials = find(api, name)
    active = next((trial(o) for o in trials if not trial(o).ended), None)
    if (table(tuner.get("spec")).get("suspend") is True) is wanted:
        return False, active
    api.patch(TUNERS, tuner, {"spec": {"suspend": wanted}})
    return True, active


def wait_until_ended(
    api: Kubectl, name: str, seconds: float, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Trial:  # fmt: skip
    """The trial at its end; each new message is told. NotPossible where it takes too long."""
    last, end = "", clock() + seconds
    while True:
        now = trial(api.get(TRIALS, name)[0])
        if now.ended:
            return now
        if (said := f"{now.phase}: {now.message}") != last:
            tell(said)
            last = said
        if clock() >= end:
            hint = "It goes on without you; is the operator running? kubectl trimtab doctor"
            raise NotPossible(f"{name} is still {now.phase} after {seconds:.0f} s", hint=hint)
        sleep(_POLL_SECONDS)


def last_kept(trials: list[Json]) -> Json:
    """The newest promoted trial of settings, whose baseline can be restored."""
    kept = [o for o in trials if trial(o).phase == "Promoted" and table(o.get("spec")).get("kind") in (None, "Tune")]
    if not kept:
        raise NotPossible("no trial is in flight and none was kept", hint="There is nothing to roll back.")
    return kept[-1]


def restore(api: Kubectl, kept: Json, deployment: Json) -> None:
    """The pod template as it was before `kept`. Only if the target still runs exactly what the trial left there."""
    baseline = table(table(kept.get("spec")).get("baseline"))
    before, after = (_template(baseline.get(k)) for k in ("templateJson", "candidateTemplateJson"))
    if before is None or after is None:
        raise NotPossible(f"{_name(kept)} holds no templates", hint="Use kubectl rollout undo.")
    meta, spec = table(deployment.get("metadata")), table(deployment.get("spec"))
    if str(meta.get("uid")) != str(baseline.get("deploymentUid")) or not _same(table(spec.get("template")), after):
        hint = "Compare by hand: kubectl rollout history; then kubectl rollout undo."
        raise TargetConflict(f"{text(meta.get('name'))} was changed after {_name(kept)} had been kept", hint=hint)
    if spec.get("paused") is True:
        raise NotPossible(f"the rollout of {text(meta.get('name'))} is paused", hint="kubectl rollout resume first.")
    api.patch("deployments.apps", deployment, [{"op": "replace", "path": "/spec/template", "value": before}], "json")


def _template(stored: object) -> Json | None:
    try:
        return table(json.loads(str(stored))) or None
    except ValueError:
        return None


def _same(one: Json, other: Json) -> bool:
    """Equal but for creationTimestamp, which the API server adds to templates as null."""

    def bare(template: Json) -> Json:
        meta = {k: v for k, v in table(template.get("metadata")).items() if k != "creationTimestamp"}
        return {**template, "metadata": meta}

    return bare(one) == bare(other)


def changes(kept: Json) -> list[str]:
    """What a rollback of `kept` sets, in words."""
    spec = table(kept.get("spec"))
    old, new = table(spec.get("baselineConfiguration")), table(spec.get("configuration"))
    names = sorted({*old, *new})
    return [f"{n} {text(new.get(n, '-'))} -> {text(old.get(n, '-'))}" for n in names if old.get(n) != new.get(n)]


def phases(o: Json) -> list[tuple[str, str, str]]:
    """(time, phase, message) of one trial."""
    lines = rows(table(o.get("status")).get("history"))
    return [(text(h.get("at")), text(h.get("phase")), text(h.get("message"), 600)) for h in lines]
