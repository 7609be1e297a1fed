"""Documents to workloads: objects with a pod template that can be edited, and objects that hold pods but cannot.

A custom resource's pod spec belongs to its own controller and schema; it is named with a reason, never edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.engine.ownership import group_of
from trimtab.manifests.documents import Document

Path = tuple[str | int, ...]

#: kind -> where its pod template is
TEMPLATES: Final[Mapping[tuple[str, str], Path]] = {
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("", "ReplicationController"): ("spec", "template"),
    ("", "PodTemplate"): ("template",),
    ("", "Pod"): (),
}
_SEVERAL_PODS: Final = "several pods make one engine, so one pod cannot be changed alone"
#: API groups of what serves models -> why their objects are not edited; any mention of vLLM makes them an engine.
#: A group matches with its subdomains.
_SERVING: Final[Mapping[str, str]] = {
    "leaderworkerset.x-k8s.io": _SEVERAL_PODS,
    "ray.io": f"Ray starts the engine ({_SEVERAL_PODS})",
    "grove.io": _SEVERAL_PODS,
    "serving.kserve.io": "KServe makes the Deployment from it",
    "llm-d.ai": "llm-d makes the Deployment from it",
    "nvidia.com": "NVIDIA's operator makes the pods from it",
    "production-stack.vllm.ai": "the vLLM production stack's operator makes the Deployment from it",
    "kubeai.org": "KubeAI makes the pods from it",
    "kaito.sh": "KAITO makes the pods from it",
    "aibrix.ai": "AIBrix makes the pods from it",
}
#: Ray Serve LLM runs vLLM without saying so
_ENGINE_IN_SIGHT = re.compile(r"vllm|ray\.serve\.llm|llm_configs", re.IGNORECASE)
#: kinds that run nothing else unless told to
_ALWAYS_VLLM: Final = frozenset({"LLMInferenceService", "VLLMRuntime"})
#: other groups; their objects, and those of unknown groups, count only where they start vLLM
_OTHERS: Final[Mapping[str, str]] = {
    "argoproj.io": "Argo's controller makes the pods from it",
    "helm.toolkit.fluxcd.io": "a chart's values: Flux renders the Deployment from it",
    "helm.cattle.io": "a chart's values: the Helm controller renders the Deployment from it",
    "template.openshift.io": "an OpenShift template: process it first (oc process -f FILE)",
}
#: custom resources for which plan.object_patch makes a patch: API group, kind
PATCHED: Final = frozenset(
    {("serving.kserve.io", "InferenceService"), ("serving.kserve.io", "LLMInferenceService"),
     ("production-stack.vllm.ai", "VLLMRuntime"), ("ray.io", "RayService")}
)  # fmt: skip
_UNKNOWN: Final = "it is a custom resource, and its controller makes the pods from it"
#: an image or command of vLLM, in whatever field; a name, a label or a metric's query is none
_STARTS_VLLM = re.compile(r"\bvllm/vllm-|\bvllm-openai\b|\bvllm\s+serve\b|\bvllm\.entrypoints\b")


@dataclass(frozen=True)
class Workload:
    """A pod template in a document. path: from the document to its template, () where the object is a pod itself.

    replicas: None where absent (an autoscaler may own it, or the API's default counts).
    """

    kind: str
    api_version: str
    name: str
    namespace: str
    path: Path
    template: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    replicas: int | None
    document: Document = field(repr=False)

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def pointer(self) -> str:
        """The template's place in its own object, as a JSON pointer."""
        below = TEMPLATES[group_of(self.api_version), self.kind]
        return "".join(f"/{key}" for key in below)


@dataclass(frozen=True)
class Unreadable:
    """A custom resource that runs vLLM. path: from the document to it.

    reason: why it is not edited. advice: where its owner makes the change.
    """

    kind: str
    api_version: str
    name: str
    namespace: str
    path: Path
    reason: str
    advice: str
    document: Document = field(repr=False)

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True)
class Inventory:
    """What the input holds. config_maps: by (namespace, name), text data only."""

    workloads: tuple[Workload, ...]
    unreadable: tuple[Unreadable, ...]
    config_maps: Mapping[tuple[str, str], Mapping[str, str]] = field(repr=False)


