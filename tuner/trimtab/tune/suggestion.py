"""What a person could apply by hand before any trial: the diagnosis' best guess as a patch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.engine.patch import patch_command, snippet
from trimtab.engine.settings import Configuration
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.search.priors import candidates
from trimtab.tune.writing import rewritten, space_of


@dataclass(frozen=True)
class Suggestion:
    """What a person could apply by hand. Unmeasured: a guess from the diagnosis, and it says so."""

    configuration: Configuration
    message: str
    patch: str
    snippet: str
    #: the whole pod template with it
    template: Mapping[str, Any]


def suggest(
    spec: TunerSpec,
    template: Mapping[str, Any],
    fleet: FleetView,
    trials: Sequence[TrialRecord],
    name: str,
    namespace: str,
) -> Suggestion | None:
    """The diagnosis' best guess that no trial has refuted, as a patch for the Deployment `name`."""
    current = fleet.configuration
    if current is None or fleet.observation is None:
        return None
    tried = {t.configuration.key() for t in trials if t.ended and t.phase is not Phase.CANCELLED}
    for guess in candidates(current, fleet.observation, fleet.findings, space_of(spec)):
        written = rewritten(spec, template, fleet, guess.configuration)
        if written is None or guess.configuration.key() in tried:
            continue
        trial = "; mode Auto or Approve would try it on one pod first"
        if fleet.owner:
            trial = f", and not tried by Trimtab, as {fleet.owner} writes the Deployment"
        text = f"Set {_changes(current, guess.configuration)}: {guess.origin}. Not measured yet{trial}."
        patch = patch_command(template, written, name, namespace)
        return Suggestion(guess.configuration, text, patch, snippet(template, written), written)
    return None


def _changes(before: Configuration, after: Configuration) -> str:
    return ", ".join(f"{n}={v}" for n, v in before.changes_to(after).items())
