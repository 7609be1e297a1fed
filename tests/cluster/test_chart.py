"""The chart on a real API server: install, rights, upgrade, uninstall. The operator in its pod is tested elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("crds")]

Manifest = dict[str, Any]
RELEASE = "tt-chart"
CRDS = ("vllmtuners.trimtab.dev", "tuningtrials.trimtab.dev")
IMAGE = ("--set", "image.repository=localhost/trimtab,image.tag=dev,image.pullPolicy=Never")


@pytest.fixture(scope="module")
def chart(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.rootpath / "charts" / "trimtab")


@pytest.fixture(scope="module")
def namespace(new_namespace: Callable[..., str]) -> str:
    """Refuses every pod that does not meet the restricted profile."""
    return new_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})


@pytest.fixture(scope="module")
def crds_as_found(cluster: Any, crds: None) -> Iterator[None]:
    """Gives the CRDs back to the Helm release that owned them, if one did: another Trimtab may live in this cluster."""
    annotations = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace", "helm.sh/resource-policy")
    label = "app.kubernetes.io/managed-by"
    before = {name: cluster.json("get", "crd", name)["metadata"] for name in CRDS}
    yield
    for name, metadata in before.items():
        owner = {
            "annotations": {key: metadata.get("annotations", {}).get(key) for key in annotations},
            "labels": {label: metadata.get("labels", {}).get(label)},
        }
        cluster("patch", "crd", name, "--type=merge", "--patch", json.dumps({"metadata": owner}))


@pytest.fixture(scope="module")
def target(kubectl: Any) -> str:
    """A Deployment that a tuner names; nothing here may touch it."""
    container = {
        "name": "vllm",
        "image": "localhost/pause:1",
        "imagePullPolicy": "Never",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    labels = {"app": "llama"}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    kubectl("create", "-f", "-", stdin=manifest)
    tuner = {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "VLLMTuner",
        "metadata": {"name": "llama"},
        "spec": {"targetRef": {"name": "llama"}, "metrics": {"direct": {}}, "suspend": True},
    }
    kubectl("create", "-f", "-", stdin=tuner)
    return "deployment/llama"


@pytest.fixture(scope="module")
def installed(helm: Any, chart: str, namespace: str, target: str, crds_as_found: None) -> Iterator[str]:
    """A release that serves its own namespace, in rbac.mode Recommend; gives the name of its ServiceAccount."""
    helm(
        "install", RELEASE, chart, "--namespace", namespace, *IMAGE, "--take-ownership", "--force-conflicts",
        "--set", f"watchNamespaces={{{namespace}}}",
    )  # fmt: skip
    yield f"system:serviceaccount:{namespace}:{RELEASE}-trimtab"
    helm("uninstall", RELEASE, "--namespace", namespace, "--no-hooks", "--ignore-not-found")


def may(kubectl: Any, account: str, verb: str, resource: str, *more: str) -> bool:
    """What the API server's authorizer says."""
    done = kubectl.run("auth", "can-i", verb, resource, f"--as={account}", *more, check=False)
    assert done.stdout.strip() in {"yes", "no"}, done.stderr
    return bool(done.stdout.strip() == "yes")


def test_the_operators_pod_is_admitted_under_the_restricted_profile(kubectl: Any, installed: str) -> None:
    selector = "app.kubernetes.io/component=operator"
    deadline = time.monotonic() + 30
    while not (pods := kubectl.json("get", "pods", "--selector", selector)["items"]):
        assert time.monotonic() < deadline, kubectl("get", "events")
        time.sleep(0.5)
    assert pods[0]["spec"]["serviceAccountName"] == f"{RELEASE}-trimtab"


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("watch", "vllmtuners.trimtab.dev"),
        ("patch", "vllmtuners.trimtab.dev"),
        ("create", "tuningtrials.trimtab.dev"),
        ("list", "deployments.apps"),
        ("list", "replicasets.apps"),
        ("list", "pods"),
        ("create", "events.events.k8s.io"),
        ("update", "leases.coordination.k8s.io"),
    ],
)
def test_recommend_mode_may_look_and_record(kubectl: Any, installed: str, verb: str, resource: str) -> None:
    assert may(kubectl, installed, verb, resource)


@pytest.mark.parametrize("subresource", ["vllmtuners.trimtab.dev", "tuningtrials.trimtab.dev"])
def test_it_may_write_status(kubectl: Any, installed: str, subresource: str) -> None:
    assert may(kubectl, installed, "update", subresource, "--subresource=status")


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("patch", "deployments.apps"),
        ("update", "deployments.apps"),
        ("delete", "pods"),
        ("get", "secrets"),
        ("get", "configmaps"),
        ("create", "vllmtuners.trimtab.dev"),
    ],
)
def test_recommend_mode_may_not_change_the_target(kubectl: Any, installed: str, verb: str, resource: str) -> None:
    assert not may(kubectl, installed, verb, resource)


