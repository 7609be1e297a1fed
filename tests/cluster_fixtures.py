"""One cluster for all tests and all processes that run them, a namespace of its own for each module. What the tests
start they also end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
Manifest = dict[str, Any]


def cluster_bin() -> Path:
    """Where hack/cluster/build.sh puts kubectl and helm."""
    cache = (
        os.environ.get("TRIMTAB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"
    )
    return Path(cache) / "cluster" / "bin"


def binary(name: str) -> str:
    """The one that hack/cluster built, whose version fits its cluster, else the one on PATH."""
    built = cluster_bin() / name
    found = str(built) if built.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install it or run hack/cluster/build.sh")
    return found


@dataclass(frozen=True)
class Kubectl:
    """kubectl against the test cluster, each call with a time limit. `at(namespace)` is for another namespace."""

    program: str
    kubeconfig: Path
    namespace: str = "default"

    def at(self, namespace: str) -> Kubectl:
        return replace(self, namespace=namespace)

    def run(
        self, *arguments: str, stdin: str | Manifest | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """`stdin` may be a manifest, which is sent as JSON. With `check`, a failure shows what kubectl said."""
        text = json.dumps(stdin) if isinstance(stdin, dict) else stdin
        command = [self.program, f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def __call__(self, *arguments: str, stdin: str | Manifest | None = None, timeout: float = 60) -> str:
        return self.run(*arguments, stdin=stdin, timeout=timeout).stdout

    def json(self, *arguments: str, stdin: str | Manifest | None = None) -> Manifest:
        value: Manifest = json.loads(self(*arguments, "-o", "json", stdin=stdin))
        return value


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """DEMO_CONTEXT (a context of your own kubeconfig), else KUBECONFIG, else hack/cluster, left as found."""
    if context := os.environ.get("DEMO_CONTEXT"):
        path = tmp_path_factory.mktemp("kube") / "config"
        command = [binary("kubectl"), "config", "view", "--raw", "--minify", "--flatten", f"--context={context}"]
        path.write_text(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)
        path.chmod(0o600)
        yield path
    elif given := os.environ.get("KUBECONFIG"):
        yield Path(given)
    else:
        with started_cluster(shared_folder(tmp_path_factory)) as path:
            yield path


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all of pytest-xdist's processes of a run."""
    base = factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@contextmanager
def turn(folder: Path, name: str) -> Iterator[Path]:
    """Only one process at a time is inside; yields a file for what they tell each other, empty at first."""
    path = folder / name
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


@contextmanager
def started_cluster(folder: Path) -> Iterator[Path]:
    """hack/cluster/up.sh; down.sh after the last process that uses it, unless it ran before."""
    if not (cluster_bin() / "kube-apiserver").exists():
        pytest.skip("no cluster: run hack/cluster/build.sh (once, minutes), or set KUBECONFIG or DEMO_CONTEXT")
    scripts = ROOT / "hack" / "cluster"
    with turn(folder, "cluster-users") as users:
        up = subprocess.run([str(scripts / "up.sh")], capture_output=True, text=True, timeout=280, check=False)
        if up.returncode != 0:
            pytest.fail(f"hack/cluster/up.sh failed:\n{up.stdout}{up.stderr}", pytrace=False)
        # the first line says who brought it up: a cluster that was there before stays
        known = users.read_text() or ("found\n" if "already up" in up.stdout else "ours\n")
        users.write_text(f"{known}{os.getpid()}\n")
    try:
        (line,) = [text for text in up.stdout.splitlines() if text.startswith("export KUBECONFIG=")]
        yield Path(line.removeprefix("export KUBECONFIG=").split(" ")[0])
    finally:
        with turn(folder, "cluster-users") as users:
            first, *left = [line for line in users.read_text().splitlines() if line != str(os.getpid())]
            users.write_text("\n".join([first, *left, ""]) if left else "")
            if first == "ours" and not left:
                subprocess.run([str(scripts / "down.sh")], capture_output=True, timeout=120, check=False)


@pytest.fixture(scope="session")
def cluster(kubeconfig: Path) -> Kubectl:
    """kubectl in namespace default."""
    kubectl = Kubectl(binary("kubectl"), kubeconfig)
    kubectl("get", "--raw", "/readyz")
    return kubectl


@pytest.fixture(scope="session")
def crds(cluster: Kubectl) -> None:
    """The CRDs of this tree, served."""
    cluster("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))


@pytest.fixture(scope="module")
def new_namespace(cluster: Kubectl) -> Iterator[Callable[..., str]]:
    """Makes namespaces, with labels if given; all are deleted at the end of the module."""
    made: list[str] = []

    def make(**labels: str) -> str:
        name = f"tt-{uuid.uuid4().hex[:8]}"
        cluster(
            "create",
            "-f",
            "-",
            stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        )
        made.append(name)
        return name

    yield make
    if made:
        cluster("delete", "namespace", *made, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def namespace(new_namespace: Callable[..., str]) -> str:
    """A namespace for this module."""
    return new_namespace()


@pytest.fixture(scope="module")
def kubectl(cluster: Kubectl, namespace: str) -> Kubectl:
    """kubectl in the module's namespace."""
    return cluster.at(namespace)


@pytest.fixture(scope="session")
def helm(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """helm against the test cluster; its own files go to a temporary directory."""
    program = binary("helm")
    home = tmp_path_factory.mktemp("helm")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("HELM_")},
        **{f"HELM_{k}_HOME": str(home / k.lower()) for k in ("CACHE", "CONFIG", "DATA")},
        "KUBECONFIG": str(kubeconfig),
    }

    def run(*arguments: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=timeout, env=env, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    return run


@pytest.fixture(scope="session")
def prometheus(cluster: Kubectl, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real Prometheus in the cluster; its ClusterIP address as a URL, which is also reached from this machine."""
    script = ROOT / "hack" / "cluster" / "prometheus.sh"
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with turn(shared_folder(tmp_path_factory), "prometheus"):
        done = subprocess.run([str(script)], capture_output=True, text=True, timeout=180, env=env, check=False)
    assert done.returncode == 0, done.stderr
    ip = cluster.at("monitoring")("get", "service", "prometheus", "-o", "jsonpath={.spec.clusterIP}")
    return f"http://{ip}:9090"
