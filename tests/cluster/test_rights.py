"""Each right of the chart taken away in turn, on a real API server with RBAC: exactly its own calls are refused."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_fixtures import binary
from control_plane import ControlPlane, running, until
from rights import RIGHTS, Right, call_of
from trimtab.errors import ClusterUnavailable, TargetConflict, TargetNotFound, TargetRefused
from trimtab_operator.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running() as made:
        yield made


class Account:
    """The operator's service account with the chart's roles; `put` takes one verb of one resource away."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.namespace = plane, plane.namespace("rights")
        command = [
            binary("helm"), "template", "op", str(ROOT / "charts" / "trimtab"), "--namespace", self.namespace,
            "--set", f"rbac.mode=Apply,watchNamespaces={{{self.namespace}}},crds.install=false",
        ]  # fmt: skip
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        self.roles = [o for o in yaml.safe_load_all(text) if o and o["kind"].endswith(("Role", "RoleBinding"))]
        for role in self.roles:
            self._put(role)
        self.cluster = Cluster.connect()
        api: Any = self.cluster._api  # the client knows no impersonation of its own
        api.set_default_header("Impersonate-User", f"system:serviceaccount:{self.namespace}:op-trimtab")
        api.set_default_header("Impersonate-Group", "system:authenticated")

    def _put(self, role: Json) -> None:
        kind, meta = role["kind"], role["metadata"]
        scope = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
        path = f"/apis/rbac.authorization.k8s.io/v1/{scope}{kind.lower()}s/{meta['name']}"
        self.plane.request("PATCH", f"{path}?fieldManager=test&force=true", role, "application/apply-patch+yaml")

    def put(self, right: Right | None) -> None:
        """All rights, or all but one."""
        for role in self.roles:
            if role["kind"].endswith("Binding"):
                continue
            changed = copy.deepcopy(role)
            own = role["metadata"]["name"].endswith("-lease")
            changed["rules"] = [{**rule, "resources": [r]} for rule in changed["rules"] for r in rule["resources"]]
            for rule in changed["rules"]:
                if right is not None and right.resource in rule["resources"] and own == (right.when == "own"):
                    rule["verbs"] = [v for v in rule["verbs"] if v != right.verb] or ["none"]
            self._put(changed)

    def refused(self, right: Right) -> bool:
        """Whether the API server refuses the call for want of a right; any other answer means that it may."""
        call = call_of(right)
        assert call is not None
        try:
            call(self.cluster, self.namespace)
        except TargetRefused as error:
            return "forbidden" in str(error)
        except (TargetNotFound, TargetConflict, ClusterUnavailable):
            return False
        return False


def test_each_right_is_needed_by_its_call_and_by_no_other(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    account = Account(plane)
    used = [r for r in RIGHTS if r.by and r.resource != "verticalpodautoscalers"]  # no such kind is served here
    until(lambda: not any(account.refused(r) for r in used), 20, "the rights are in force")
    for right in used:
        # the policy's ConfigMaps and the kill switch lie in one namespace here: one of the two roles is enough
        if right.resource == "configmaps" and right.verb == "get":
            continue
        account.put(right)
        until(lambda r=right: account.refused(r), 10, f"{right.verb} {right.resource} is refused")
        others = [f"{r.verb} {r.resource}" for r in used if r is not right and account.refused(r)]
        assert others == [], f"without {right.verb} {right.resource}"
    assert len(used) >= 28
