"""What must be right around a tuner, checked from outside: versions, the operator, rights, metrics, how pods end. Reads
only. Each check says what to do where it is not well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, urlsplit

from trimtab import __version__
from trimtab.errors import TargetNotFound, TargetRefused, TrimtabError
from trimtab_operator.plugin.kubectl import Kubectl
from trimtab_operator.plugin.objects import Json, rows, table, text, whole
from trimtab_operator.plugin.terminal import Line, Part, line

_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OPERATOR: Final = "app.kubernetes.io/name=trimtab"
#: name.namespace, as a Service is called inside the cluster
_SERVICE: Final = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)(\.svc(\..*)?)?")
_SERIES: Final = "vllm:num_requests_running"
_METRICS_PORT: Final = 8000  # vLLM's own default


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """about: the cluster, the operator or a tuner. fix: what to do, "" where all is well."""

    about: str
    name: str
    state: State
    message: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "about": self.about,
            "check": self.name,
            "state": self.state.value,
            "message": self.message,
            "fix": self.fix,
        }


_SIGNS: Final = {
    State.OK: ("✓", "good"),
    State.WARN: ("!", "warn"),
    State.FAIL: ("✗", "bad"),
    State.UNKNOWN: ("?", "dim"),
}


def lines(found: Sequence[Check]) -> list[Line]:
    out: list[Line] = []
    about = ""
    for c in found:
        if c.about != about:
            about = c.about
            out.append(line(Part(about, "bold")))
        sign, look = _SIGNS[c.state]
        out.append(line("  ", Part(f"{sign} {c.state.value:<8}", look), f"{c.name}: {c.message}"))
        if c.fix and c.state is not State.OK:
            out.append(line(Part(f"             do: {c.fix}", "dim")))
    return out


def examine(api: Kubectl, tuners: Sequence[Json]) -> list[Check]:
    """All checks, the cluster's first. `tuners`: the VLLMTuners to look at."""
    out = [_server(api), *_crds(api)]
    operator = _operator(api)
    out += operator[0]
    spaces = sorted({str(table(t.get("metadata")).get("namespace")) for t in tuners})
    for space in spaces:
        out += _own_rights(api, space)
    for tuner in tuners:
        out += _tuner(api, tuner, operator[1])
    return out


def _server(api: Kubectl) -> Check:
    found = api.versions()
    ours, theirs = (text(table(found.get(k)).get("gitVersion")) for k in ("clientVersion", "serverVersion"))
    state = State.OK if theirs else State.FAIL
    told = f"Kubernetes {theirs or 'not reached'}, kubectl {ours}, trimtab {__version__}"
    return Check("cluster", "versions", state, told, "Check the context: kubectl config current-context")


def _crds(api: Kubectl) -> Iterator[Check]:
    from trimtab_operator.cluster import CRD_VERSION, CRD_VERSION_ANNOTATION, CRDS

    for name in CRDS:
        try:
            meta = table(json.loads(api.raw(f"{_CRDS}/{name}")).get("metadata"))
        except TargetNotFound:
            yield Check(
                "cluster", "CRD", State.FAIL, f"{name} is not installed", "kubectl apply --server-side -f crds/"
            )
            continue
        except TargetRefused:
            yield Check("cluster", "CRD", State.UNKNOWN, f"you may not read {name}", "Nothing, if the tuners work.")
            continue
        found = text(table(meta.get("annotations")).get(CRD_VERSION_ANNOTATION) or "none")
        state = State.OK if found == CRD_VERSION else State.WARN
        yield Check("cluster", "CRD", state, f"{name} has version {found}, this trimtab knows {CRD_VERSION}",
                    "Apply the CRDs of the operator's version: kubectl apply --server-side -f crds/")  # fmt: skip


