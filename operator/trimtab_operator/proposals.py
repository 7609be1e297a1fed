"""What to try next, and what to recommend: diagnosis and search behind one door, the result as a rewritten pod template."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.diagnose.finding import Finding
from trimtab.engine.command import parse_template
from trimtab.engine.constraints import check_configuration
from trimtab.engine.patch import paste_ready, snippet
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration
from trimtab.errors import EngineError, InputError
from trimtab.judge.verdict import Kind
from trimtab.observe.observation import Observation
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.search.candidate import Outcome, Proposal, explicit
from trimtab.search.priors import candidates
from trimtab.search.space import Space
from trimtab.search.study import Study

from trimtab_operator.target import Target

Json = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proposed:
    """A configuration to try and the pod template that has it."""

    configuration: Configuration
    template: Json
    origin: str


@dataclass(frozen=True)
class Suggestion:
    """What a person could apply by hand. Unmeasured: a guess from the diagnosis, and it says so."""

    configuration: Configuration
    message: str
    patch: str
    snippet: str


class Proposals:
    """Keeps the Optuna studies. They are memory: the trials' custom resources are the authority."""

    def __init__(self, data_dir: Path) -> None:
        self._data = data_dir

    def next(self, key: str, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[TrialRecord]) -> Proposed | None:
        """The next configuration worth a restart, None when there is none. `key` is namespace/name of the tuner."""
        current = fleet.configuration or Configuration.of()
        storage = spec.storage.url or str(self._data / f"{key.replace('/', '.')}.journal")
        study = Study(storage, key, space_of(spec), spec.search.seed)
        history = [outcome_of(t) for t in trials if t.ended and (t.verdict is None or t.verdict.reason not in _NOT_TRIED)]
        refused: list[Outcome] = []
        seeds = self._seeds(spec, current, fleet.observation, fleet.findings)
        for _ in range(20):  # each round either returns or rules one configuration out
            proposal = study.propose([*history, *refused], current, seeds)
            if proposal is None:
                return None
            template = self._template(spec, target, current, proposal.configuration)
            if template is not None:
                return Proposed(proposal.configuration, template, proposal.origin)
            refused.append(Outcome(f"refused-{len(refused)}", proposal.configuration, infeasible=True))
        return None

    def suggest(self, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[TrialRecord]) -> Suggestion | None:
        """The diagnosis' best guess that no trial has refuted, as a paste-ready patch."""
        current = fleet.configuration
        if current is None or fleet.observation is None or target.deployment is None:
            return None
        tried = {t.configuration.key() for t in trials if t.ended and t.phase is not Phase.CANCELLED}
        for guess in candidates(current, fleet.observation, fleet.findings, space_of(spec)):
            if guess.configuration.key() in tried:
                continue
            template = self._template(spec, target, current, guess.configuration)
            if template is None:
                continue
            meta = target.deployment["metadata"]
            before = target.template
            return Suggestion(
                guess.configuration,
                f"Set {_changes(current, guess.configuration)}: {guess.origin}. Not measured yet; mode Auto or Approve would try it on one pod first.",
                paste_ready(before, template, meta["name"], meta["namespace"]),
                snippet(before, template),
            )
        return None

    @staticmethod
    def _seeds(
        spec: TunerSpec, current: Configuration, observation: Observation | None, findings: Sequence[Finding]
    ) -> list[Proposal]:
        """The person's own candidates first, then the diagnosis' guesses."""
        asked = explicit([Configuration.from_camel(c) for c in spec.search.candidates], current)
        return asked if observation is None else [*asked, *candidates(current, observation, findings, space_of(spec))]

    @staticmethod
    def _template(spec: TunerSpec, target: Target, current: Configuration, wanted: Configuration) -> Json | None:
        """The target's template with `wanted`, or None where it cannot be written or vLLM would refuse it."""
        try:
            check_configuration(wanted)
            template = rewrite(target.template, current.changes_to(wanted), spec.target_ref.container)
            parse_template(template, spec.target_ref.container)
        except (EngineError, InputError) as error:
            _log.info("not proposed: %s: %s", wanted, error)
            return None
        return template if template != target.template else None


#: verdict reasons of trials that ended before the configuration was tried
_NOT_TRIED = frozenset({"Rejected", "Stopped", "ExternalChange", "TargetGone", "ReplicasChanged", "Reverted"})
def outcome_of(trial: TrialRecord) -> Outcome:
    """A finished trial as the search sees it. A breached guardrail is a violated constraint, not a number."""
    verdict = trial.verdict
    breached = verdict is not None and verdict.kind is Kind.WORSE and verdict.score is None
    return Outcome(
        name=trial.name,
        configuration=trial.configuration,
        score=verdict.score if verdict else None,
        infeasible=trial.infeasible or breached,
        inconclusive=verdict is not None and verdict.kind is Kind.INCONCLUSIVE,
        control=trial.baseline,
    )


def space_of(spec: TunerSpec) -> Space:
    ranges: dict[str, tuple[int, int]] = {}
    for name, found in (
        ("max_num_seqs", spec.search.max_num_seqs),
        ("max_num_batched_tokens", spec.search.max_num_batched_tokens),
        ("max_new_tokens", spec.token_policy.max_new_tokens),
    ):
        if found is not None:
            ranges[name] = (found.min, found.max)
    return Space(ranges, tune_prefix_caching=spec.search.prefix_caching == "Tune")


def _changes(before: Configuration, after: Configuration) -> str:
    return ", ".join(f"{n}={v}" for n, v in before.changes_to(after).items())
