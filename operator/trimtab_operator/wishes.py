"""What a person asks of the operator: stop, approve, reject; and which question the spec puts. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.plan.record import Phase, TrialKind, Wish
from trimtab.plan.spec import Search, TunerSpec
from trimtab_operator.records import SEARCH_LABEL, record_of

Json = dict[str, Any]

APPROVE_ANNOTATION: Final = "trimtab.dev/approve"
REJECT_ANNOTATION: Final = "trimtab.dev/reject"


def holds_policy(trial: Json, spec: TunerSpec, trials: Sequence[Json]) -> bool:
    """The last promoted trial of the policy is where its cap is remembered."""
    won = [t for t in trials if t["metadata"].get("labels", {}).get(SEARCH_LABEL) == policy_label(spec)
           and record_of(t).phase is Phase.PROMOTED]  # fmt: skip
    return bool(won) and won[-1] is trial


def wish(tuner: Json, trial: Json, spec: TunerSpec, brake: str = "") -> Wish:
    """What the person wants, from suspend, mode, deletion, the policy and annotations. brake: what was pulled for many
    tuners at once."""
    notes: Mapping[str, str] = tuner["metadata"].get("annotations") or {}
    name, stop = trial["metadata"]["name"], ""
    hot = trial["spec"].get("kind") == TrialKind.POLICY.value
    if brake:
        stop = brake
    elif spec.suspend:
        stop = "stopped by spec.suspend"
    elif tuner["metadata"].get("deletionTimestamp") or trial["metadata"].get("deletionTimestamp"):
        stop = "stopped because the VLLMTuner or the TuningTrial was deleted"
    elif spec.mode == "Recommend":
        stop = "stopped because spec.mode is Recommend now"
    elif hot and trial["metadata"].get("labels", {}).get(SEARCH_LABEL) != policy_label(spec):
        stop = "stopped because spec.tokenPolicy changed"
    own: Mapping[str, str] = trial["metadata"].get("annotations") or {}

    def said(annotation: str) -> bool:
        """On the tuner it names the trial; on the trial itself it is "true"."""
        return notes.get(annotation) == name or own.get(annotation) == "true"

    return Wish(stop, approved=said(APPROVE_ANNOTATION), rejected=said(REJECT_ANNOTATION))


def search_hash(spec: TunerSpec) -> str:
    """Names the question the search answers; a changed question starts new counts of trials and patience."""
    search = spec.search.model_dump(mode="json", exclude={"calibration"})  # the question is the same either way
    for name in ("profile_config_map_ref", "sampler", "horizon_hours", "drift_percent"):
        if search[name] == Search.model_fields[name].default:
            del search[name]  # tuners of before these fields keep their question
    asked = [
        search,
        spec.objective.model_dump(mode="json"),
        spec.token_policy.model_dump(mode="json", include={"max_new_tokens"}),  # the policy is no setting of the search
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def policy_label(spec: TunerSpec) -> str:
    """Names the question of the policy's trials; another policy of the person asks anew."""
    asked = spec.token_policy.model_dump(mode="json", include={"policy", "max_new_tokens", "method"})
    return "policy-" + hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
