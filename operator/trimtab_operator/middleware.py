"""The middleware's ConfigMaps and the way of a policy into the pods: written, touched, then seen in their metrics.

Hazards, measured on a real kubelet: a ConfigMap alone takes 8 to 84 s to reach a pod; an annotation on the pod right
after it 0.4 to 0.7 s. The ConfigMaps are owned by the Deployment, not by the tuner: pods mount them, and must still
start when the tuner is gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from trimtab import middleware
from trimtab.engine.install import POLICY_KEY, InstallNames, installed_names
from trimtab.errors import TargetConflict, TargetNotFound
from trimtab.observe.middleware import MiddlewareView, ask_middleware
from trimtab.plan.token_policy import body_of, digest_of, generation_of, policy_text
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import TUNER_LABEL, owned_by

Json = dict[str, Any]

#: on a pod: the policy generation that the kubelet was told to bring
GENERATION_ANNOTATION: Final = "trimtab.dev/policy-generation"
#: a pod that has not taken the policy is touched again after this
TOUCH_AGAIN_SECONDS: Final = 10.0
#: a pod that has it is asked again after this
ASK_AGAIN_SECONDS: Final = 60.0
#: a pod that does not answer is asked again after 1, 2, 4 ... seconds, at the most this: a trial's looks must not wait
MOST_SILENT_SECONDS: Final = 60.0
#: while pods are late a tuner is looked at this often, for as long as a ConfigMap takes at the worst
LATE_TICK: Final = 1.0
LATE_SECONDS: Final = 90.0
_PARALLEL: Final = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Package:
    """The middleware of this operator as ConfigMap keys."""

    files: Mapping[str, str]
    digest: str

    @property
    def version(self) -> str:
        return f"{middleware.VERSION} ({self.digest})"


@lru_cache(maxsize=1)
def package() -> Package:
    """Read from this installation; one flat folder of .py files."""
    folder = files("trimtab.middleware")
    found = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".py")}
    whole = hashlib.sha256()
    for name in sorted(found):
        whole.update(f"{name}\0{found[name]}\0".encode())
    return Package(found, whole.hexdigest()[:8])


def names(tuner: str, token: str = "") -> InstallNames:
    """What a tuner's ConfigMaps are called; the code's name changes with its content."""
    return InstallNames(f"{tuner}-mw-{package().digest}", f"{tuner}-token-policy", token)


def config_map(name: str, tuner: str, deployment: Json, data: Mapping[str, str], *, immutable: bool) -> Json:
    meta = deployment["metadata"]
    owner = owned_by("apps/v1", "Deployment", meta)
    body: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {TUNER_LABEL: tuner},
            "ownerReferences": [owner],
        },
        "data": dict(data),
    }
    return {**body, "immutable": True} if immutable else body


@dataclass(frozen=True)
class PodRow:
    """A pod that mounts the middleware. `seen` is None where it does not answer or shows none."""

    pod: Json
    name: str
    ready: bool
    seen: MiddlewareView | None = None


@dataclass(frozen=True)
class Report:
    """How far the policy `text` has come. late: ready pods without it."""

    rows: Sequence[PodRow]
    text: str
    #: seconds since the policy was last changed, as far as this process knows
    age_seconds: float = 0.0

    @property
    def ready(self) -> list[PodRow]:
        return [r for r in self.rows if r.ready]

    @property
    def taken(self) -> list[PodRow]:
        wanted = digest_of(self.text)
        return [r for r in self.ready if r.seen is not None and r.seen.digest == wanted]

    @property
    def late(self) -> list[PodRow]:
        has = {r.name for r in self.taken}
        return [r for r in self.ready if r.name not in has]

    @property
    def hurry(self) -> bool:
        return bool(self.late) and self.age_seconds < LATE_SECONDS

    def status(self) -> Json:
        """For status.middleware."""
        shown = sorted({r.seen.version for r in self.ready if r.seen is not None})
        out: Json = {"pods": sum(r.seen is not None for r in self.ready), "podsWithPolicy": len(self.taken)}
        if shown:
            out["version"] = ", ".join(shown)
        if self.text:
            out["generation"] = generation_of(self.text)
        return out

    def problem(self) -> str:
        """Pods that refuse the policy, "" where none does."""
        bad = [r.name for r in self.late if r.seen is not None and r.seen.bad]
        return f"{', '.join(bad)} cannot use the policy file; GET /trimtab/status on it says why" if bad else ""


@dataclass
class Delivery:
    """Writes policies and brings them to the pods. What it remembers only saves calls: pods tell what they have."""

    cluster: Cluster
    clock: Callable[[], float]
    ask: Callable[[str, int], MiddlewareView | None] = ask_middleware
    #: pod's uid -> (when it was touched, how often, for which file)
    _touched: dict[str, tuple[float, int, str]] = field(default_factory=dict)
    #: pod's uid -> (when it was asked, its answer)
    _asked: dict[str, tuple[float, MiddlewareView]] = field(default_factory=dict)
    #: pod's uid -> (when it did not answer, how often in a row)
    _silent: dict[str, tuple[float, int]] = field(default_factory=dict)
    #: ConfigMap -> when it was last changed
    _changed: dict[tuple[str, str], float] = field(default_factory=dict)

    # --- ConfigMaps ---------------------------------------------------------------------------------------------------
    def ensure_code(self, tuner: str, deployment: Json) -> None:
        """The code's ConfigMap is there and lives as long as the Deployment; its content never changes."""
        name = names(tuner).code
        self._ensure(config_map(name, tuner, deployment, package().files, immutable=True))

    def _ensure(self, wanted: Json) -> Json:
        meta = wanted["metadata"]
        found = self.cluster.get("ConfigMap", meta["namespace"], meta["name"])
        if found is None:
            return self.cluster.create("ConfigMap", meta["namespace"], wanted)
        if found["metadata"].get("ownerReferences") != meta["ownerReferences"]:  # the Deployment was made anew
            operation = {"op": "add", "path": "/metadata/ownerReferences", "value": meta["ownerReferences"]}
            return self.cluster.json_patch("ConfigMap", found, [operation])
        return found

    def written(self, namespace: str, tuner: str) -> str:
        """The policy file as it is in the cluster, "" where there is none."""
        found = self.cluster.get("ConfigMap", namespace, names(tuner).policy)
        return str(((found or {}).get("data") or {}).get(POLICY_KEY, ""))

    def write(self, tuner: str, deployment: Json, body: Json, at_least: int = 0) -> str:
        """The policy file says `body`; a change raises the generation above the old one and `at_least`. Its text."""
        name, namespace = names(tuner).policy, deployment["metadata"]["namespace"]
        found = self.cluster.get("ConfigMap", namespace, name)
        old = str(((found or {}).get("data") or {}).get(POLICY_KEY, ""))
        if found is not None and body_of(old) == body:
            self._ensure(config_map(name, tuner, deployment, {POLICY_KEY: old}, immutable=False))
            return old
        text = policy_text(body, max(at_least, generation_of(old)) + 1)
        if found is None:
            self.cluster.create(
                "ConfigMap", namespace, config_map(name, tuner, deployment, {POLICY_KEY: text}, immutable=False)
            )
        else:
            self.cluster.json_patch("ConfigMap", found, [{"op": "add", "path": "/data", "value": {POLICY_KEY: text}}])
        self._changed[namespace, name] = self.clock()
        _log.info("%s/%s: token policy, generation %d", namespace, tuner, generation_of(text))
        return text

    # --- pods ---------------------------------------------------------------------------------------------------------
    def look(self, tuner: str, namespace: str, pods: Sequence[Json], port: int, text: str) -> Report:
        """Which pods have the policy `text`. Writes nothing."""
        mounted = [p for p in pods if installed_names(p) is not None and not p["metadata"].get("deletionTimestamp")]
        wanted, now = digest_of(text), self.clock()
        with ThreadPoolExecutor(_PARALLEL) as threads:
            rows = list(threads.map(lambda p: self._row(p, port, wanted, now), mounted))
        self._forget({p["metadata"]["uid"] for p in mounted})
        changed = self._changed.setdefault((namespace, names(tuner).policy), now)
        return Report(rows, text, now - changed)

    def _row(self, pod: Json, port: int, wanted: str, now: float) -> PodRow:
        meta, status = pod["metadata"], pod.get("status") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        known = self._asked.get(meta["uid"])
        if not ready or not status.get("podIP"):
            return PodRow(pod, meta["name"], ready=False)
        if known is not None and known[1].digest == wanted and now - known[0] < ASK_AGAIN_SECONDS:
            return PodRow(pod, meta["name"], True, known[1])
        at, times = self._silent.get(meta["uid"], (0.0, 0))
        if times and now - at < min(MOST_SILENT_SECONDS, 2.0 ** (times - 1)):
            return PodRow(pod, meta["name"], True, None)
        seen = self.ask(status["podIP"], port)
        if seen is None:
            self._silent[meta["uid"]] = (now, times + 1)
        else:
            self._asked[meta["uid"]] = (now, seen)
            self._silent.pop(meta["uid"], None)
        return PodRow(pod, meta["name"], True, seen)

    def touch(self, report: Report) -> None:
        """Make the kubelet bring the file at once to the pods that lack it; again now and then."""
        wanted, now = digest_of(report.text), self.clock()
        for row in report.late:
            uid = row.pod["metadata"]["uid"]
            at, times, what = self._touched.get(uid, (0.0, 0, ""))
            if what == wanted and now - at < TOUCH_AGAIN_SECONDS:
                continue
            times = times + 1 if what == wanted else 0
            value = f"{generation_of(report.text)}" + (f".{times}" if times else "")
            try:
                self.cluster.json_patch("Pod", row.pod, annotate(row.pod, value))
            except (TargetConflict, TargetNotFound) as error:
                _log.debug("%s: not touched: %s", row.name, error)
                continue
            self._touched[uid] = (now, times, wanted)

    def _forget(self, living: set[str]) -> None:
        """Bound the memory: what is older than an hour and not here any more goes."""
        old = self.clock() - 3600
        for uid in [u for u, (at, _) in self._asked.items() if at < old and u not in living]:
            self._asked.pop(uid, None)
        for uid in [u for u, (at, _, _) in self._touched.items() if at < old and u not in living]:
            self._touched.pop(uid, None)
        for uid in [u for u, (at, _) in self._silent.items() if at < old and u not in living]:
            self._silent.pop(uid, None)


def annotate(pod: Json, value: str) -> list[Json]:
    """The JSON patch that sets the annotation; the same value would be no change and wake nobody."""
    if pod["metadata"].get("annotations") is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {GENERATION_ANNOTATION: value}}]
    key = GENERATION_ANNOTATION.replace("~", "~0").replace("/", "~1")
    if pod["metadata"]["annotations"].get(GENERATION_ANNOTATION) == value:
        value += ".again"
    return [{"op": "add", "path": f"/metadata/annotations/{key}", "value": value}]
