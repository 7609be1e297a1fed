"""What else acts on a target's pods, read from Kubernetes objects: disruption budgets, autoscalers, other tuners. Pure:
JSON in, facts out.

Hazard: the objects are other people's. What is odd in them (wrong types, missing parts) is read as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]

#: share by which the HPA lets a metric exceed its target before it adds pods
#: (kube-controller-manager, --horizontal-pod-autoscaler-tolerance)
HPA_TOLERANCE: Final = 0.1
#: the gauge of running requests under the names that Prometheus adapters and KEDA give it
_RUNNING: Final = "num_requests_running"
_QUANTITY: Final = re.compile(r"([+-]?\d+(?:\.\d+)?)(m|k|M|G|Ki|Mi|Gi)?")
_UNITS: Final[Mapping[str | None, float]] = {
    None: 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30,
}  # fmt: skip
#: update modes in which a VerticalPodAutoscaler ends or resizes running pods; absent means Auto
_RESIZING: Final = frozenset({"Auto", "Recreate", "InPlaceOrRecreate"})


@dataclass(frozen=True)
class DisruptionBudget:
    """A PodDisruptionBudget over the target's pods. healthy: all the pods it expects are healthy."""

    name: str
    allowed: int
    healthy: bool


@dataclass(frozen=True)
class Autoscaler:
    """A HorizontalPodAutoscaler of the target. running: requests per pod above which it adds pods, where it scales on
    the gauge of running requests. hidden: it scales on something whose name does not tell what (KEDA)."""

    name: str
    least: int
    most: int
    running: float | None = None
    hidden: bool = False

    @property
    def scales(self) -> bool:
        return self.most > self.least


def disruption_budgets(objects: Sequence[Json], pod_labels: Json) -> tuple[DisruptionBudget, ...]:
    """Those of the target's namespace whose selector takes pods with these labels."""
    found = []
    for item in objects:
        spec, status = _map(item.get("spec")), _map(item.get("status"))
        if not selects(spec.get("selector"), pod_labels):
            continue
        healthy = _count(status.get("currentHealthy")) >= _count(status.get("expectedPods"))
        found.append(DisruptionBudget(_name(item), _count(status.get("disruptionsAllowed")), healthy))
    return tuple(sorted(found, key=lambda b: b.name))


def autoscalers(objects: Sequence[Json], deployment: str) -> tuple[Autoscaler, ...]:
    """HorizontalPodAutoscalers (autoscaling/v2) of the Deployment; KEDA makes one for each ScaledObject."""
    return tuple(
        sorted((_autoscaler(o) for o in objects if _targets(o, "scaleTargetRef", deployment)), key=lambda a: a.name)
    )


def resizers(objects: Sequence[Json], deployment: str) -> tuple[str, ...]:
    """Names of VerticalPodAutoscalers that resize or evict the Deployment's pods."""
    found = []
    for item in objects:
        policy = _map(_map(item.get("spec")).get("updatePolicy"))
        if _targets(item, "targetRef", deployment) and policy.get("updateMode", "Auto") in _RESIZING:
            found.append(_name(item))
    return tuple(sorted(found))


def rival(tuners: Sequence[Json], own_uid: str, deployment: str) -> str:
    """The older tuner that may write to the same Deployment, "" where this one is the oldest.

    Tuners that only recommend or are suspended write nothing and are no rivals.
    """
    found = ((_map(t.get("metadata")), t) for t in tuners)
    claims = [
        (str(meta.get("creationTimestamp", "")), str(meta.get("uid", "")), str(meta.get("name", "")))
        for meta, tuner in found
        if _claims(tuner, deployment) or meta.get("uid") == own_uid
    ]
    return "" if not claims or min(claims)[1] == own_uid else min(claims)[2]


def least_num_seqs(scalers: Sequence[Autoscaler]) -> int | None:
    """The smallest max_num_seqs with which an autoscaler on running requests can still add pods; None: no such one.

    max_num_seqs caps the gauge: at or below target x (1 + tolerance) it never scales up.
    """
    targets = [s.running for s in scalers if s.running is not None and s.scales]
    return int(max(targets) + 1e-9) + 1 if targets else None


def selects(selector: object, labels: Json) -> bool:
    """A LabelSelector over labels. An empty selector takes all, an absent one none (policy/v1)."""
    if not isinstance(selector, Mapping):
        return False
    if any(labels.get(k) != v for k, v in _map(selector.get("matchLabels")).items()):
        return False
    return all(_matches(_map(e), labels) for e in _items(selector.get("matchExpressions")))


def quantity(value: object) -> float | None:
    """A Kubernetes quantity as a number; None where it is none."""
    found = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    return float(found[1]) * _UNITS[found[2]] if found else None


def _matches(expression: Json, labels: Json) -> bool:
    key, values = expression.get("key"), _items(expression.get("values"))
    have = labels.get(key) if isinstance(key, str) else None
    table = {
        "In": have in values,
        "NotIn": have not in values,
        "Exists": have is not None,
        "DoesNotExist": have is None,
    }
    return table.get(str(expression.get("operator")), False)


def _autoscaler(item: Json) -> Autoscaler:
    spec = _map(item.get("spec"))
    own = _map(_map(spec.get("behavior")).get("scaleUp")).get("tolerance")
    tolerance = quantity(own)
    margin = 1 + (HPA_TOLERANCE if tolerance is None else tolerance)
    running, hidden = [], False
    for name, value in _metrics(spec):
        if _RUNNING in name and value is not None:
            running.append(value * margin)
        hidden = hidden or re.fullmatch(r"s\d+-\S*prometheus\S*", name) is not None
    return Autoscaler(
        _name(item), _count(spec.get("minReplicas"), 1), _count(spec.get("maxReplicas"), 1),
        min(running) if running else None, hidden,
    )  # fmt: skip


def _metrics(spec: Json) -> Iterator[tuple[str, float | None]]:
    """(name, target per pod) of each metric that is no resource."""
    for metric in _items(spec.get("metrics")):
        for kind in ("pods", "external", "object"):
            part = _map(_map(metric).get(kind))
            if part:
                name = str(_map(part.get("metric")).get("name", ""))
                yield name, quantity(_map(part.get("target")).get("averageValue"))


def _targets(item: Json, field: str, deployment: str) -> bool:
    reference = _map(_map(item.get("spec")).get(field))
    return reference.get("kind") == "Deployment" and reference.get("name") == deployment


def _claims(tuner: Json, deployment: str) -> bool:
    spec = _map(tuner.get("spec"))
    writes = spec.get("mode", "Recommend") != "Recommend" and not spec.get("suspend")
    return writes and _map(spec.get("targetRef")).get("name") == deployment


def _name(item: Json) -> str:
    return str(_map(item.get("metadata")).get("name", ""))


def _map(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _count(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default
