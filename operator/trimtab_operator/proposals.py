"""The Kubernetes side of `trimtab.tune.proposals`: the template is the Deployment's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.tune import proposals
from trimtab.tune.proposals import Proposed, Suggestion, outcome_of, space_of
from trimtab_operator.target import Target

__all__ = ["Proposals", "Proposed", "Suggestion", "outcome_of", "space_of"]


class Proposals:
    """Keeps the Optuna studies in `data_dir`. They are memory: the trials' custom resources are the authority."""

    def __init__(self, data_dir: Path) -> None:
        self._inner = proposals.Proposals(data_dir)

    def next(
        self, key: str, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[TrialRecord]
    ) -> Proposed | None:
        """The next configuration worth a restart, None when there is none. `key` is namespace/name of the tuner."""
        return self._inner.next(key, spec, target.template, fleet, trials)

    def suggest(
        self, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[TrialRecord]
    ) -> Suggestion | None:
        """The diagnosis' best guess that no trial has refuted, as a paste-ready patch."""
        if target.deployment is None:
            return None
        meta = target.deployment["metadata"]
        return self._inner.suggest(spec, target.template, fleet, trials, meta["name"], meta["namespace"])
