"""The chart with Helm 3 and with Helm 4: the same objects, and a release of one is taken over by the other. On a bare
API server: nothing runs, so hooks are left out (tests/cluster/test_chart.py runs them).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from cluster_fixtures import ROOT, binary
from control_plane import ControlPlane, running

pytestmark = pytest.mark.cluster

Helm = Callable[..., str]
CHART = str(ROOT / "charts/trimtab")
#: every template renders something
EVERYTHING = (
    "rbac.mode=Apply", "networkPolicy.enabled=true", "persistence.enabled=true", "dashboard.enabled=true",
    "dashboards.enabled=true", "killSwitch.stop=false",
)  # fmt: skip
SETS = tuple(part for value in EVERYTHING for part in ("--set", value))
PAIRS = [("helm3", "helm"), ("helm", "helm3")]


@pytest.fixture(name="plane", scope="module")
def a_bare_api_server() -> Iterator[ControlPlane]:
    with running() as made:
        for kind in ("vllmtuners", "tuningtrials"):  # the chart brings them
            made.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.trimtab.dev")
        yield made


@pytest.fixture(name="helm", scope="module")
def helm_of_a_version(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm(program, words...); files of both versions apart from this user's."""
    home = tmp_path_factory.mktemp("helm")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("HELM_")},
        **{f"HELM_{k}_HOME": str(home / k.lower()) for k in ("CACHE", "CONFIG", "DATA")},
        "KUBECONFIG": str(plane.kubeconfig),
    }

    def run(program: str, *words: str) -> str:
        command = [binary(program), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stderr}"
        return done.stdout

    return run


def test_the_two_are_the_versions_meant(helm: Helm) -> None:
    assert [helm(p, "version", "--short")[:3] for p in ("helm3", "helm")] == ["v3.", "v4."]


@pytest.mark.parametrize("program", ["helm3", "helm"])
def test_it_lints_and_a_server_takes_a_dry_run(helm: Helm, program: str) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm(program, "lint", "--strict", CHART, *SETS)
    told = helm(program, "install", "dry", CHART, "-n", "default", "--dry-run=server", *SETS)
    assert "kind: Deployment" in told


def test_both_render_the_same_objects(helm: Helm) -> None:
    def rendered(program: str) -> list[Any]:
        return [o for o in yaml.safe_load_all(helm(program, "template", "t", CHART, "-n", "ops", *SETS)) if o]

    assert rendered("helm3") == rendered("helm")


@pytest.mark.parametrize(("first", "then"), PAIRS, ids=lambda p: str(p))
def test_a_release_of_one_version_is_upgraded_by_the_other(
    helm: Helm, plane: ControlPlane, first: str, then: str
) -> None:
    space, release = plane.namespace(), f"by-{first}"
    own = (
        "-n",
        space,
        "--no-hooks",
        *SETS,
        "--set",
        "image.tag=v1",
        "--set",
        f"crds.install={str(first == 'helm3').lower()}",
    )
    helm(first, "install", release, CHART, *own)
    helm(then, "upgrade", release, CHART, *own, "--set", "image.tag=v2")
    (deployment,) = plane.get("Deployment", space)["items"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":v2")
    helm(then, "uninstall", release, "-n", space, "--no-hooks")
    assert not plane.get("Deployment", space)["items"]


def test_the_crds_stay_when_the_chart_goes(plane: ControlPlane) -> None:
    """After the tests above: the release that brought them is gone."""
    assert plane.exists("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/vllmtuners.trimtab.dev")