def _operator(api: Kubectl) -> tuple[list[Check], str]:
    """And the operator's account as kubectl's --as takes it, "" where it is not known."""
    try:
        found = api.get("deployments.apps", selector=_OPERATOR, everywhere=True)
    except TargetRefused:
        fix = "Ask who runs the operator; its log tells most."
        return [Check("operator", "running", State.UNKNOWN, "you may not list Deployments of all namespaces", fix)], ""
    if not found:
        fix = "helm install trimtab charts/trimtab -n trimtab-system --create-namespace"
        return [Check("operator", "running", State.FAIL, f"no Deployment with the label {_OPERATOR}", fix)], ""
    out = []
    for o in found:
        meta, spec, status = (table(o.get(k)) for k in ("metadata", "spec", "status"))
        name, space = text(meta.get("name")), text(meta.get("namespace"))
        ready = whole(status.get("readyReplicas"))
        pod = table(table(spec.get("template")).get("spec"))
        image = text((rows(pod.get("containers")) or [{}])[0].get("image"))
        told = f"{space}/{name} {ready} ready, {image}"
        state = State.OK if ready else State.FAIL
        out.append(Check("operator", "running", state, told, f"kubectl logs -n {space} deployment/{name}"))
    if len(found) > 1:
        fix = "Let them watch different namespaces, or remove one."
        out.append(Check("operator", "alone", State.WARN, f"{len(found)} operators are installed", fix))
    meta = table(found[0].get("metadata"))
    pod = table(table(table(found[0].get("spec")).get("template")).get("spec"))
    return out, f"system:serviceaccount:{meta.get('namespace')}:{pod.get('serviceAccountName') or 'default'}"


def _own_rights(api: Kubectl, space: str) -> Iterator[Check]:
    for resource, use in (("vllmtuners.trimtab.dev", "pause, resume"), ("tuningtrials.trimtab.dev", "approve, reject")):
        allowed = api.may("patch", resource, space)
        state = State.OK if allowed else State.WARN
        yield Check("you", "right", state, f"patch {resource} in {space} ({use}): {'yes' if allowed else 'no'}",
                    "Ask for the right, or let somebody decide who has it.")  # fmt: skip


def _tuner(api: Kubectl, tuner: Json, account: str) -> Iterator[Check]:
    meta, spec, status = (table(tuner.get(k)) for k in ("metadata", "spec", "status"))
    space, name = str(meta.get("namespace")), text(meta.get("name"))
    about = f"{space}/{name}"
    if not status:
        yield Check(about, "seen", State.FAIL, "no operator has looked at it", "Let the operator watch this namespace.")
    for c in rows(status.get("conditions")):
        if (c.get("type"), c.get("status")) in (("Ready", "False"), ("Stalled", "True")):
            told = f"{text(c.get('reason'))}: {text(c.get('message'), 600)}"
            yield Check(about, text(c.get("type")), State.FAIL, told, "The message says what to mend.")
    target = str(table(spec.get("targetRef")).get("name"))
    yield from _right(api, about, space, target, account, text(spec.get("mode") or "Recommend"))
    try:
        deployment = _deployment(api, space, target)
    except (TrimtabError, ValueError) as error:
        yield Check(about, "target", State.FAIL, text(error, 400), "Create it, or correct it in a new VLLMTuner.")
        return
    yield from _manifest(about, deployment)
    yield from _metrics(api, about, space, table(spec.get("metrics")), deployment)


def _deployment(api: Kubectl, space: str, name: str) -> Json:
    path = f"/apis/apps/v1/namespaces/{quote(space, safe='')}/deployments/{quote(name, safe='')}"
    return table(json.loads(api.raw(path)))


def _right(api: Kubectl, about: str, space: str, target: str, account: str, mode: str) -> Iterator[Check]:
    if not account or mode == "Recommend":
        return
    allowed = api.may("patch", f"deployments.apps/{target}", space, account)
    if allowed is None:
        yield Check(about, "operator's right", State.UNKNOWN, "you may not ask for another account",
                    "Let an administrator run this.")  # fmt: skip
        return
    state = State.OK if allowed else State.FAIL
    told = f"patch deployments/{target}: {'yes' if allowed else 'no'} (mode {mode})"
    yield Check(about, "operator's right", state, told, "helm upgrade with rbac.mode=Apply, or use mode Recommend.")


def _manifest(about: str, deployment: Json) -> Iterator[Check]:
    """`trimtab lint` on the live object: how pods end and start, and flags that do not do what they say."""
    from trimtab.lint.finding import ORDER, Options, Severity
    from trimtab.lint.report import lint
    from trimtab.manifests.documents import read_documents

    kept = {k: v for k, v in deployment.items() if k != "status"}
    try:
        reports = lint(read_documents(json.dumps(kept), "live"), Options())
    except TrimtabError as error:
        yield Check(about, "manifest", State.UNKNOWN, text(error, 400), "trimtab lint on the manifest's own source.")
        return
    bad = [f for r in reports for f in r.findings if ORDER[f.severity] <= ORDER[Severity.WARNING]]
    for f in bad:
        state = State.FAIL if f.severity is Severity.ERROR else State.WARN
        yield Check(about, f"{f.id} {f.name}", state, text(f.message, 400), text(f.fix, 400))
    if not bad:
        yield Check(about, "manifest", State.OK, "drain settings, probes and flags have no known trap")


