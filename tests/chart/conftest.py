"""The chart and the CRDs without a cluster: files, and what the real helm renders from them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

Manifest = dict[str, Any]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def crd_schema() -> Callable[[str], Manifest]:
    """The openAPIV3Schema of the only version of a CRD, by plural name."""

    def load(plural: str) -> Manifest:
        crd = yaml.safe_load((ROOT / "crds" / f"{plural}.trimtab.dev.yaml").read_text())
        (version,) = crd["spec"]["versions"]
        schema: Manifest = version["schema"]["openAPIV3Schema"]
        return schema

    return load


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real helm, from PATH or hack/cluster/build.sh; its own files go to a temporary directory."""
    cache = Path(
        os.environ.get("TRIMTAB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"
    )
    built = cache / "cluster" / "bin" / "helm"
    binary = shutil.which("helm") or (str(built) if built.exists() else None)
    if binary is None:
        pytest.skip("no helm: install it or run hack/cluster/build.sh")
    home = tmp_path_factory.mktemp("helm")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HELM_", "KUBE"))},
        **{f"HELM_{k}_HOME": str(home / k.lower()) for k in ("CACHE", "CONFIG", "DATA")},
        "KUBECONFIG": str(home / "none"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, env=env, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., list[Manifest]]:
    """Renders the chart as release `t` in namespace `ops`; `values` go from path to JSON. Gives the objects."""

    def run(values: dict[str, str] | None = None) -> list[Manifest]:
        sets = [part for path, value in (values or {}).items() for part in ("--set-json", f"{path}={value}")]
        done = helm("template", "t", str(ROOT / "charts" / "trimtab"), "--namespace", "ops", *sets)
        assert done.returncode == 0, done.stderr
        return [m for m in yaml.safe_load_all(done.stdout) if m]

    return run
