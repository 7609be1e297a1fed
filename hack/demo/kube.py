"""kubectl and helm for the demo, each with a time limit; the cluster of hack/cluster or one that the user names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True)
class Kube:
    """`own`: the cluster of hack/cluster."""

    kubectl: str
    helm: str
    kubeconfig: Path | None
    context: str | None
    own: bool
    #: whether the demo started it: what ran before, stays
    started: bool = False

    @property
    def _flags(self) -> list[str]:
        flags = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        return flags + ([f"--context={self.context}"] if self.context else [])

    def run(self, *args: str, stdin: Json | None = None, timeout: float = 60, check: bool = True) -> str:
        text = json.dumps(stdin) if stdin is not None else None
        done = subprocess.run(
            [self.kubectl, *self._flags, *args],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(args[:4])}: {done.stderr.strip()}")
        return done.stdout

    def json(self, *args: str) -> Json:
        found: Json = json.loads(self.run(*args, "-o", "json") or "{}")
        return found

    def apply(self, namespace: str, items: Sequence[Json]) -> None:
        self.run("apply", "-n", namespace, "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": list(items)})

    def logs(self, namespace: str, pod: str) -> subprocess.Popen[str]:
        """`kubectl logs -f`; the caller ends it."""
        command = [self.kubectl, *self._flags, "logs", "-n", namespace, "-f", pod]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def helm_install(self, name: str, namespace: str, chart: Path, values: Sequence[str]) -> None:
        context = [f"--kube-context={self.context}"] if self.context else []
        env = {**os.environ, **({"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {})}
        command = [self.helm, "upgrade", "--install", name, str(chart), "-n", namespace, "--create-namespace", "--wait"]
        command += ["--take-ownership"]  # of CRDs that kubectl applied before
        sets = [part for value in values for part in ("--set", value)]
        done = subprocess.run(
            [*command, "--timeout=120s", *context, *sets],
            capture_output=True,
            text=True,
            timeout=180,
            env=env,
            check=False,
        )
        if done.returncode != 0:
            raise DemoError(f"helm install: {done.stderr.strip()}")

    def has_prometheus(self) -> bool:
        """Whether Prometheus is where the demo looks for it: Service monitoring/prometheus, port 9090."""
        return bool(self.run("get", "service", "prometheus", "-n", "monitoring", "-o", "name", check=False))

    def promql(self, query: str, at: float) -> dict[str, float]:
        """An instant query to Prometheus, through the API server: value by pod label ("" where there is none)."""
        path = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/query"
        answer = json.loads(self.run("get", "--raw", f"{path}?query={quote(query)}&time={at:.3f}"))
        return {r["metric"].get("pod", ""): float(r["value"][1]) for r in answer["data"]["result"]}


def script(*command: str, timeout: float = 3000, env: dict[str, str] | None = None) -> str:
    """One of the repository's scripts; what it says goes to the screen as it comes, its output is returned."""
    path = str(ROOT / command[0])
    process = subprocess.Popen(
        [path, *command[1:]],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(f"  {line.rstrip()}", flush=True)
        if process.wait(timeout) != 0:
            raise DemoError(f"{command[0]} failed; its message is above")
    except BaseException:
        stop_group(process)
        raise
    return "".join(lines)


def stop_group(process: subprocess.Popen[str]) -> None:
    """End a script and what it started (its own session, so nothing else is hit)."""
    import signal

    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def given_cluster() -> Kube | None:
    """The cluster named by DEMO_CONTEXT or KUBECONFIG, or None."""
    context, config = os.environ.get("DEMO_CONTEXT"), os.environ.get("KUBECONFIG")
    if not context and not config:
        return None
    tools = {name: shutil.which(name) for name in ("kubectl", "helm")}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        raise DemoError(f"{' and '.join(missing)} not found on PATH; DEMO_CONTEXT and KUBECONFIG need them")
    return Kube(str(tools["kubectl"]), str(tools["helm"]), Path(config) if config else None, context, own=False)


def own_cluster() -> Kube:
    """hack/cluster: built if need be, started, with Prometheus and our image."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("TRIMTAB_CACHE") or Path(base) / "trimtab")
    script("hack/cluster/build.sh")
    script("hack/image/build.sh")
    started = "already up" not in script("hack/cluster/up.sh")
    folder = cache / "cluster"
    kube = Kube(
        str(folder / "bin" / "kubectl"),
        str(folder / "bin" / "helm"),
        folder / "kubeconfig",
        None,
        own=True,
        started=started,
    )
    script("hack/cluster/prometheus.sh", env={"KUBECONFIG": str(kube.kubeconfig)})
    return kube
