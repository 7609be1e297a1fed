"""A recommended change for whoever owns the Deployment: in forms for the status, and in a ConfigMap where the spec
names one. Also a promoted change that the owner's source does not have yet: its next upgrade would undo it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trimtab.engine.ownership import group_of, owners
from trimtab.errors import TrimtabError
from trimtab.plan.handover import Handover, Source, changes_between, handover
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase, TrialKind, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.tune.suggestion import Suggestion
from trimtab_operator.cluster import FIELD_MANAGER, OWNERS, Cluster
from trimtab_operator.records import TUNER_LABEL, owned_by, record_of, unix
from trimtab_operator.target import Target

Json = dict[str, Any]
#: form in status.recommendation.forms -> file in the ConfigMap
_FILES: Final = {
    "helmValues": "values.yaml",
    "kustomize": "kustomization.yaml",
    "strategicPatch": "patch.yaml",
    "jsonPatch": "patch.json",
    "ownerPatch": "owner-patch.json",
}
#: the Deployment controller; it writes status and one annotation
_CONTROLLER: Final = "kube-controller-manager"


@dataclass(frozen=True)
class Advice:
    suggestion: Suggestion | None = None
    handover: Handover | None = None


def advice(
    target: Target,
    fleet: FleetView,
    trials: Sequence[Json],
    suggestion: Suggestion | None,
    cluster: Cluster | None = None,
) -> Advice:
    """The suggestion with its forms; without one, what was promoted and is not in the owner's source.

    cluster: where a controller's object is read. A controller's Deployment gets a patch of that object, never its own.
    """
    if target.deployment is None or fleet.configuration is None:
        return Advice(suggestion)
    if suggestion is None:
        return _unsaved(target.deployment, fleet, trials)
    changes = changes_between(fleet.configuration, suggestion.configuration)
    source = _source(target.deployment["metadata"], cluster)
    made = handover(
        target.deployment, target.template, suggestion.template, changes, source, fleet.engine_version
    )  # fmt: skip
    if made is not None and owned_by_controller(target.deployment["metadata"]):
        suggestion = replace(suggestion, patch=made.command or f"# {made.advice}", snippet="")
    return Advice(suggestion, made)


def owned_by_controller(meta: Mapping[str, Any]) -> bool:
    return any(owner.refuses for owner in owners(meta))


def _source(meta: Mapping[str, Any], cluster: Cluster | None) -> Source | None:
    """The object that the Deployment's controller reads, where it is of a known kind and may be read."""
    found = next((o for o in owners(meta) if o.reference), None)
    if found is None or found.reference is None or cluster is None:
        return None
    api_version, kind, name = found.reference
    body = cluster.owner(meta["namespace"], api_version, kind, name)
    group = group_of(api_version)
    return None if body is None else Source(f"{OWNERS[group, kind]}.{group}", body)


def _unsaved(deployment: Json, fleet: FleetView, trials: Sequence[Json]) -> Advice:
    """From the template before the first promotion to the one of now, while nobody else has written since the last."""
    pairs = [(t, record_of(t)) for t in trials]
    won = [(t, r) for t, r in pairs if r.phase is Phase.PROMOTED and r.kind is TrialKind.TUNE]
    found = owners(deployment["metadata"])
    if not won or not found or fleet.configuration is None or _written_since(deployment["metadata"], won[-1][1]):
        return Advice()
    template = deployment["spec"]["template"]
    if template != json.loads(won[-1][0]["spec"]["baseline"]["candidateTemplateJson"]):
        return Advice()
    for trial, record in won:
        before = json.loads(trial["spec"]["baseline"]["templateJson"])
        made = handover(deployment, before, template, changes_between(record.baseline, fleet.configuration))
        if made is not None:
            text = (
                f"{won[-1][1].name} was promoted, and the source of {found[0].title} does not have its settings yet: "
                "the next time it writes, they are gone. Put them there."
            )
            return Advice(Suggestion(fleet.configuration, text, "", "", template), made)
    return Advice()


def _written_since(meta: Mapping[str, Any], record: TrialRecord) -> bool:
    """Whether anybody but us has written the spec since the trial ended; then the source may have it."""
    ended = record.finished_at or record.started_at
    for entry in meta.get("managedFields") or ():
        ours = entry.get("manager") in (FIELD_MANAGER, _CONTROLLER) or entry.get("subresource")
        if not ours and entry.get("time") and unix(entry["time"]) > ended:
            return True
    return False


def forms(made: Handover) -> Json:
    """For status.recommendation."""
    texts = {
        "jsonPatch": made.json_patch,
        "strategicPatch": made.strategic,
        "kustomize": made.kustomize,
        "helmValues": made.helm_values,
        "ownerPatch": made.owner_patch,
    }
    return {"owner": made.owner, "advice": made.advice, "forms": {k: v for k, v in texts.items() if v}}


@dataclass
class Output:
    """Writes the ConfigMap. `told(tuner, text)` hears why it was not written."""

    cluster: Cluster
    told: Callable[[Json, str], None]
    #: tuner's uid -> (ConfigMap, digest of its content) that was written or found
    _written: dict[str, tuple[str, str]] = field(default_factory=dict)

    def write(self, tuner: Json, spec: TunerSpec, status: Json) -> None:
        """What status.recommendation says, as files; nothing recommended empties it. A failure stops nothing."""
        name, meta = spec.output.config_map, tuner["metadata"]
        if name is None:
            self._written.pop(meta["uid"], None)
            return
        shown = (status.get("recommendation") or {}).get("forms") or {}
        data = {_FILES[form]: text for form, text in sorted(shown.items()) if form in _FILES}
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        if self._written.get(meta["uid"]) == (name, digest):
            return
        try:
            problem = self._put(tuner, name, data)
        except TrimtabError as error:
            problem = error.told
        if problem:
            self.told(tuner, f"ConfigMap {name} of spec.output is not written: {problem}")
        else:
            self._written[meta["uid"]] = (name, digest)

    def _put(self, tuner: Json, name: str, data: Json) -> str:
        meta = tuner["metadata"]
        found = self.cluster.get("ConfigMap", meta["namespace"], name)
        if found is None:
            self.cluster.create("ConfigMap", meta["namespace"], _config_map(tuner, name, data))
            return ""
        if (found["metadata"].get("labels") or {}).get(TUNER_LABEL) != meta["name"]:
            return f"it exists and is not this tuner's (label {TUNER_LABEL}={meta['name']}): name another one"
        if (found.get("data") or {}) != data:
            self.cluster.json_patch("ConfigMap", found, [{"op": "add", "path": "/data", "value": data}])
        return ""


def _config_map(tuner: Json, name: str, data: Json) -> Json:
    meta = tuner["metadata"]
    owner = owned_by(tuner["apiVersion"], tuner["kind"], meta)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {TUNER_LABEL: meta["name"]},
            "ownerReferences": [owner],
        },
        "data": data,
    }
