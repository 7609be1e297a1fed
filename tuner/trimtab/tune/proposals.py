"""What to try next: diagnosis, simulator and search behind one door, the result as a rewritten pod template. Blocking
(Optuna's storage, seconds of a core): call from a thread, or from a process of its own (`apart`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from trimtab.engine.command import parse_template
from trimtab.engine.settings import SEARCHED, Configuration
from trimtab.errors import EngineError, InputError
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import NOT_TRIED, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.search.candidate import Outcome, Proposal, explicit
from trimtab.search.context import place, workload_of
from trimtab.search.fits import Capacity, capacity
from trimtab.search.priors import candidates
from trimtab.search.refuse import MAX_UNCLEAR
from trimtab.search.stakes import Stakes, room_of
from trimtab.search.study import Study
from trimtab.tune.writing import Proposed, rewritten, space_of

if TYPE_CHECKING:
    from trimtab.search.foretell import Oracle
    from trimtab.search.predict import Predictions
    from trimtab.simulate.profile import Profile

Json = dict[str, Any]
_log = logging.getLogger(__name__)

#: proposals that cannot be written to the command line before the search is taken to be over
_MAX_REFUSED: Final = 20
#: score (log scale) of a canary that a guardrail ended: less than half the control's goodput
_BREACHED_SCORE: Final = -1.0
#: of that score: it may have got worse, or only just breached
_BREACHED_DEVIATION: Final = 0.3
#: half-width of a 95% interval in standard deviations; intervals that hold for many looks are wider, so this errs
#: towards believing a trial too little
_Z: Final = 1.96
#: until a restarted engine serves, before a trial has shown it: weights from a local disk and graphs to capture
START_SECONDS: Final = 180.0


#: by key of the study: what it was simulated for, and the predictions
Remembered = dict[str, "tuple[Any, Predictions]"]


class Proposals:
    """Keeps the Optuna studies. They are memory: the trials' records are the authority.

    data_dir: where studies without a storage URL are kept; None keeps nothing but what the records say.
    profile: of the target, calibrated; with it candidates are simulated before one is tried.
    """

    def __init__(
        self, data_dir: Path | None, profile: Profile | None = None, simulated: Remembered | None = None
    ) -> None:
        self._data, self.profile = data_dir, profile
        self._oracles: dict[str, Oracle] = {}
        #: by key: what was simulated, and for what; may be given to the next one
        self.simulated: Remembered = {} if simulated is None else simulated
        #: why the latest `next` gave None
        self.stopped = ""

    def next(
        self,
        key: str,
        spec: TunerSpec,
        template: Mapping[str, Any],
        fleet: FleetView,
        trials: Sequence[TrialRecord],
        profile: Profile | None = None,
        earlier: Sequence[TrialRecord] = (),
    ) -> Proposed | None:
        """The next configuration worth a restart, None when there is none (`stopped` says why). `key` names the study.

        profile: of this target; the one for all, given at the start, where it is None. earlier: ended trials of this
        target under other loads or in earlier runs: they teach by how alike the load was, and count for nothing else.
        """
        current, self.stopped = fleet.configuration or Configuration.of(), ""
        search, now = spec.search, workload_of(fleet.observation)
        target = fingerprint(template, spec)
        study = Study(self._storage(key, spec), key, space_of(spec), search.seed, search.sampler, target)
        history = outcomes(trials)
        taught = [*outcomes(earlier), *study.kin()]
        history += [o for o in taught if o.infeasible]  # what does not start does not start under any load
        refused: list[Outcome] = []
        oracle = self._oracle(key, spec, profile or self.profile)
        seeds = _seeds(spec, current, fleet, guess=oracle is None)
        stakes, room = stakes_of(spec, fleet, trials), _room(spec, fleet)
        fits = _capacity(template, spec.target_ref.container, fleet)
        for _ in range(_MAX_REFUSED):  # each round either returns or rules one configuration out
            proposal = study.propose(
                [*history, *refused], current, seeds, oracle, stakes=stakes, room=room, context=place(now), fits=fits,
                earlier=[o for o in taught if not o.infeasible],
            )  # fmt: skip
            if study.warning is not None:
                _log.warning("%s %s", study.warning, study.warning.hint)
            if proposal is None:
                self.stopped = study.stopped
                _log.info("%s: %s", key, study.stopped)
                return None
            written = rewritten(spec, template, fleet, proposal.configuration)
            if written is not None:
                return Proposed(proposal.configuration, written, proposal.origin)
            refused += _unclear(proposal.configuration, len(refused), "refused")
        return None

    def _oracle(self, key: str, spec: TunerSpec, profile: Profile | None) -> Oracle | None:
        """Kept from call to call: it remembers what it has simulated."""
        if profile is None:
            return None
        # the simulator and numba are loaded only where there is a profile
        from trimtab.search.foretell import oracle_of

        slo, most = spec.objective.slo, spec.guardrails.max_latency_ratio
        weights = spec.objective.weights.ttft, spec.objective.weights.tpot
        asked = (profile, slo, weights, most, space_of(spec))
        if key not in self.simulated or self.simulated[key][0] != asked:
            self.simulated[key] = (asked, {})
            self._oracles.pop(key, None)
        if key not in self._oracles:
            limits, known = (slo.ttft_seconds, slo.tpot_seconds), self.simulated[key][1]
            self._oracles[key] = oracle_of(profile, space_of(spec), limits, weights, (most, most), known)
        return self._oracles[key]

    def _storage(self, key: str, spec: TunerSpec) -> str | None:
        if spec.storage.url or self._data is None:
            return spec.storage.url
        return str(self._data / f"{key.replace('/', '.')}.journal")


def _seeds(spec: TunerSpec, current: Configuration, fleet: FleetView, *, guess: bool) -> list[Proposal]:
    """The person's own candidates first, then (with `guess`) the diagnosis' guesses: a simulation knows better."""
    asked = explicit([Configuration.from_camel(c) for c in spec.search.candidates], current)
    if fleet.observation is None or not guess:
        return asked
    return [*asked, *candidates(current, fleet.observation, fleet.findings, space_of(spec))]


def stakes_of(spec: TunerSpec, fleet: FleetView, trials: Sequence[TrialRecord]) -> Stakes:
    """What a trial costs here. How long a start takes is known from the trials so far."""
    rollout = spec.rollout
    starts = [
        t.measure_from - t.started_at - rollout.warmup_seconds for t in trials if t.measure_from is not None and t.ended
    ]
    return Stakes(
        horizon_hours=spec.search.horizon_hours,
        replicas=max(1, fleet.replicas),
        start_seconds=max(0.0, median(starts)) if starts else START_SECONDS,
        measure_seconds=rollout.warmup_seconds + rollout.measurement_seconds,
        least_gain=spec.objective.min_gain_percent / 100,
    )


def _room(spec: TunerSpec, fleet: FleetView) -> float | None:
    slo = spec.objective.slo
    if fleet.observation is None:
        return None
    return room_of(fleet.observation, slo.ttft_seconds, slo.tpot_seconds, spec.objective.weights.ttft)


def _capacity(template: Mapping[str, Any], container: str | None, fleet: FleetView) -> Capacity | None:
    try:
        known = parse_template(template, container).in_sight()
    except (EngineError, InputError):
        return None
    kv = fleet.observation.kv_capacity_tokens if fleet.observation is not None else None
    return capacity(kv, known.integer("max_model_len"), fleet.configuration or Configuration.of())


def fingerprint(template: Mapping[str, Any], spec: TunerSpec) -> str:
    """Equal for targets that serve the same model on the same hardware with the same arguments but for what is
    searched, and whose scores mean the same; "" where the command line cannot be read."""
    try:
        command = parse_template(template, spec.target_ref.container)
    except (EngineError, InputError):
        return ""
    pod = template.get("spec", template)
    kept = {n: v for n, v in command.in_sight().items() if n not in SEARCHED}
    alike = [
        command.model, kept, pod.get("nodeSelector"),
        [(c.get("image"), (c.get("resources") or {}).get("limits")) for c in pod.get("containers", ())],
        spec.objective.slo.model_dump(), spec.objective.weights.model_dump(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(alike, sort_keys=True, default=str).encode()).hexdigest()[:16]


def outcomes(trials: Sequence[TrialRecord]) -> list[Outcome]:
    """The ended trials in which the configuration was really tried, as the search sees them; and those a person
    rejected, which are left alone from then on."""
    out = [outcome_of(t) for t in trials if tried(t)]
    for trial in trials:
        if trial.ended and trial.verdict is not None and trial.verdict.reason == "Rejected":
            out += _unclear(trial.configuration, trial.number * MAX_UNCLEAR, "rejected")
    return out


def tried(trial: TrialRecord) -> bool:
    """Whether it ended by what the configuration did, and not by something from outside."""
    return trial.ended and (trial.verdict is None or trial.verdict.reason not in NOT_TRIED)


def _unclear(configuration: Configuration, count: int, why: str) -> list[Outcome]:
    """What makes the search leave a configuration alone. Not `infeasible`: that would condemn everything that takes
    more memory, too."""
    return [Outcome(f"{why}-{count + i}", configuration) for i in range(MAX_UNCLEAR)]


def outcome_of(trial: TrialRecord) -> Outcome:
    """A finished trial as the search sees it.

    A breached latency or error guardrail is no crash: the engine ran. It counts as measured, and as very bad.
    """
    verdict = trial.verdict
    breached = verdict is not None and verdict.kind is Kind.WORSE and verdict.score is None
    return Outcome(
        name=trial.name,
        configuration=trial.configuration,
        score=_BREACHED_SCORE if breached else verdict.score if verdict else None,
        infeasible=trial.infeasible,
        inconclusive=verdict is not None and verdict.kind is Kind.INCONCLUSIVE,
        control=trial.baseline,
        deviation=_BREACHED_DEVIATION if breached else _deviation(verdict),
        again=verdict is not None and verdict.reason == "AnotherStartNeeded",
        context=place(trial.workload) if trial.workload else (),
        breached=breached,
    )


def _deviation(verdict: Verdict | None) -> float | None:
    """Standard deviation of the score, as the judge tells it, else from the interval of the gain."""
    if verdict is None:
        return None
    told = verdict.numbers.get("score_deviation")
    if told is not None:
        return told
    low, high = verdict.gain_low, verdict.gain_high
    if low is None or high is None or low <= -1 or not math.isfinite(high):
        return None
    return (math.log1p(high) - math.log1p(low)) / (2 * _Z)
