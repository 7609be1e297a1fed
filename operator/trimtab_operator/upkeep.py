"""What is ours on our own objects: finalizer and label while a trial is in flight, and which ended trials go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.plan.budgets import DAY_SECONDS
from trimtab.plan.record import ENDED
from trimtab.plan.spec import TunerSpec
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import ACTIVE_LABEL, record_of
from trimtab_operator.rollout import pointer
from trimtab_operator.wishes import holds_policy

Json = dict[str, Any]

#: on tuner and trial while a trial is in flight: deletion waits for the rollback
FINALIZER: Final = "trimtab.dev/rollback"


@dataclass(frozen=True)
class Upkeep:
    cluster: Cluster

    def hold(self, tuner: Json) -> None:
        """Before a trial: the tuner cannot go while it is in flight."""
        present = tuner["metadata"].get("finalizers") or []
        if FINALIZER not in present:
            operations = [{"op": "add", "path": "/metadata/finalizers", "value": [*present, FINALIZER]}]
            tuner["metadata"] = self.cluster.json_patch("VLLMTuner", tuner, operations)["metadata"]

    def release(self, tuner: Json, trial: Json | None) -> None:
        """Once nothing is in flight, deletion may go through."""
        for kind, seen in (("TuningTrial", trial), ("VLLMTuner", tuner)):
            present = (seen or {}).get("metadata", {}).get("finalizers") or []
            if seen is None or FINALIZER not in present:
                continue
            current = self.cluster.get(kind, seen["metadata"]["namespace"], seen["metadata"]["name"])
            if current is None or FINALIZER not in (current["metadata"].get("finalizers") or []):
                continue
            left = [f for f in current["metadata"]["finalizers"] if f != FINALIZER]
            operations: list[Json] = [{"op": "replace", "path": "/metadata/finalizers", "value": left}]
            if ACTIVE_LABEL in (current["metadata"].get("labels") or {}):
                operations.append({"op": "remove", "path": f"/metadata/labels/{pointer(ACTIVE_LABEL)}"})
            self.cluster.json_patch(kind, current, operations)
            seen["metadata"]["finalizers"] = left

    def prune(self, spec: TunerSpec, trials: Sequence[Json], now: float) -> None:
        """Finished trials beyond the limit go, oldest first; not those that today's restart budgets count."""
        ended = [t for t in trials if record_of(t).phase in ENDED and not holds_policy(t, spec, trials)]
        for old in ended[: max(0, len(ended) - spec.trial_history_limit)]:
            record = record_of(old)
            if record.restarts == 0 or now - record.started_at >= DAY_SECONDS:
                self.cluster.delete("TuningTrial", old["metadata"]["namespace"], old["metadata"]["name"])
