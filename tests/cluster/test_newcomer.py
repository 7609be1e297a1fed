"""The first ten minutes, with a stopwatch: install, ten lines, findings, a patch to paste; nothing is written to the
target. What was typed, what came and how long it took goes to build/newcomer.txt; docs/tutorial.md shows one run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scenario import STARVED

import manifests
from cluster_fixtures import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
#: the tutorial's ten lines
TUNER = next(block for block in re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL) if "VLLMTuner" in block)
IMAGE = ("--set", "image.repository=localhost/trimtab,image.tag=dev,image.pullPolicy=Never")
#: more than 4 slots a pod can carry; users who wait
LOAD = ("--rate=12", "--duration=600", "--prompt=60:0.3", "--output=100:0.4", "--patience=60", "--cancel=0", "--seed=1")
#: that the tutorial promises
MOST_SECONDS = 600.0


@dataclass
class Stopwatch:
    """Types commands, and writes down when and what came."""

    env: dict[str, str]
    started: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def type(self, *words: str, shown: str = "", quiet: bool = False) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        if not quiet:
            told = _short(words[0], done.stdout.strip())
            self.lines += [f"[{self.seconds():5.1f} s] $ {shown or shlex.join(words)}", *([told] if told else []), ""]
        return done.stdout

    def seconds(self) -> float:
        return time.monotonic() - self.started


def _short(program: str, said: str) -> str:
    """Of Helm the lines that say how it went."""
    kept = [line for line in said.splitlines() if program != "helm" or line.startswith(("STATUS", "Phase"))]
    return "\n".join(kept)


@pytest.fixture(scope="module")
def served(kubectl: Kubectl) -> Iterator[Json]:
    """A Deployment `llama` under load, badly set; it was there before anybody heard of Trimtab."""
    items = manifests.target("llama", replicas=2, args=STARVED)
    kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})
    kubectl("rollout", "status", "deployment/llama", "--timeout=120s", timeout=140)
    kubectl("apply", "-f", "-", stdin=manifests.load("load", "llama", LOAD))
    yield kubectl.json("get", "deployment", "llama")
    kubectl("delete", "pod", "load", "--wait=false")


@pytest.fixture
def watch(kubectl: Kubectl, kubeconfig: Path, tmp_path: Path) -> Stopwatch:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HELM_")}
    env |= {f"HELM_{k}_HOME": str(tmp_path / k.lower()) for k in ("CACHE", "CONFIG", "DATA")}
    places = [str(Path(kubectl.program).parent), os.environ["PATH"]]
    return Stopwatch({**env, "KUBECONFIG": str(kubeconfig), "PATH": os.pathsep.join(places)})


def test_the_first_ten_minutes(
    kubectl: Kubectl, crds: None, new_namespace: Callable[..., str], served: Json, watch: Stopwatch, tmp_path: Path
) -> None:
    system, space = new_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}), kubectl.namespace
    (tmp_path / "tuner.yaml").write_text(TUNER)
    chart = str(ROOT / "charts/trimtab")
    mine = ("--set", f"crds.install=false,watchNamespaces={{{space}}}")  # others use this cluster, too
    watch.type("helm", "install", "trimtab", chart, "-n", system, *IMAGE, *mine, "--wait", "--timeout=120s",
               shown="helm install trimtab charts/trimtab -n trimtab-system --create-namespace ... --wait")  # fmt: skip
    try:
        watch.type(
            "helm", "test", "trimtab", "-n", system, "--timeout=120s", shown="helm test trimtab -n trimtab-system"
        )
        watch.type(
            "kubectl", "apply", "-n", space, "-f", str(tmp_path / "tuner.yaml"), shown="kubectl apply -f tuner.yaml"
        )
        _wait(watch, space)
        watch.type("kubectl", "get", "vt", "-n", space, shown="kubectl get vt")
        find = '{.status.findings[0].message}{"\\n"}{.status.findings[0].advice}{"\\n"}'
        watch.type("kubectl", "get", "vt", "llama", "-n", space, "-o", f"jsonpath={find}",
                   shown="kubectl get vt llama -o jsonpath=... (finding)")  # fmt: skip
        advice = '{.status.recommendation.message}{"\\n"}{.status.recommendation.patch}{"\\n"}'
        told = watch.type("kubectl", "get", "vt", "llama", "-n", space, "-o", f"jsonpath={advice}",
                          shown="kubectl get vt llama -o jsonpath=... (recommendation)")  # fmt: skip
        took, pasted = watch.seconds(), told.strip().splitlines()[-1]
        assert pasted.startswith("kubectl patch deployment llama") and took < MOST_SECONDS
        said = watch.type("sh", "-c", f"{pasted} --dry-run=server", shown="(the patch, pasted, with --dry-run=server)")
        assert "deployment.apps/llama patched" in said
        assert kubectl.json("get", "deployment", "llama")["spec"] == served["spec"]
        after = kubectl.json("get", "deployment", "llama")["metadata"]
        assert after["generation"] == served["metadata"]["generation"] and not kubectl.json("get", "tt")["items"]
    finally:
        watch.type("helm", "uninstall", "trimtab", "-n", system, "--wait", "--timeout=200s", quiet=True)
    _write(watch, space, took)


def _wait(watch: Stopwatch, space: str) -> None:
    while True:
        where = ("-n", space, "-o", "jsonpath={.status.recommendation.patch}")
        if watch.type("kubectl", "get", "vt", "llama", *where, quiet=True):
            return
        assert watch.seconds() < MOST_SECONDS, watch.type("kubectl", "get", "vt", "llama", "-n", space, "-o", "yaml")
        time.sleep(1)


def _write(watch: Stopwatch, space: str, took: float) -> None:
    text = "\n".join([*watch.lines, f"From helm install to the patch: {took:.0f} s"]).replace(space, "YOUR-NAMESPACE")
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build/newcomer.txt").write_text(text + "\n")
    print(text)
