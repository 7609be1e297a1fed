"""Every right that the operator uses: the call, and what its owner sees where the right is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]
#: method of `Cluster` -> the API server's verb
VERBS: Final = {
    "get": "get", "list": "list", "create": "create", "delete": "delete", "json_patch": "patch",
    "write_status": "update", "replace": "update",
}  # fmt: skip


@dataclass(frozen=True)
class Right:
    """when: "always", "Apply" (rbac.mode), "own" (the Lease's namespace), "crds" (rbac.readCrds). by: the method of
    `Cluster` and the kind, "" where Kopf or the API server uses it. missing: what happens without it.
    """

    verb: str
    resource: str
    when: str
    by: str
    missing: str


RIGHTS: Final = [
    Right("get", "vllmtuners", "always", "get VLLMTuner", "no pass: a warning each minute"),
    Right("list", "vllmtuners", "always", "list VLLMTuner", "no resync, no watch; helm test fails"),
    Right("watch", "vllmtuners", "always", "", "a change of a spec is seen at the next look only"),
    Right("patch", "vllmtuners", "always", "json_patch VLLMTuner", "no trial begins; the release Job fails"),
    Right("update", "vllmtuners/status", "always", "write_status VLLMTuner", "no status, a warning each minute"),
    Right("update", "vllmtuners/finalizers", "always", "", "no trial where owner references are checked"),
    Right("get", "tuningtrials", "always", "get TuningTrial", "a trial in flight stands still"),
    Right("list", "tuningtrials", "always", "list TuningTrial", "no pass: a warning each minute"),
    Right("watch", "tuningtrials", "always", "", "an approval is seen at the next look only"),
    Right("create", "tuningtrials", "always", "create TuningTrial", "no trial begins"),
    Right("patch", "tuningtrials", "always", "json_patch TuningTrial", "ended trials keep their finalizer"),
    Right("delete", "tuningtrials", "always", "delete TuningTrial", "old trials stay"),
    Right("update", "tuningtrials/status", "always", "write_status TuningTrial", "no trial begins on the target"),
    Right("get", "deployments", "always", "get Deployment", "no pass: a warning each minute"),
    Right("list", "deployments", "always", "list Deployment", "helm test fails"),
    Right("patch", "deployments", "Apply", "json_patch Deployment", "NotPermitted"),
    Right("list", "replicasets", "always", "list ReplicaSet", "no pass: a warning each minute"),
    Right("list", "pods", "always", "list Pod", "no pass: a warning each minute"),
    Right("patch", "pods", "Apply", "json_patch Pod", "a policy takes up to 90 s; the Middleware condition says why"),
    Right("get", "pods/log", "always", "pod_log Pod", "a crash's verdict has no last words"),
    Right("get", "configmaps", "Apply", "get ConfigMap", "no middleware; the Middleware condition says why"),
    Right("create", "configmaps", "Apply", "create ConfigMap", "no middleware; the Middleware condition says why"),
    Right("patch", "configmaps", "Apply", "json_patch ConfigMap", "no policy; the Middleware condition says why"),
    Right("get", "namespaces", "always", "get Namespace", "note NoRight: no freeze label"),
    Right("list", "poddisruptionbudgets", "Apply", "list PodDisruptionBudget", "note NoRight"),
    Right("list", "horizontalpodautoscalers", "Apply", "list HorizontalPodAutoscaler", "note NoRight"),
    Right("list", "verticalpodautoscalers", "Apply", "list VerticalPodAutoscaler", "note NoRight"),
    Right("get", "inferenceservices", "always", "owner InferenceService", "no patch for it, advice in words"),
    Right("get", "llminferenceservices", "always", "owner LLMInferenceService", "no patch for it, advice in words"),
    Right("get", "vllmruntimes", "always", "owner VLLMRuntime", "no patch for it, advice in words"),
    Right("create", "events", "always", "create Event", "no events, a warning in the log"),
    Right("get", "leases", "own", "get Lease", "the lease is not held: nothing is done"),
    Right("create", "leases", "own", "create Lease", "the lease is not held: nothing is done"),
    Right("update", "leases", "own", "replace Lease", "the lease is not held: nothing is done"),
    Right("get", "configmaps", "own", "get ConfigMap", "note NoRight: no kill switch"),
    Right("get", "customresourcedefinitions", "crds", "crd_version CRD", "an old schema is not noticed"),
]


def _owner_path(kind: str, namespace: str) -> str:
    from trimtab_operator.cluster import OWNERS

    (((group, _), plural),) = [item for item in OWNERS.items() if item[0][1] == kind]
    return f"/apis/{group}/v1alpha1/namespaces/{namespace}/{plural}/right"


def call_of(right: Right) -> Callable[[Any, str], object] | None:
    """Does on a `Cluster` what the operator does with this right; None where it is not the operator that uses it."""
    method, _, kind = right.by.partition(" ")
    body: Json = {
        "metadata": {"name": "right", "namespace": "", "resourceVersion": "1"},
        "spec": {}, "reason": "Test", "regarding": {},
    }  # fmt: skip

    def seen(namespace: str) -> Json:
        return {**body, "metadata": {**body["metadata"], "namespace": namespace}}

    table: dict[str, Callable[[Any, str], object]] = {
        "get": lambda c, ns: c.get(kind, ns if kind != "Namespace" else "", ns if kind == "Namespace" else "right"),
        "list": lambda c, ns: c.list(kind, ns),
        "create": lambda c, ns: c.create(kind, ns, seen(ns)),
        "delete": lambda c, ns: c.delete(kind, ns, "right"),
        "json_patch": lambda c, ns: c.json_patch(kind, seen(ns), []),
        "write_status": lambda c, ns: c.write_status(kind, seen(ns), {}),
        "replace": lambda c, ns: c.replace(kind, seen(ns)),
        "pod_log": lambda c, ns: c._raw("GET", f"{c._path('Pod', ns, 'right')}/log"),  # it takes a refusal for ""
        "owner": lambda c, ns: c._call("GET", _owner_path(kind, ns)),  # it takes a refusal for None
        "crd_version": lambda c, _: c._call(
            "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/vllmtuners.trimtab.dev"
        ),
    }
    return table.get(method)
