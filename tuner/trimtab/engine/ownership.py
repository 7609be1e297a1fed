"""Who writes an object besides you: a controller, Argo CD, Flux, Helm, Kustomize. Pure: metadata in, owners out.

Hazard: `app.kubernetes.io/instance` and `managed-by` are labels that anybody may set; alone they prove little. A mark
can also be copied from elsewhere, and a tool without marks is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

OwnerKind = Literal["controller", "argocd", "flux", "helm", "kustomize"]
Metadata = Mapping[str, Any]

#: how each owner is called in texts
TOOLS: Final[Mapping[str, str]] = {"argocd": "Argo CD", "flux": "Flux", "helm": "Helm", "kustomize": "Kustomize"}
_ADVICE: Final[Mapping[str, str]] = {
    "argocd": "Commit the change to the Git source that Argo CD syncs from; a live patch is drift and is undone.",
    "flux": "Commit the change to the Git source that Flux reconciles from; a live patch is drift and is undone.",
    "helm": "Put the change into the chart's values; the next helm upgrade overwrites a live patch.",
    "kustomize": "Put the change into the kustomization; the next apply overwrites a live patch.",
}


#: labels and annotations that only this tool sets; either place counts.
#: Sources: Argo CD docs, resource tracking; Flux kustomize-controller and helm-controller, labels of applied objects;
#: Helm 3 and 4, pkg/action/validate.go; Kustomize, originAnnotations of buildMetadata.
_MARKS: Final[tuple[tuple[OwnerKind, str], ...]] = (
    ("argocd", "argocd.argoproj.io/tracking-id"),
    ("argocd", "argocd.argoproj.io/instance"),
    ("flux", "kustomize.toolkit.fluxcd.io/name"),
    ("flux", "helm.toolkit.fluxcd.io/name"),
    ("helm", "meta.helm.sh/release-name"),
    ("helm", "helm.sh/chart"),
    ("kustomize", "config.kubernetes.io/origin"),
)
_PLACES: Final = ("labels", "annotations")
#: kind of a controller -> where its spec holds the engine's arguments. Sources: KServe v1beta1 ModelSpec (a container
#: with args) and v1alpha2 WorkloadSpec, the production stack's VLLMRuntime, LeaderWorkerSet v1, Ray Serve LLM
#: (llm_configs in serveConfigV2)
_PLACES_OF_ARGUMENTS: Final[Mapping[str, str]] = {
    "InferenceService": "spec.predictor.model.args (or args in spec.predictor.containers)",
    "LLMInferenceService": "args of container main in spec.template",
    "VLLMRuntime": "spec.model, spec.vllmConfig",
    "LeaderWorkerSet": "args in spec.leaderWorkerTemplate",
    "RayService": "engine_kwargs in spec.serveConfigV2",
}
#: on what KServe makes; a Knative Revision that it owns in a long chain has no other sign of it
_INFERENCE_SERVICE: Final = "serving.kserve.io/inferenceservice"
#: field managers under which the tools write
_MANAGERS: Final[Mapping[str, OwnerKind]] = {
    "argocd-controller": "argocd",
    "argocd-application-controller": "argocd",
    "kustomize-controller": "flux",
    "helm-controller": "flux",
    "helm": "helm",
}


@dataclass(frozen=True)
class Owner:
    """One owner. name: its release, application or object, "" if not told. evidence: where it was seen.

    refuses: a controller writes the object anew, so not even its manifest is a place for the change.
    reverts: its mark is on the object, so that it would undo a live change.
    """

    kind: OwnerKind
    name: str
    refuses: bool
    reverts: bool
    evidence: str
    advice: str
    #: a controller's object: (apiVersion, kind, name)
    reference: tuple[str, str, str] | None = None

    @property
    def title(self) -> str:
        tool = TOOLS.get(self.kind, "")
        return f"{tool} ({self.name})" if tool and self.name else tool or self.name


def owners(metadata: Metadata) -> tuple[Owner, ...]:
    """All owners that the metadata shows: the controller first, then tools by marks, then by field managers.

    One per kind. Odd metadata (null maps, wrong types) is read as no mark.
    """
    found: dict[str, Owner] = {}
    for owner in (*_controllers(metadata), *_marked(metadata), *_managing(metadata)):
        found.setdefault(owner.kind, owner)
    return tuple(found.values())


def _controllers(metadata: Metadata) -> Iterator[Owner]:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, Mapping) and reference.get("controller") is True:
            version, kind, called = (str(reference.get(key) or "") for key in ("apiVersion", "kind", "name"))
            seen = _behind_knative(reference, metadata) or (version, kind or "object", called)
            name = f"{seen[1]} {seen[2]}".rstrip()
            place = _PLACES_OF_ARGUMENTS.get(seen[1], "the spec")
            advice = f"Change {place} of {name}: its controller writes this object from it."
            yield Owner("controller", name, True, True, "metadata.ownerReferences", advice, seen)


def _behind_knative(reference: Mapping[str, Any], metadata: Metadata) -> tuple[str, str, str] | None:
    """The InferenceService that a Knative Revision was made for."""
    name = _texts(metadata, "labels").get(_INFERENCE_SERVICE)
    revision = group_of(str(reference.get("apiVersion", ""))) == "serving.knative.dev"
    return ("serving.kserve.io/v1beta1", "InferenceService", name) if revision and name else None


def group_of(api_version: str) -> str:
    """The API group, "" for the core one."""
    return api_version.partition("/")[0] if "/" in api_version else ""


def _marked(metadata: Metadata) -> Iterator[Owner]:
    for kind, key in _MARKS:
        for place in _PLACES:
            marks = _texts(metadata, place)
            if key in marks:
                yield _tool(kind, _name(key, marks[key], metadata), f"metadata.{place}[{key}]", marked=True)
    if _texts(metadata, "labels").get("app.kubernetes.io/managed-by") == "Helm":
        yield _tool("helm", "", "metadata.labels[app.kubernetes.io/managed-by]", marked=True)


def _managing(metadata: Metadata) -> Iterator[Owner]:
    entries = metadata.get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        manager = entry.get("manager") if isinstance(entry, Mapping) else None
        if isinstance(manager, str) and manager in _MANAGERS:
            evidence = f"metadata.managedFields (manager {manager})"
            yield _tool(_MANAGERS[manager], "", evidence, marked=_owns_template(entry))


def _owns_template(entry: Mapping[str, Any]) -> bool:
    """Whether the pod template is among the fields that this manager keeps. Unlike a label this cannot be copied."""
    fields: object = entry.get("fieldsV1")
    for key in ("f:spec", "f:template"):
        fields = fields.get(key) if isinstance(fields, Mapping) else None
    return isinstance(fields, Mapping)


def _tool(kind: OwnerKind, name: str, evidence: str, *, marked: bool) -> Owner:
    reverts = marked and kind in ("argocd", "flux")
    return Owner(kind, name, refuses=False, reverts=reverts, evidence=evidence, advice=_ADVICE[kind])


def _name(key: str, value: str, metadata: Metadata) -> str:
    """The application, release or Flux object (`namespace/name` where that is marked too)."""
    if key.endswith("tracking-id"):
        return value.partition(":")[0]
    if key == "config.kubernetes.io/origin":
        return ""
    if key == "helm.sh/chart":
        return f"chart {value}"
    space_key = key.replace("release-name", "release-namespace").replace("fluxcd.io/name", "fluxcd.io/namespace")
    space = {**_texts(metadata, "labels"), **_texts(metadata, "annotations")}.get(space_key, "")
    return f"{space}/{value}" if space and space_key != key else value


def _texts(metadata: Metadata, place: str) -> dict[str, str]:
    marks = metadata.get(place)
    return {str(k): str(v) for k, v in marks.items()} if isinstance(marks, Mapping) else {}
