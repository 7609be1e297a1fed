"""Do the target's pods end without losing requests; if not: a block that says what to add, or a trial that adds it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import EngineError, InputError
from trimtab.plan.drain import added, command, problems
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import NOT_TRIED, Phase, TrialKind
from trimtab.plan.spec import TunerSpec
from trimtab_operator.care import labelled
from trimtab_operator.draft import Draft

Json = dict[str, Any]
#: a condition's message is cut there; a command that does not fit is left to `trimtab lint`
_LONGEST: Final = 1024
#: ends of an earlier attempt that say nothing about the settings
_OUTSIDE: Final = NOT_TRIED | {"ControlLost", "CanaryLost", "MetricsLost", "MetricsMissing"}


@dataclass(frozen=True)
class Drained:
    """problem: why nothing may be restarted, "" where it may. candidate: the template with what is missing, where a
    trial is due that adds it; label: the question of that trial."""

    problem: str = ""
    candidate: Json | None = None
    label: str = ""

    @property
    def due(self) -> bool:
        return self.candidate is not None

    def draft(self, fleet: FleetView) -> Draft:
        assert self.candidate is not None
        return Draft(self.candidate, fleet.configuration, "spec.rollout.drain: Add", self.label, TrialKind.DRAIN,
                     "drain settings")  # fmt: skip


def look(tuner: Json, spec: TunerSpec, template: Json, fleet: FleetView, trials: Sequence[Json]) -> Drained:
    """What `spec.rollout.drain` asks for, given the target's pod template. Nothing in mode Recommend: it restarts
    nothing."""
    if spec.rollout.drain == "Ignore" or spec.mode == "Recommend" or fleet.engine_problem:
        return Drained()
    container, version = spec.target_ref.container, fleet.engine_version
    found = problems(template, container, version)
    if not found:
        return Drained()
    lost = f"a pod that ends would lose requests: {'; '.join(f.partition(': ')[0] for f in found)}."
    try:
        mended = added(template, container, version)
    except (EngineError, InputError) as error:
        return Drained(f"{lost} Add by hand what is missing ({error.told}), or set spec.rollout.drain: Ignore.")
    left = problems(mended, container, version)
    if left:
        return Drained(f"{lost} Mend that in the manifest, or set spec.rollout.drain: Ignore.")
    label = "drain-" + hashlib.sha256(json.dumps(mended, sort_keys=True).encode()).hexdigest()[:12]
    if spec.rollout.drain == "Add":
        failed = next((t for t in labelled(trials, label) if t.ended and t.phase is not Phase.PROMOTED
                       and not (t.verdict is not None and t.verdict.reason in _OUTSIDE)), None)  # fmt: skip
        if failed is None:
            return Drained(candidate=mended, label=label)
        lost += f" Adding that was tried by trial {failed.name} and rolled back: {failed.message}"
    lost += " Set spec.rollout.drain: Add (Trimtab adds it) or Ignore, or add it (that one rollout still loses what is "
    lost += "in flight): "
    line = command(template, mended, container, spec.target_ref.name, tuner["metadata"]["namespace"])
    fits = line and len(lost) + len(line) <= _LONGEST
    return Drained(lost + (line if fits else "`trimtab lint` says what."))
