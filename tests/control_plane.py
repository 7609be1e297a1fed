"""A bare control plane: etcd, API server and the Deployment and ReplicaSet controllers as processes of this user.

No node: `StandInKubelet` makes pods run at once, or not at all. Starts in seconds, needs no root, and can be killed in
parts. The binaries are those that hack/cluster/build.sh makes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3

from cluster_fixtures import ROOT, cluster_bin

Json = dict[str, Any]
PARTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager")
CONTROLLERS: Final = "deployment-controller,replicaset-controller,garbage-collector-controller,namespace-controller"
#: of a call that is answered 429, as client-go does it
_TRIES: Final = 10


class ApiError(AssertionError):
    """An answer that is not 2xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@dataclass
class ControlPlane:
    """`start` all parts, `stop` them; `kill` and `launch` one of PARTS. `as_user` is another token's holder."""

    folder: Path
    authorization: str = "RBAC"
    ports: list[int] = field(default_factory=lambda: free_ports(4))
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self.launch("etcd")
        self.launch("kube-apiserver")
        self.wait_ready()
        self.kubeconfig.write_text(self._kubeconfig_text(self.url, self.folder / "pki" / "apiserver.crt"))
        self.launch("kube-controller-manager")

    def stop(self) -> None:
        for name in reversed(list(self.processes)):
            self.kill(name)

    def launch(self, name: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        command = [str(cluster_bin() / name), *self._arguments(name)]
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(20)

    def wait_ready(self, seconds: float = 60) -> float:
        """Until the API server serves; returns the seconds it took."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            with contextlib.suppress(ApiError, urllib3.exceptions.HTTPError, OSError):
                self.request("GET", "/readyz")
                return time.monotonic() - started
            time.sleep(0.1)
        raise AssertionError((self.folder / "kube-apiserver.log").read_text()[-3000:])

    def _arguments(self, name: str) -> list[str]:
        client, peer, secure, manager = self.ports
        etcd, key = f"http://127.0.0.1:{client}", str(self.folder / "sa.key")
        table = {
            "etcd": [
                "--data-dir=etcd", "--unsafe-no-fsync", f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
            ],
            "kube-apiserver": [
                f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                f"--secure-port={secure}", "--cert-dir=pki", "--service-cluster-ip-range=10.97.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}", "--token-auth-file=tokens.csv",
                f"--authorization-mode={self.authorization}", "--disable-admission-plugins=ServiceAccount",
                "--max-requests-inflight=800", "--max-mutating-requests-inflight=400",
            ],
            "kube-controller-manager": [
                f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", f"--controllers={CONTROLLERS}",
                f"--secure-port={manager}", "--cert-dir=pki-manager", "--kube-api-qps=500", "--kube-api-burst=500",
            ],
        }  # fmt: skip
        return table[name]

    # --- talking to it ------------------------------------------------------------------------------------------------
    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports[2]}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def kubeconfig_for(self, name: str, url: str, ca: Path | None = None, user: str = "") -> Path:
        """A kubeconfig beside the admin's: through a proxy at `url`, or as another user (impersonated)."""
        path = self.folder / f"kubeconfig-{name}"
        path.write_text(self._kubeconfig_text(url, ca, user))
        return path

    def _kubeconfig_text(self, url: str, ca: Path | None, user: str = "") -> str:
        cluster: Json = {"server": url}
        if ca is not None:
            cluster["certificate-authority"] = str(ca)
        person: Json = {"token": self.token, **({"as": user} if user else {})}
        return json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "it",
                "clusters": [{"name": "it", "cluster": cluster}], "users": [{"name": "it", "user": person}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            }
        )  # fmt: skip

    def pool(self) -> urllib3.PoolManager:
        """Connections of the admin; trusts whoever listens there, it is this machine."""
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return urllib3.PoolManager(cert_reqs="CERT_NONE", maxsize=16, headers={"Authorization": f"Bearer {self.token}"})

    def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Json:
        """One call as admin, again where the server says that it is too busy. ApiError for anything that is not 2xx."""
        pool = self.__dict__.setdefault("_pool", self.pool())
        data = None if body is None else json.dumps(body)
        for _ in range(_TRIES):
            answer = pool.request(
                method, self.url + path, body=data, timeout=20, retries=False,
                headers={**pool.headers, "Content-Type": content},
            )  # fmt: skip
            if answer.status != 429:
                break
            time.sleep(1.0)
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, answer.data.decode("utf-8", "replace"))
        with contextlib.suppress(ValueError):
            parsed = json.loads(answer.data)
            return parsed if isinstance(parsed, dict) else {}
        return {}

    def crds(self) -> None:
        """The CRDs of this tree, served."""
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            self.apply_crd(path.read_text())

    def apply_crd(self, text: str) -> None:
        import yaml

        body = yaml.safe_load(text)
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{body['metadata']['name']}"
        query = "?fieldManager=test&force=true"
        self.request("PATCH", path + query, body, "application/apply-patch+yaml")
        spec = body["spec"]
        served = f"/apis/{spec['group']}/v1alpha1/{spec['names']['plural']}"
        until(lambda: self.exists(served), 20, f"{served} is served")

    def exists(self, path: str) -> bool:
        try:
            self.request("GET", path)
        except ApiError as error:
            if error.status in (403, 404, 429):  # 429: its storage is not ready yet
                return False
            raise
        return True

    def namespace(self, prefix: str = "tt") -> str:
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def get(self, kind: str, namespace: str, name: str = "") -> Json:
        return self.request("GET", object_path(kind, namespace, name))

    def merge(self, kind: str, namespace: str, name: str, patch: Json) -> Json:
        return self.request("PATCH", object_path(kind, namespace, name), patch, "application/merge-patch+json")