def test_it_sees_no_other_namespace(cluster: Any, installed: str) -> None:
    assert not may(cluster, installed, "list", "vllmtuners.trimtab.dev")
    assert not may(cluster, installed, "get", "leases.coordination.k8s.io")


def test_it_may_read_the_version_of_its_crds_only(cluster: Any, installed: str) -> None:
    assert may(cluster, installed, "get", f"crd/{CRDS[0]}")
    assert not may(cluster, installed, "patch", f"crd/{CRDS[0]}")
    assert not may(cluster, installed, "list", "crd")


def upgrade(helm: Any, chart: str, namespace: str, *arguments: str) -> str:
    done = helm("upgrade", RELEASE, chart, "--namespace", namespace, "--reuse-values", "--force-conflicts", *arguments)
    return str(done.stdout)


def test_named_secrets_become_readable(kubectl: Any, helm: Any, chart: str, namespace: str, installed: str) -> None:
    secrets = [{"namespace": namespace, "name": "token"}]
    upgrade(helm, chart, namespace, "--set-json", f"metrics.secrets={json.dumps(secrets)}")
    assert may(kubectl, installed, "get", "secret/token")
    assert not may(kubectl, installed, "get", "secret/other")


def test_taking_apply_away_first_rolls_back_trials(
    kubectl: Any, helm: Any, chart: str, namespace: str, installed: str
) -> None:
    """Apply gives patch on Deployments; the way back runs the release Job while that right still exists."""
    upgrade(helm, chart, namespace, "--set", "rbac.mode=Apply")
    assert may(kubectl, installed, "patch", "deployments.apps")
    assert not may(kubectl, installed, "update", "deployments.apps")

    same = upgrade(helm, chart, namespace, "--set", "rbac.mode=Apply", "--dry-run=server")
    back = upgrade(helm, chart, namespace, "--set", "rbac.mode=Recommend", "--dry-run=server")
    assert "helm.sh/hook: pre-delete\n" in same
    assert "helm.sh/hook: pre-delete,pre-upgrade\n" in back

    upgrade(helm, chart, namespace, "--set", "rbac.mode=Recommend", "--no-hooks")
    assert not may(kubectl, installed, "patch", "deployments.apps")
    again = upgrade(helm, chart, namespace, "--set", "rbac.mode=Recommend", "--dry-run=server")
    assert "helm.sh/hook: pre-delete\n" in again


def test_everything_that_is_off_by_default_is_valid(kubectl: Any, helm: Any, chart: str, namespace: str) -> None:
    values = ("persistence.enabled=true", "networkPolicy.enabled=true", "networkPolicy.egress[0].ports[0].port=443")
    sets = [part for value in values for part in ("--set", value)]
    text = helm("template", "other", chart, "--namespace", namespace, "--no-hooks", *sets, *IMAGE).stdout
    kubectl("apply", "--dry-run=server", "--server-side", "--force-conflicts", "-f", "-", stdin=text)


def test_uninstall_leaves_the_target_its_tuner_and_the_crds(
    kubectl: Any, cluster: Any, helm: Any, namespace: str, target: str, installed: str
) -> None:
    before = kubectl.json("get", target)
    helm("uninstall", RELEASE, "--namespace", namespace, "--no-hooks")
    after = kubectl.json("get", target)
    for name in ("uid", "generation"):
        assert after["metadata"][name] == before["metadata"][name]
    assert after["spec"] == before["spec"]
    assert kubectl("get", "vt", "llama", "-o", "name").strip() == "vllmtuner.trimtab.dev/llama"
    for crd in CRDS:
        assert "deletionTimestamp" not in cluster.json("get", "crd", crd)["metadata"]
    left = kubectl(
        "get",
        "deployment,role,rolebinding,serviceaccount,job,pvc",
        "-o",
        "name",
        "--selector",
        f"app.kubernetes.io/instance={RELEASE}",
    )
    assert left == ""


def test_it_can_be_installed_again_over_the_kept_crds(helm: Any, chart: str, namespace: str, installed: str) -> None:
    """Same name, same namespace: Helm knows the CRDs as its own."""
    helm(
        "install", RELEASE, chart, "--namespace", namespace, *IMAGE, "--force-conflicts",
        "--set", f"watchNamespaces={{{namespace}}}",
    )  # fmt: skip
