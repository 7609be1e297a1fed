"""The only module that talks to the Kubernetes API server. Plain JSON in, plain JSON out.

Objects stay dicts as the server sent them: typed models would drop fields that this client's version does not know,
and a baseline
must come back to the byte. Every call has a timeout; every failure becomes one of Trimtab's own errors.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config

from trimtab.errors import ClusterUnavailable, InputError, TargetConflict, TargetNotFound, TargetRefused

Json = dict[str, Any]

GROUP: Final = "trimtab.dev"
VERSION: Final = "v1alpha1"
#: kinds this operator touches -> API prefix and plural
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "VLLMTuner": (f"apis/{GROUP}/{VERSION}", "vllmtuners"),
    "TuningTrial": (f"apis/{GROUP}/{VERSION}", "tuningtrials"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "ReplicaSet": ("apis/apps/v1", "replicasets"),
    "Pod": ("api/v1", "pods"),
    "Secret": ("api/v1", "secrets"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Namespace": ("api/v1", "namespaces"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": ("apis/autoscaling/v2", "horizontalpodautoscalers"),
    "VerticalPodAutoscaler": ("apis/autoscaling.k8s.io/v1", "verticalpodautoscalers"),
    "Event": ("apis/events.k8s.io/v1", "events"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
}
#: what may own a target: API group and kind -> plural. Only read, in whatever version its Deployment names
OWNERS: Final[Mapping[tuple[str, str], str]] = {
    ("serving.kserve.io", "InferenceService"): "inferenceservices",
    ("serving.kserve.io", "LLMInferenceService"): "llminferenceservices",
    ("production-stack.vllm.ai", "VLLMRuntime"): "vllmruntimes",
}
_API_VERSION: Final = re.compile(r"v\d+(?:(?:alpha|beta)\d+)?")
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#: annotation of our CRDs; raised with each change of the schema that the operator needs
CRD_VERSION_ANNOTATION: Final = "trimtab.dev/crd-version"
CRD_VERSION: Final = "4"
CRDS: Final = ("vllmtuners.trimtab.dev", "tuningtrials.trimtab.dev")
#: names the operator's writes in managedFields
FIELD_MANAGER: Final = "trimtab"

_log = logging.getLogger(__name__)


class Cluster:
    """One API server. Thread-safe: urllib3's pool is shared, no other state.

    timeout_seconds bounds each call (connect and read together).
    """

    def __init__(self, api: client.ApiClient, timeout_seconds: float = 15.0) -> None:
        self._api, self._timeout = api, timeout_seconds
        #: asked before each write; the operator puts its lease here, so a process that lost it writes nothing more
        self.fence: Callable[[], bool] = lambda: True
        #: told of each request before it is sent: method and resource, such as PUT and vllmtuners/status
        self.told: Callable[[str, str], None] = lambda _method, _resource: None

    @classmethod
    def connect(cls, timeout_seconds: float = 15.0) -> Cluster:
        """From the pod's service account, else from KUBECONFIG."""
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            try:
                # named here: the library reads the variable only once, when it is imported
                path = os.environ.get("KUBECONFIG") or None
                config.load_kube_config(config_file=path, client_configuration=settings)  # type: ignore[no-untyped-call]
            except (config.ConfigException, OSError) as error:
                fix = "Run in a pod with a service account, or set KUBECONFIG to a readable file."
                raise InputError("KUBECONFIG", f"no cluster access: {error}", fix) from error
        settings.retries = False  # a retry hides a fault from the reconcile loop, which repeats anyway
        settings.connection_pool_maxsize = 16
        return cls(client.ApiClient(settings), timeout_seconds)

    # --- reading ------------------------------------------------------------------------------------------------------
    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """The object, or None where it does not exist."""
        try:
            return self._call("GET", self._path(kind, namespace, name))
        except TargetNotFound:
            return None

    def list(self, kind: str, namespace: str | None, labels: Mapping[str, str] | str = "") -> list[Json]:
        """Objects in a namespace (None: all), by equality of labels or by a selector text."""
        selector = labels if isinstance(labels, str) else ",".join(f"{k}={v}" for k, v in labels.items())
        items: list[Json] = []
        query = {"limit": "500", **({"labelSelector": selector} if selector else {})}
        while True:
            page = self._call("GET", self._path(kind, namespace), query=query)
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue")
            if not token:
                return items
            query = {**query, "continue": token}

    def owner(self, namespace: str, api_version: str, kind: str, name: str) -> Json | None:
        """An object of `OWNERS`; None where its kind is another, it does not exist or this account may not read it."""
        group, _, version = api_version.partition("/")
        plural = OWNERS.get((group, kind))
        if plural is None or not _API_VERSION.fullmatch(version):
            return None
        path = f"/apis/{group}/{version}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"
        try:
            return self._call("GET", path)
        except (TargetNotFound, TargetRefused) as error:
            _log.info("%s %s/%s is not read: %s", kind, namespace, name, error)
            return None

    def pod_log(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int = 100) -> str:
        """The last lines of a container's log, "" where there are none. Untrusted text: show, never interpret."""
        query = {
            "container": container,
            "tailLines": str(lines),
            "limitBytes": "65536",
            "previous": "true" if previous else "false",
        }
        try:
            text = self._raw("GET", f"{self._path('Pod', namespace, pod)}/log", query=query).decode("utf-8", "replace")
            return "" if text.startswith("unable to retrieve container logs") else text  # a 200 that is none
        except (TargetNotFound, TargetRefused) as error:
            _log.debug("no log of %s/%s: %s", namespace, pod, error)
            return ""

    def secret_value(self, namespace: str, name: str, key: str, field: str) -> str:
        """One key of one named Secret, decoded. `field` is where the reference stands, for the error."""
        return base64.b64decode(self._key("Secret", namespace, name, key, field)).decode().strip()

    def config_map_value(self, namespace: str, name: str, key: str, field: str) -> str:
        """One key of one named ConfigMap."""
        return self._key("ConfigMap", namespace, name, key, field)

    def _key(self, kind: str, namespace: str, name: str, key: str, field: str) -> str:
        value = ((self.get(kind, namespace, name) or {}).get("data") or {}).get(key)
        if value is None:
            raise InputError(field, f"{kind} {name} has no key {key}", "Create it, or correct the reference.")
        return str(value)

    def may(self, verb: str, kind: str, namespace: str, name: str) -> bool:
        """Whether this account has the right (SelfSubjectAccessReview, open to every account)."""
        prefix, plural = KINDS[kind]
        group = prefix.split("/")[1] if prefix.startswith("apis/") else ""
        attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace, "name": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._call("POST", _REVIEWS, body=review)
        return bool((answer.get("status") or {}).get("allowed"))

    def crd_version(self, name: str) -> str | None:
        """The CRD's version annotation; None where this account may not read CRDs."""
        try:
            found = self._call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{quote(name, safe='')}")
        except TargetRefused as error:
            _log.info("CRD version not checked: %s", error)
            return None
        return str((found["metadata"].get("annotations") or {}).get(CRD_VERSION_ANNOTATION, ""))

    # --- writing ------------------------------------------------------------------------------------------------------
    def create(self, kind: str, namespace: str, body: Json) -> Json:
        return self._call("POST", self._path(kind, namespace), query={"fieldManager": FIELD_MANAGER}, body=body)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Gone already is fine."""
        try:
            self._call("DELETE", self._path(kind, namespace, name))
        except TargetNotFound:
            _log.debug("%s %s/%s was gone already", kind, namespace, name)

    def json_patch(self, kind: str, seen: Json, operations: Sequence[Json]) -> Json:
        """JSON patch with optimistic locking on the resourceVersion of `seen`; a mismatch is `TargetConflict`."""
        meta = seen["metadata"]
        lock = {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}
        path = self._path(kind, meta["namespace"], meta["name"])
        query = {"fieldManager": FIELD_MANAGER}
        return self._call("PATCH", path, query=query, body=[lock, *operations], content="application/json-patch+json")

    def write_status(self, kind: str, seen: Json, status: Json) -> Json:
        """Replace /status as a whole, with optimistic locking."""
        meta = seen["metadata"]
        path = f"{self._path(kind, meta['namespace'], meta['name'])}/status"
        body = {**seen, "status": status}
        return self._call("PUT", path, query={"fieldManager": FIELD_MANAGER}, body=body)

    def replace(self, kind: str, body: Json) -> Json:
        """PUT a whole object of our own (a Lease); its resourceVersion locks it."""
        meta = body["metadata"]
        return self._call("PUT", self._path(kind, meta["namespace"], meta["name"]), body=body)

    # --- the wire -----------------------------------------------------------------------------------------------------
    @staticmethod
    def _path(kind: str, namespace: str | None, name: str = "") -> str:
        prefix, plural = KINDS[kind]
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"/{prefix}{scope}/{plural}" + (f"/{quote(name, safe='')}" if name else "")

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> Json:
        answer = self._raw(method, path, query=query, body=body, content=content)
        parsed = json.loads(answer) if answer else {}
        return parsed if isinstance(parsed, dict) else {}

    def _raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> bytes:
        if method != "GET" and path != _REVIEWS and "/leases" not in path and not self.fence():
            raise ClusterUnavailable(f"{method} {path}: not sent, this process does not hold the lease")
        self.told(method, resource_of(path))
        resource = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", **({"Content-Type": content} if body is not None else {})}
        try:
            request = self._api.param_serialize(method, resource, header_params=headers, auth_settings=["BearerToken"])
            verb, url, all_headers, _, _ = request
            response = self._api.call_api(verb, url, all_headers, body, _request_timeout=self._timeout)
            status, text = response.status, response.read() or b""  # type: ignore[no-untyped-call]
        except client.ApiException as error:
            status, text = error.status or 0, str(error.body or "").encode()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterUnavailable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if 200 <= status < 300:
            return bytes(text)
        raise _failure(status, f"{method} {path}", bytes(text))


def resource_of(path: str) -> str:
    """The plural of a request's path with its subresource, as rules of RBAC name it: `pods/log`, `deployments`."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join([rest[0], *rest[2:3]])


def _failure(status: int, what: str, text: bytes) -> Exception:
    """An answer that is not 2xx as one of our errors, with the server's own message."""
    try:
        message = str(json.loads(text).get("message", ""))
    except (ValueError, AttributeError):
        message = text[:300].decode("utf-8", "replace")
    full = f"{what}: {status} {message}".strip()
    if status == 404:
        return TargetNotFound(full)
    if status == 409:
        return TargetConflict(full)
    if status in (0, 408, 429) or status >= 500:
        return ClusterUnavailable(full)
    return TargetRefused(full)