def object_path(kind: str, namespace: str, name: str = "") -> str:
    """As the operator's own table of kinds has it."""
    from trimtab_operator.cluster import KINDS

    prefix, plural = KINDS[kind]
    return f"/{prefix}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def until(check: Callable[[], bool], seconds: float, what: str, pause: float = 0.1) -> float:
    """Polls; returns the seconds it took. AssertionError names what was waited for."""
    started = time.monotonic()
    while not check():
        if time.monotonic() - started > seconds:
            raise AssertionError(f"waited {seconds:g} s for: {what}")
        time.sleep(pause)
    return time.monotonic() - started


@contextlib.contextmanager
def running(authorization: str = "RBAC") -> Iterator[ControlPlane]:
    """A control plane with this tree's CRDs, in a folder that goes with it."""
    missing = [p for p in PARTS if not (cluster_bin() / p).exists()]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: run hack/cluster/build.sh (once, minutes)")
    folder = Path(tempfile.mkdtemp(prefix="trimtab-cp-"))
    plane = ControlPlane(folder, authorization)
    try:
        plane.start()
        plane.crds()
        yield plane
    finally:
        plane.stop()
        if not os.environ.get("TRIMTAB_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


class StandInKubelet:
    """Makes each pod Running and Ready as soon as it is seen, with a loopback address of its own.

    `refuses(pod)` true: the pod stays as it is. `loads(pod)`: seconds for which it runs before it is Ready. Watches, so
    it costs nothing while nothing happens.
    """

    def __init__(
        self,
        plane: ControlPlane,
        refuses: Callable[[Json], bool] = lambda _: False,
        loads: Callable[[Json], float] = lambda _: 0.0,
    ) -> None:
        self.plane, self.refuses, self.loads = plane, refuses, loads
        #: (namespace, name) -> pod as last seen; `ever` has those that are gone, too
        self.pods: dict[tuple[str, str], Json] = {}
        self.ever: dict[tuple[str, str], Json] = {}
        self._done, self._number, self._pool = threading.Event(), 0, plane.pool()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StandInKubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.is_set():
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError, ValueError, ApiError):
                self._watch()
            time.sleep(0.2)

    def _watch(self) -> None:
        """From the current state on; ends when the API server ends the watch."""
        seen = self.plane.request("GET", "/api/v1/pods")
        self.pods = {}
        for pod in seen["items"]:
            self._take({"type": "ADDED", "object": pod})
        url = f"{self.plane.url}/api/v1/pods?watch=true&resourceVersion={seen['metadata']['resourceVersion']}"
        answer = self._pool.request("GET", url, preload_content=False, timeout=urllib3.Timeout(5, 30), retries=False)
        rest = b""
        for chunk in answer.stream(1 << 16, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if self._done.is_set():
                return

    def _take(self, event: Json) -> None:
        pod, meta = event["object"], event["object"].get("metadata", {})
        key = (meta.get("namespace", ""), meta.get("name", ""))
        if event["type"] == "DELETED":
            self.pods.pop(key, None)
            return
        if event["type"] not in ("ADDED", "MODIFIED"):
            raise ValueError(str(event)[:200])
        self.pods[key] = self.ever[key] = pod
        if (pod.get("status") or {}).get("podIP") or meta.get("deletionTimestamp") or self.refuses(pod):
            return
        self._number += 1
        seconds, number = self.loads(pod), self._number
        self._says(key, running_status(pod, number, ready=seconds <= 0))
        if seconds > 0:
            later = threading.Timer(seconds, lambda: self._says(key, running_status(pod, number)))
            later.daemon = True
            later.start()

    def _says(self, key: tuple[str, str], status: Json) -> None:
        path = f"/api/v1/namespaces/{key[0]}/pods/{key[1]}/status"
        with contextlib.suppress(ApiError, urllib3.exceptions.HTTPError):  # gone already
            self.plane.request("PATCH", path, status, "application/merge-patch+json")


def running_status(pod: Json, number: int, *, ready: bool = True) -> Json:
    """The status of a pod that runs, and is Ready (or not) since now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = "True" if ready else "False"
    conditions = [{"type": t, "status": said, "lastTransitionTime": now} for t in ("Ready", "ContainersReady")]
    state = {"running": {"startedAt": now}}
    containers = [
        {"name": c["name"], "ready": ready, "restartCount": 0, "state": state, "image": c["image"], "imageID": "x"}
        for c in pod["spec"]["containers"]
    ]
    ip = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions, "startTime": now}
    return {"status": {**status, "containerStatuses": containers}}
