"""What else acts on a target, read from the API server: disruption budgets, autoscalers, other tuners. Answers are kept
for some seconds per namespace, so that many tuners cost no more calls than one.

Each kind needs a right of its own. Without it, or where the kind does not exist, the rule is off and a note says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.errors import TargetNotFound, TargetRefused
from trimtab.plan.around import Around, notes_of
from trimtab.plan.block import Note
from trimtab.plan.neighbours import autoscalers, disruption_budgets, resizers, rival
from trimtab_operator.brakes import BrakeReader
from trimtab_operator.cluster import Cluster

Json = dict[str, Any]
FRESH_SECONDS: Final = 10.0
#: a right that is missing, or a kind that does not exist, is asked for again after this
CLOSED_SECONDS: Final = 300.0
#: kind -> what is off without the right to list it
_RULES: Final = {
    "PodDisruptionBudget": "PodDisruptionBudgets are not heeded",
    "HorizontalPodAutoscaler": "autoscalers are not seen before they act",
    "VerticalPodAutoscaler": "VerticalPodAutoscalers are not seen before they act",
}


@dataclass(frozen=True)
class _Answer:
    at: float
    items: Sequence[Json] = ()
    closed: bool = False
    #: seconds for which it counts
    lasts: float = FRESH_SECONDS


@dataclass
class Neighbours:
    """Thread-safe."""

    cluster: Cluster
    brakes: BrakeReader
    clock: Callable[[], float]
    #: the tuners of a namespace, None where they have to be listed
    tuners: Callable[[str], Sequence[Json] | None] = lambda _namespace: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[tuple[str, str], _Answer] = field(default_factory=dict)

    def look(self, tuner: Json, deployment: Json | None, max_num_seqs: int | None) -> Around:
        """Of the tuner's target. A tuner that writes nothing is asked for nothing but its brakes."""
        meta, spec = tuner["metadata"], tuner["spec"]
        brakes, notes = self.brakes.look(meta["namespace"])
        if deployment is None or spec.get("mode", "Recommend") == "Recommend":
            return Around(brakes, notes=tuple(notes))
        name, namespace = deployment["metadata"]["name"], meta["namespace"]
        found: dict[str, Sequence[Json]] = {}
        for kind, off in _RULES.items():
            answer = self._list(kind, namespace)
            found[kind] = answer.items
            if answer.closed:
                notes.append(Note("NoRight", f"{off}: the operator may not list {kind}s here"))
        scalers = autoscalers(found["HorizontalPodAutoscaler"], name)
        labels = (deployment["spec"]["template"].get("metadata") or {}).get("labels") or {}
        return Around(
            brakes=brakes,
            rival=rival(self._tuners(namespace), meta["uid"], name),
            budgets=disruption_budgets(found["PodDisruptionBudget"], labels),
            scalers=scalers,
            resizers=resizers(found["VerticalPodAutoscaler"], name),
            notes=(*notes_of(scalers, max_num_seqs), *notes),
        )

    def _tuners(self, namespace: str) -> Sequence[Json]:
        known = self.tuners(namespace)
        return self._list("VLLMTuner", namespace).items if known is None else known

    def _list(self, kind: str, namespace: str) -> _Answer:
        now, key = self.clock(), (kind, namespace)
        with self._lock:
            known = self._known.get(key)
        if known is not None and 0 <= now - known.at < known.lasts:
            return known
        try:
            answer = _Answer(now, self.cluster.list(kind, namespace))
        except TargetNotFound:  # the kind is not installed here
            answer = _Answer(now, lasts=CLOSED_SECONDS)
        except TargetRefused:
            answer = _Answer(now, closed=True, lasts=CLOSED_SECONDS)
        with self._lock:
            self._known[key] = answer
        return answer