def _metrics(api: Kubectl, about: str, space: str, metrics: Json, deployment: Json) -> Iterator[Check]:
    prometheus = table(metrics.get("prometheus"))
    if prometheus:
        yield _prometheus(api, about, space, str(prometheus.get("url")))
    else:
        yield _direct(api, about, space, deployment)


def _prometheus(api: Kubectl, about: str, space: str, url: str) -> Check:
    """Through the API server's proxy, which needs the right get on services/proxy."""
    parts = urlsplit(url)
    found = _SERVICE.fullmatch(parts.hostname or "")
    if found is None:
        return Check(about, "Prometheus", State.UNKNOWN, f"{text(url)} is no Service of this cluster: not asked",
                     "Condition Ready tells whether the operator reaches it.")  # fmt: skip
    port = parts.port or (443 if parts.scheme == "https" else 80)
    service = f"{parts.scheme}:{found[1]}:{port}"
    query = quote(f'count({{__name__="{_SERIES}",namespace="{space}"}})')
    path = f"/api/v1/namespaces/{found[2]}/services/{service}/proxy{parts.path.rstrip('/')}/api/v1/query?query={query}"
    try:
        answer = table(json.loads(api.raw(path)))
    except (TrimtabError, ValueError) as error:
        return Check(about, "Prometheus", State.WARN, f"not reached through the API server: {text(error, 300)}",
                     "It may still be reached by the operator: condition Ready tells.")  # fmt: skip
    result = rows(table(answer.get("data")).get("result"))
    count = text((result[0].get("value") or [0, "0"])[1]) if result else "0"
    if count == "0":
        return Check(about, "Prometheus", State.FAIL, f"answers, but holds no {_SERIES} of namespace {space}",
                     "Add a PodMonitor for the engine's pods; docs/metrics.md names the labels.")  # fmt: skip
    return Check(about, "Prometheus", State.OK, f"answers; {count} engines of {space} are in it")


def _direct(api: Kubectl, about: str, space: str, deployment: Json) -> Check:
    """One ready pod's /metrics through the API server's proxy (right: get on pods/proxy)."""
    labels = table(table(table(deployment.get("spec")).get("selector")).get("matchLabels"))
    selector = quote(",".join(f"{k}={v}" for k, v in labels.items()))
    try:
        pods = rows(json.loads(api.raw(f"/api/v1/namespaces/{space}/pods?labelSelector={selector}")).get("items"))
        ready = next((p for p in pods if _ready(p)), None)
        if ready is None:
            return Check(about, "metrics", State.FAIL, "no pod of the target is ready", "kubectl describe its pods.")
        name, port = str(table(ready.get("metadata")).get("name")), _port(deployment)
        page = api.raw(f"/api/v1/namespaces/{space}/pods/http:{name}:{port}/proxy/metrics")
    except (TrimtabError, ValueError) as error:
        return Check(about, "metrics", State.WARN, f"/metrics not reached through the API server: {text(error, 300)}",
                     "The operator may still reach it: condition Ready tells.")  # fmt: skip
    if _SERIES not in page:
        return Check(about, "metrics", State.FAIL, f"{name}:{port}/metrics has no {_SERIES}",
                     "Remove --disable-log-stats, or name the engine's container in spec.targetRef.")  # fmt: skip
    return Check(about, "metrics", State.OK, f"{name}:{port}/metrics has vLLM's counters")


def _ready(pod: Mapping[str, object]) -> bool:
    said = rows(table(pod.get("status")).get("conditions"))
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in said)


def _port(deployment: Json) -> int:
    """The container port that is called http, else the first, else vLLM's default."""
    pod = table(table(table(deployment.get("spec")).get("template")).get("spec"))
    ports = [p for c in rows(pod.get("containers")) for p in rows(c.get("ports"))]
    chosen = next((p for p in ports if p.get("name") == "http"), ports[0] if ports else {})
    return whole(chosen.get("containerPort")) or _METRICS_PORT