def inventory(documents: Sequence[Document]) -> Inventory:
    """Every workload of the documents, those inside a List too. What holds no pods is passed over."""
    workloads: list[Workload] = []
    unreadable: list[Unreadable] = []
    config_maps: dict[tuple[str, str], Mapping[str, str]] = {}
    for document in documents:
        for path, body in _objects(document.data, ()):
            group = _group(body)
            if (group, body["kind"]) == ("", "ConfigMap"):
                config_maps[_space(body), _name(body)] = _strings(body.get("data"))
            elif (group, body["kind"]) in TEMPLATES:
                if (workload := _workload(body, path, document)) is not None:
                    workloads.append(workload)
            elif (reason := _custom_reason(body, group)) is not None:
                unreadable.append(_unreadable(body, path, reason, document))
    return Inventory(tuple(workloads), tuple(unreadable), config_maps)


def _objects(data: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return
    if data["kind"].endswith("List") and isinstance(data.get("items"), list):
        for index, item in enumerate(data["items"]):
            yield from _objects(_typed_item(item, data), (*path, "items", index))
        return
    yield path, data


def _typed_item(item: Any, container: Mapping[str, Any]) -> Any:
    """Items of a DeploymentList need not repeat their kind; those of a plain List do."""
    kind = container["kind"].removesuffix("List")
    if kind and isinstance(item, dict) and "kind" not in item:
        return {**item, "kind": kind, "apiVersion": container.get("apiVersion", "")}
    return item


def _workload(body: Mapping[str, Any], path: Path, document: Document) -> Workload | None:
    below = TEMPLATES[_group(body), body["kind"]]
    template: Any = body
    for key in below:
        template = template.get(key) if isinstance(template, Mapping) else None
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(spec.get("containers"), list):
        return None
    own = body.get("spec")
    replicas = own.get("replicas") if isinstance(own, Mapping) else None
    return Workload(
        kind=body["kind"],
        api_version=str(body.get("apiVersion", "")),
        name=_name(body),
        namespace=_space(body),
        path=(*path, *below),
        template=template,
        metadata=_metadata(body),
        replicas=replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else None,
        document=document,
    )


def _unreadable(body: Mapping[str, Any], path: Path, reason: str, document: Document) -> Unreadable:
    kind, name = body["kind"], _name(body)
    known = (group_of(str(body.get("apiVersion", ""))), kind) in PATCHED
    way = "`trimtab rewrite -o patch` makes a patch for it" if known else "`trimtab rewrite` edits pod templates only"
    advice = f"Change the spec of {kind} {name} by hand; {way}."
    return Unreadable(kind, str(body.get("apiVersion", "")), name, _space(body), path, reason, advice, document)


def _custom_reason(body: Mapping[str, Any], group: str) -> str | None:
    """Why an object that runs vLLM is not edited; None if it runs none: routes, scalers, alerts and their like."""
    content = [value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata", "status")]
    if (reason := _known(_SERVING, group)) is not None:
        return reason if body["kind"] in _ALWAYS_VLLM or _mentions(content, _ENGINE_IN_SIGHT) else None
    if "." not in group or not _mentions(content, _STARTS_VLLM):
        return None
    return _known(_OTHERS, group) or _UNKNOWN


def _known(groups: Mapping[str, str], group: str) -> str | None:
    return next((reason for known, reason in groups.items() if f".{group}".endswith(f".{known}")), None)


def _mentions(values: Sequence[Any], pattern: re.Pattern[str]) -> bool:
    """Whether a text, or the items of a list of texts side by side, match. Aliases are walked once."""
    todo, walked = list(values), set[int]()
    while todo:
        item = todo.pop()
        if isinstance(item, str) and pattern.search(item):
            return True
        if not isinstance(item, Mapping | list) or id(item) in walked:
            continue
        walked.add(id(item))
        todo += item.values() if isinstance(item, Mapping) else item
        if isinstance(item, list):
            todo.append(" ".join(text for text in item if isinstance(text, str)))
    return False


def _group(body: Mapping[str, Any]) -> str:
    return group_of(str(body.get("apiVersion", "")))


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _name(body: Mapping[str, Any]) -> str:
    metadata = _metadata(body)
    return str(metadata.get("name") or metadata.get("generateName") or "(no name)")


def _space(body: Mapping[str, Any]) -> str:
    return str(_metadata(body).get("namespace") or "")


def _strings(data: Any) -> dict[str, str]:
    return {str(k): v for k, v in data.items() if isinstance(v, str)} if isinstance(data, Mapping) else {}
