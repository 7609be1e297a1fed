"""Whose marks an object carries, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.engine.ownership import owners

HELM = {"labels": {"app.kubernetes.io/managed-by": "Helm"}}


@pytest.mark.parametrize(
    ("metadata", "kind", "name", "reverts"),
    [
        ({"annotations": {"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:llm/m"}}, "argocd", "shop", True),
        ({"labels": {"argocd.argoproj.io/instance": "shop"}}, "argocd", "shop", True),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux"}},
         "flux", "flux/apps", True),
        ({"labels": {"helm.toolkit.fluxcd.io/name": "vllm"}}, "flux", "vllm", True),
        ({"annotations": {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "llm"}, **HELM},
         "helm", "llm/r", False),
        (HELM, "helm", "", False),
        ({"labels": {"helm.sh/chart": "vllm-0.1.2"}}, "helm", "chart vllm-0.1.2", False),
        ({"annotations": {"config.kubernetes.io/origin": "path: a.yaml"}}, "kustomize", "", False),
        ({"managedFields": [{"manager": "argocd-controller", "operation": "Apply"}]}, "argocd", "", False),
        ({"managedFields": [{"manager": "kustomize-controller"}]}, "flux", "", False),
        ({"managedFields": [{"manager": "argocd-controller", "fieldsV1": {"f:spec": {"f:template": {}}}}]},
         "argocd", "", True),
        ({"managedFields": [{"manager": "argocd-controller", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]},
         "argocd", "", False),
        ({"managedFields": [{"manager": "helm"}]}, "helm", "", False),
        ({"managedFields": [{"manager": "helm", "fieldsV1": {"f:spec": {"f:template": {}}}}]}, "helm", "", False),
    ],
)  # fmt: skip
def test_tools_are_known_by_their_marks(metadata: dict[str, Any], kind: str, name: str, reverts: bool) -> None:
    (owner,) = owners(metadata)
    assert (owner.kind, owner.name, owner.reverts, owner.refuses) == (kind, name, reverts, False)
    assert owner.evidence.startswith("metadata.")
    assert owner.advice.endswith(".")


def test_a_controller_refuses_and_comes_first() -> None:
    reference = {"kind": "InferenceService", "name": "llama", "controller": True}
    found = owners({**HELM, "ownerReferences": [{"kind": "X", "name": "y"}, reference]})
    assert [(o.kind, o.name, o.refuses) for o in found] == [
        ("controller", "InferenceService llama", True),
        ("helm", "", False),
    ]
    assert "spec.predictor.model.args" in found[0].advice and "InferenceService llama" in found[0].advice
    other = owners({"ownerReferences": [{"kind": "Thing", "name": "t", "controller": True}]})
    assert other[0].advice.startswith("Change the spec of Thing t")


def test_one_owner_per_tool_however_many_marks_it_left() -> None:
    metadata = {
        "labels": {"argocd.argoproj.io/instance": "a"},
        "annotations": {"argocd.argoproj.io/tracking-id": "b:x"},
        "managedFields": [{"manager": "argocd-controller"}],
    }
    (owner,) = owners(metadata)
    assert (owner.title, owner.reverts) == ("Argo CD (b)", True)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": None, "annotations": [], "ownerReferences": None, "managedFields": {}},
        {"labels": {"app.kubernetes.io/instance": "shop"}},
        {"labels": {"app.kubernetes.io/managed-by": "somebody"}},
        {"ownerReferences": [{"kind": "X", "name": "y", "controller": False}, None]},
        {"managedFields": [{"manager": "kubectl-client-side-apply"}, None, {"manager": 5}]},
    ],
)
def test_what_proves_nothing_names_nobody(metadata: dict[str, Any]) -> None:
    assert owners(metadata) == ()
