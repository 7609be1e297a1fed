"""The target as read from the API server in one go: Deployment, its ReplicaSets and pods, and the engine in its
template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trimtab.engine.command import EngineCommand, parse_template
from trimtab.engine.settings import Configuration
from trimtab.errors import EngineError, InputError
from trimtab.plan.record import PodView, TargetView
from trimtab_operator import rollout
from trimtab_operator.cluster import Cluster

Json = dict[str, Any]


#: characters of a pod template as JSON: a trial keeps it twice, and the API server takes 262,144 of each
MOST_TEMPLATE: Final = 240_000
_TOO_LARGE: Final = (
    "the pod template is {:,} characters long, too long for a trial to keep what it must restore: move scripts or "
    "files out of it into a ConfigMap"
)


class EngineState(NamedTuple):
    """problem: why it cannot be read or tuned, else "". version: as far as the pod template says it."""

    configuration: Configuration | None
    problem: str
    port: int
    version: str | None


@dataclass(frozen=True)
class Target:
    """What was read. `deployment` is None where it does not exist."""

    deployment: Json | None
    replica_sets: Sequence[Json] = field(default_factory=tuple)
    pods: Sequence[Json] = field(default_factory=tuple)

    @property
    def template(self) -> Json:
        assert self.deployment is not None
        template: Json = self.deployment["spec"]["template"]
        return template

    def view(self, baseline: rollout.Baseline, container: str, excused: int = 0) -> TargetView:
        return rollout.view(self.deployment, self.replica_sets, self.pods, baseline, container, excused)

    def engine(self, container: str | None) -> EngineCommand:
        return parse_template(self.template, container)

    @staticmethod
    def engine_of(template: Json, container: str | None) -> tuple[str, int]:
        """Container name and port of the engine in a template that was readable when the trial began."""
        command = parse_template(template, container)
        return command.container, command.port

    def read_engine(self, container: str | None) -> EngineState:
        """The settings on the command line, or why they cannot be read."""
        try:
            if (size := len(json.dumps(self.template))) > MOST_TEMPLATE:
                return EngineState(None, _TOO_LARGE.format(size), 8000, None)
            command = self.engine(container)
            return EngineState(command.configuration(), command.obstacle(), command.port, command.version)
        except (EngineError, InputError) as error:
            return EngineState(None, error.told, 8000, None)

    def current_pods(self) -> tuple[PodView, ...]:
        """Pods of all ReplicaSets of the Deployment."""
        return rollout.pod_views(self.pods, self.replica_sets, "")


def read_target(cluster: Cluster, namespace: str, name: str, *, pods: bool = True) -> Target:
    """Read the Deployment, then what it owns by the labels of its selector, kept only where the owner is really it."""
    deployment = cluster.get("Deployment", namespace, name)
    if deployment is None:
        return Target(None)
    selector = _selector(deployment["spec"]["selector"])
    sets = rollout.owned_by(cluster.list("ReplicaSet", namespace, selector), {deployment["metadata"]["uid"]})
    if not pods:
        return Target(deployment, sets)
    owned = rollout.owned_by(cluster.list("Pod", namespace, selector), {s["metadata"]["uid"] for s in sets})
    return Target(deployment, sets, owned)


def _selector(selector: Json) -> str:
    """A LabelSelector as the API's query text."""
    parts = [f"{k}={v}" for k, v in (selector.get("matchLabels") or {}).items()]
    for e in selector.get("matchExpressions") or ():
        operator, values = e["operator"], ",".join(e.get("values") or ())
        table = {
            "In": f"{e['key']} in ({values})",
            "NotIn": f"{e['key']} notin ({values})",
            "Exists": e["key"],
            "DoesNotExist": f"!{e['key']}",
        }
        parts.append(table[operator])
    return ",".join(parts)
