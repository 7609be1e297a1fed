"""One reconcile of one VLLMTuner: look, decide, act, write status once. Blocking; runs in a thread.

The order is the safety: a trial's next phase is written to its status *before* the target is touched for it, and what
is done to the
target follows from the phase alone. Whatever happened before this call, even a SIGKILL between two writes, the next
call goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trimtab.errors import SearchFailed, SpecError, TargetConflict, TargetNotFound, TrimtabError
from trimtab.judge.verdict import Kind
from trimtab.plan.around import Around, below, bounded
from trimtab.plan.block import Block
from trimtab.plan.hot import policy_in_force, with_cap
from trimtab.plan.load_drift import STILL_OPEN, Ended, of_this_load
from trimtab.plan.looks import earlier_starts, undisturbed_since
from trimtab.plan.preconditions import FleetView, Ground, first_block
from trimtab.plan.record import (
    SERVING,
    WATCHED,
    Desired,
    Evidence,
    Phase,
    PolicyChange,
    TargetView,
    Template,
    TrialKind,
    TrialRecord,
)
from trimtab.plan.spec import TunerSpec
from trimtab.plan.switchback import desired
from trimtab.plan.way import Way, way
from trimtab.search.context import workload_of
from trimtab.tune.suggestion import suggest
from trimtab.tune.writing import refused_candidates
from trimtab_operator import drain, rollout
from trimtab_operator.admission import Admission
from trimtab_operator.care import Care, Cared, labelled
from trimtab_operator.cluster import Cluster
from trimtab_operator.deciding import decide
from trimtab_operator.draft import Draft
from trimtab_operator.evidence import fleet_observation, look_at, refs, trial_evidence, with_findings
from trimtab_operator.fleet_metrics import FleetMetrics
from trimtab_operator.keeping import Keeping, write_status
from trimtab_operator.last_words import with_logs
from trimtab_operator.middleware import LATE_TICK, package
from trimtab_operator.neighbours import Neighbours
from trimtab_operator.output import Output, advice
from trimtab_operator.recorder import Recorder, announce_status
from trimtab_operator.records import TUNER_LABEL, Trial, new_trial, record_of
from trimtab_operator.searching import Searching
from trimtab_operator.sources import Sources
from trimtab_operator.target import Target, read_target
from trimtab_operator.tuner_status import Middleware, Situation, tuner_status
from trimtab_operator.upkeep import FINALIZER, Upkeep
from trimtab_operator.versions import Versions
from trimtab_operator.wishes import APPROVE_ANNOTATION, search_hash, wish

Json = dict[str, Any]

#: seconds between looks
TRIAL_TICK: Final = 1.5
IDLE_TICK: Final = 10.0
BLOCKED_TICK: Final = 20.0
#: while the search thinks
THINKING_TICK: Final = 3.0
#: window of the look between trials: the rules for a hang or a deadlock want a minute of samples
_LOOK_SECONDS: Final = 75.0
#: output lengths want hundreds of requests, and change slowly
_LENGTHS_SECONDS: Final = 3600.0
#: how long one call waits for the candidate's ReplicaSet, so that the pause lands before a second pod moves
_PAUSE_WAIT_SECONDS: Final = 10.0
_PAUSE_POLL_SECONDS: Final = 0.15

_log = logging.getLogger(__name__)


@dataclass
class Reconciler:
    """What a reconcile needs. `clock` and `sleep` are passed in for tests."""

    cluster: Cluster
    sources: Sources
    searching: Searching
    recorder: Recorder
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    care: Care
    neighbours: Neighbours
    admission: Admission
    versions: Versions = field(default_factory=Versions)
    #: what Prometheus hears of the tuners
    fleet: FleetMetrics = field(default_factory=FleetMetrics)
    #: (tuner's uid, search hash) whose space is used up; memory only, found out again after a restart
    exhausted: dict[tuple[str, str], Ended] = field(default_factory=dict)
    output: Output = field(init=False)
    keeping: Keeping = field(init=False)

    def __post_init__(self) -> None:
        self.keeping = Keeping(self.cluster, self.recorder)

        def told(tuner: Json, text: str) -> None:
            self.recorder.event(tuner, "OutputNotWritten", text, warning=True)

        self.output = Output(self.cluster, told)

    @property
    def upkeep(self) -> Upkeep:
        return Upkeep(self.cluster)

    def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; returns seconds until the next look, None when the tuner is gone."""
        tuner = self.cluster.get("VLLMTuner", namespace, name)
        if tuner is None:
            self.sources.forget((namespace, name))
            self.fleet.forget(namespace, name)
            self.searching.forget(namespace, name)
            return None
        trials = [Trial(t) for t in self.cluster.list("TuningTrial", namespace, {TUNER_LABEL: name})]
        trials.sort(key=lambda t: t["spec"]["number"])
        active = next((t for t in trials if not record_of(t).ended), None)
        try:
            spec = TunerSpec.parse(tuner["spec"])
        except SpecError as error:
            return self._bad_spec(tuner, trials, active, error)
        brakes, _ = self.neighbours.brakes.look(namespace)
        if brakes.pulled:  # for what is in flight and what is delivered it is as if the tuner were suspended
            spec = spec.model_copy(update={"suspend": True})
        if active is not None:
            return self._trial_tick(tuner, spec, trials, active, brakes.pulled)
        return self._idle_tick(tuner, spec, trials)

    # --- a trial is in flight -----------------------------------------------------------------------------------------
    def _trial_tick(self, tuner: Json, spec: TunerSpec, trials: Sequence[Json], trial: Json, brake: str = "") -> float:
        meta, stored, record = trial["metadata"], record_of(trial), self.keeping.record(trial)
        namespace, now = meta["namespace"], self.clock()
        baseline = rollout.Baseline.from_spec(trial["spec"]["baseline"])
        target = read_target(self.cluster, namespace, spec.target_ref.name)
        container, port = target.engine_of(baseline.template, spec.target_ref.container)
        hot = record.kind is TrialKind.POLICY
        view = (
            self.care.hot(tuner, target, record, container, port)
            if hot
            else target.view(baseline, container, record.excused)
        )
        view = with_logs(self.cluster, self.sleep, view, namespace, container)
        earlier = earlier_starts(record, [record_of(t) for t in trials])
        evidence = replace(self._evidence(tuner, spec, record, view, port, now), earlier=earlier)
        wanted = wish(tuner, trial, spec, brake)
        if record.phase is Phase.AWAITING_APPROVAL and wanted.approved and self.admission.full(tuner):
            wanted = replace(wanted, approved=False)  # it begins when a place is free
        after = decide(spec, record, view, evidence, wanted, now)
        others = [t for t in trials if t["metadata"]["name"] != meta["name"]]
        if after != stored or not trial.get("status"):
            try:
                trial = self.keeping.save(trial, after, view)
            except TrimtabError as error:
                if self.keeping.goes_back(tuner, trial, after, error):
                    if hot:
                        self.care.during(tuner, spec, target, [*others, trial], after)
                    else:
                        self._act(trial, after, target, baseline, spec, view)
                raise
            if after.phase is not stored.phase:
                self._announce(tuner, trial, after)
        if not hot:
            after = self._act(trial, after, target, baseline, spec, view)
        cared = self.care.during(tuner, spec, target, [*others, trial], after)
        if hot and after.phase is Phase.STARTING and not after.applied:
            after = replace(after, applied=True)
            trial = self.keeping.save(trial, after, view)
        if after.ended:
            self.upkeep.release(tuner, trial)
        middleware = Middleware(None, cared.status()) if cared is not None else None
        self._write_tuner(tuner, spec, [*others, trial], after, Situation(middleware=middleware))
        return 0.0 if after.phase is not record.phase else TRIAL_TICK

    def _evidence(
        self, tuner: Json, spec: TunerSpec, record: TrialRecord, view: TargetView, port: int, now: float
    ) -> Evidence:
        if record.phase not in WATCHED:
            return Evidence()
        try:
            source = self.sources.of(tuner, spec)
        except TrimtabError as error:
            return Evidence(problem=str(error))
        evidence = trial_evidence(source, spec, record, view, tuner["metadata"]["namespace"], port, now)
        if record.kind is not TrialKind.INSTALL or record.phase not in SERVING:
            return evidence
        return replace(evidence, middleware_seen=self.care.seen(view, port))

    def _act(
        self,
        trial: Json,
        record: TrialRecord,
        target: Target,
        baseline: rollout.Baseline,
        spec: TunerSpec,
        view: TargetView,
    ) -> TrialRecord:
        """One step of the target towards what the phase wants; after the candidate's template, wait to pause it."""
        wanted = desired(record, view.template)
        if wanted is Desired.KEEP or target.deployment is None:
            return record
        name = trial["metadata"]["name"]
        operations = rollout.next_patch(wanted, target.deployment, target.replica_sets, baseline, name)
        if not operations:
            return record
        self.cluster.json_patch("Deployment", target.deployment, operations)
        _log.info(
            "%s: %s: %s",
            trial["metadata"]["name"],
            wanted.value,
            ", ".join(f"{o['op']} {o['path']}" for o in operations),
        )
        if wanted not in (Desired.HOLD, Desired.SPREAD) or record.applied:
            return record
        applied = replace(record, applied=True)
        if wanted is Desired.HOLD:
            self._pause_first_pod(trial, spec, baseline)
        self.keeping.save(trial, applied, view)
        return applied

    def _pause_first_pod(self, trial: Json, spec: TunerSpec, baseline: rollout.Baseline) -> None:
        """Right after the template: wait for the candidate's first replica and pause. If this is missed, the next
        tick does it.
        """
        meta, waited = trial["metadata"], 0.0
        while waited < _PAUSE_WAIT_SECONDS:
            target = read_target(self.cluster, meta["namespace"], spec.target_ref.name, pods=False)
            if target.deployment is None or target.deployment["spec"].get("paused"):
                return
            operations = rollout.next_patch(
                Desired.HOLD, target.deployment, target.replica_sets, baseline, meta["name"]
            )
            if operations and rollout.whose(target.deployment, baseline) is Template.CANDIDATE:
                try:
                    self.cluster.json_patch("Deployment", target.deployment, operations)
                    return
                except TargetConflict:
                    _log.debug("%s: the Deployment changed under the pause; once more", meta["name"])
                    continue
            self.sleep(_PAUSE_POLL_SECONDS)
            waited += _PAUSE_POLL_SECONDS

    def _announce(self, tuner: Json, trial: Json, record: TrialRecord) -> None:
        if record.ended:
            self.fleet.ended(tuner["metadata"]["namespace"], tuner["metadata"]["name"], record)
        bad = record.verdict is not None and record.verdict.kind in (Kind.ERROR, Kind.WORSE)
        text = f"trial {record.name} {record.phase.value}: {record.message}"
        self.recorder.event(trial, f"Trial{record.phase.value}", record.message, warning=bad)
        self.recorder.event(tuner, f"Trial{record.phase.value}", text, warning=bad)

    # --- no trial in flight -------------------------------------------------------------------------------------------
    def _idle_tick(self, tuner: Json, spec: TunerSpec, trials: Sequence[Json]) -> float:
        now = self.clock()
        if tuner["metadata"].get("deletionTimestamp"):
            self.upkeep.release(tuner, None)
            return IDLE_TICK
        self.upkeep.release(tuner, trials[-1] if trials else None)
        target = read_target(self.cluster, tuner["metadata"]["namespace"], spec.target_ref.name)
        fleet, observation_problem = self._look(tuner, spec, target, now)
        drained = drain.Drained()
        if target.deployment is not None:
            drained = drain.look(tuner, spec, target.template, fleet, trials)
            fleet = replace(fleet, drain_problem=drained.problem)
        question = search_hash(spec)
        around = self._around(tuner, target, fleet)
        records = [record_of(t) for t in trials]
        ours = of_this_load(spec, labelled(trials, question), fleet.observation, fleet.configuration)
        ended = self.exhausted.get((tuner["metadata"]["uid"], question), STILL_OPEN)
        ground = Ground(
            spec, replace(fleet, metrics_problem=observation_problem), ours, records, now,
            ended.holds(spec, fleet.observation), ended.why, around=around,
        )  # fmt: skip
        cared = self.care.look(tuner, spec, target, trials, fleet)
        if drained.due:  # before any other restart
            mine = labelled(trials, drained.label)
            ground = replace(ground, history=mine, search_exhausted=False, kind=TrialKind.DRAIN)
        elif cared.decision.due:  # before any tuning: it makes half of that free of restarts
            mine = labelled(trials, cared.label)
            ground = replace(ground, history=mine, search_exhausted=False, kind=TrialKind.INSTALL)
        block = first_block(ground)
        suggestion = None
        # where trials can tell, a guess is not shown: it would only be noise beside them
        by_hand = spec.mode == "Recommend" or (block is not None and block.hard)
        if by_hand and fleet.configuration is not None:
            meta = tuner["metadata"]
            allowed = bounded(spec, around.least_num_seqs)
            args = (allowed, target.template, fleet, ours, spec.target_ref.name, meta["namespace"])
            suggestion = suggest(*args)
        advised = advice(target, fleet, trials, suggestion, self.cluster)
        situation = Situation(block, fleet, advised.suggestion, middleware=Middleware(cared.decision, cared.status()),
                              notes=around.notes, handover=advised.handover)  # fmt: skip
        thinking = False
        if not spec.suspend and spec.mode != "Recommend":
            try:
                created = self._begin(tuner, spec, target, fleet, trials, cared, drained, ground)
            finally:
                self.admission.done(tuner)
            if isinstance(created, Block):
                situation = replace(situation, block=created)
            elif isinstance(created, Ended):
                ground = replace(ground, search_exhausted=True, search_ended=created.why)
                situation = replace(situation, block=first_block(ground))
            elif created is not None:
                self._write_tuner(tuner, spec, [*trials, created], record_of(created), situation)
                return 0.0
            thinking = created is None and block is None
        self._write_tuner(tuner, spec, trials, None, situation)
        self.upkeep.prune(spec, trials, now)
        return LATE_TICK if cared.hurry else THINKING_TICK if thinking else self._pause(spec, block)

    @staticmethod
    def _pause(spec: TunerSpec, block: Block | None) -> float:
        if block is not None and block.hard:
            return BLOCKED_TICK
        if spec.mode == "Recommend" or spec.suspend:
            return IDLE_TICK
        return min(IDLE_TICK, max(TRIAL_TICK, spec.rollout.cooldown_seconds / 2))

    def _around(self, tuner: Json, target: Target, fleet: FleetView) -> Around:
        slots = fleet.configuration.get("max_num_seqs") if fleet.configuration is not None else None
        return self.neighbours.look(tuner, target.deployment, slots if isinstance(slots, int) else None)

    def _look(self, tuner: Json, spec: TunerSpec, target: Target, now: float) -> tuple[FleetView, str]:
        """The fleet between trials. Problems with engine or metrics become texts; they block, they do not raise."""
        deployment = target.deployment
        if deployment is None:
            return FleetView(exists=False), ""
        configuration, problem, port, stated = target.read_engine(spec.target_ref.container)
        fleet = FleetView(
            exists=True,
            replicas=deployment["spec"].get("replicas", 1),
            settled=rollout.settled(deployment),
            paused=bool(deployment["spec"].get("paused")),
            stable_seconds=rollout.stable_seconds(deployment, target.pods, now),
            engine_problem=problem,
            owner=rollout.owner(deployment),
            may_write=spec.mode == "Recommend" or self._may_write(tuner, spec),
            configuration=configuration,
        )
        ready = [(p.name, p.ip) for p in target.current_pods() if p.health.ready]
        if not ready:
            return fleet, ""
        try:
            source = self.sources.of(tuner, spec)
        except TrimtabError as error:
            return fleet, error.told
        if configuration is not None:
            fleet = replace(fleet, engine_version=stated or self.versions.of(deployment, ready[0], port, now))
        pods = refs(ready, tuner["metadata"]["namespace"], port)
        seconds = min(300.0, max(_LOOK_SECONDS, spec.rollout.measurement_seconds))
        look = look_at(source, pods, seconds, now)
        if look.observation is not None and spec.token_policy.method == "Percentile":
            hour, _ = fleet_observation(source, pods, _LENGTHS_SECONDS, now)
            fleet = replace(fleet, lengths=hour.output_length if hour is not None else None)
        return with_findings(replace(fleet, observation=look.observation), spec, look), look.trouble

    def _begin(
        self, tuner: Json, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[Json], cared: Cared,
        drained: drain.Drained, ground: Ground,
    ) -> Json | Block | Ended | None:  # fmt: skip
        """Create the next trial that may begin, what it tried in it; the target is not touched yet. None: none may
        begin, or the search still thinks. Ended: it found nothing more. A block: others go first."""
        if (drained.due or cared.decision.due) and first_block(ground) is not None:
            return None
        if drained.due or cared.decision.due:
            if full := self._place(tuner, target, trials, ground):
                return full
            if drained.due:
                return self._create(tuner, spec, target, fleet, trials, drained.draft(fleet))
            return self._begin_install(tuner, spec, target, fleet, trials, cared)
        proposed = self.care.propose(spec, cared, fleet, trials, ground.now)
        hot = replace(ground, history=labelled(trials, cared.policy_label), kind=TrialKind.POLICY)
        if proposed is not None and first_block(replace(hot, search_exhausted=False)) is None:
            if full := self._place(tuner, target, trials, hot):
                return full
            cap, pod = proposed
            change = PolicyChange(pod, cared.body, with_cap(cared.body, cap.cap))
            draft = Draft(target.template, fleet.configuration, cap.origin, cared.policy_label, TrialKind.POLICY,
                          f"policy cap_max_tokens={cap.cap}", change)  # fmt: skip
            return self._create(tuner, spec, target, fleet, trials, draft)
        if first_block(ground) is not None:
            return None
        if full := self._place(tuner, target, trials, ground):
            return full
        return self._begin_search(tuner, spec, target, trials, ground)

    def _begin_search(
        self, tuner: Json, spec: TunerSpec, target: Target, trials: Sequence[Json], ground: Ground
    ) -> Json | Block | Ended | None:
        """The trial of what the search proposes, None while it thinks."""
        fleet, question = ground.fleet, search_hash(spec)
        least = ground.around.least_num_seqs if ground.around is not None else None
        earlier = [r for r in labelled(trials, question) if r not in ground.history]  # under other loads
        try:
            answer = self.searching.next(tuner, bounded(spec, least), target, ground, earlier)
        except SearchFailed as error:
            return Block("SearchFailed", error.told, hard=True)
        if answer is None:
            return None
        for problem in (*below(spec, least), *refused_candidates(spec, target.template, fleet)):
            self.recorder.event(tuner, "CandidateRefused", problem, warning=True)
        if (proposal := answer.proposed) is None:
            ended = Ended.under(fleet.observation, answer.stopped)
            self.exhausted[tuner["metadata"]["uid"], question] = ended
            return ended
        draft = Draft(proposal.template, proposal.configuration, proposal.origin, question)
        return self._create(tuner, spec, target, fleet, trials, draft)

    def _place(self, tuner: Json, target: Target, trials: Sequence[Json], ground: Ground) -> Block | None:
        """A place among the trials of all tuners, until the trial exists; or why there is none."""
        assert target.deployment is not None
        chosen = way(ground.spec.rollout, ground.fleet.replicas, ground.kind, ground.recent, ground.now)
        need = chosen.restarts if isinstance(chosen, Way) else 0
        return self.admission.ask(tuner, target.deployment["metadata"]["uid"], need, trials)

    def _begin_install(
        self, tuner: Json, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[Json], cared: Cared
    ) -> Json:
        assert cared.candidate is not None  # due only where it can be put in
        self.care.prepare(tuner, target, cared, policy_in_force(spec, labelled(trials, cared.policy_label)))
        draft = Draft(cared.candidate, fleet.configuration, "spec.tokenPolicy.middleware: Install", cared.label,
                      TrialKind.INSTALL, f"middleware {package().version}")  # fmt: skip
        return self._create(tuner, spec, target, fleet, trials, draft)

    def _create(
        self, tuner: Json, spec: TunerSpec, target: Target, fleet: FleetView, trials: Sequence[Json], draft: Draft
    ) -> Json:
        assert target.deployment is not None and fleet.configuration is not None and draft.configuration is not None
        self.upkeep.hold(tuner)
        chosen = way(spec.rollout, fleet.replicas, draft.kind, [record_of(t) for t in trials], self.clock())
        assert isinstance(chosen, Way)  # a block was asked for before
        baseline = rollout.Baseline.of(target.deployment, draft.template, chosen.max_surge)
        number = max((t["spec"]["number"] for t in trials), default=0) + 1
        body = new_trial(
            tuner, number, baseline, fleet.replicas, fleet.configuration, draft.configuration, draft.origin,
            approval=spec.mode == "Approve", search=draft.label, kind=draft.kind, change=draft.change,
            policy=draft.policy, strategy=chosen.strategy, pods=target.current_pods(),
            undisturbed_since=undisturbed_since(spec, fleet.stable_seconds, self.clock()),
            workload=workload_of(fleet.observation),
        )  # fmt: skip
        body["metadata"]["finalizers"] = [FINALIZER]
        created = self.cluster.create("TuningTrial", tuner["metadata"]["namespace"], body)
        text = f"trial {created['metadata']['name']}: {draft.change or draft.configuration} ({draft.origin})"
        if spec.mode == "Approve":
            note = f"{APPROVE_ANNOTATION}={created['metadata']['name']}"
            text += f"; approve with: kubectl annotate vt {tuner['metadata']['name']} {note} --overwrite"
        self.recorder.event(tuner, "TrialProposed", text)
        return created

    def _may_write(self, tuner: Json, spec: TunerSpec) -> bool:
        """Whether the API server would let this operator patch the target."""
        return self.cluster.may("patch", "Deployment", tuner["metadata"]["namespace"], spec.target_ref.name)

    # --- writing what is ours -----------------------------------------------------------------------------------------
    def _write_tuner(
        self, tuner: Json, spec: TunerSpec, trials: Sequence[Json], active: TrialRecord | None, situation: Situation
    ) -> None:
        """The tuner's status, only if it says something new."""
        records = [record_of(t) for t in trials]
        shown = active if active is not None and not active.ended else None
        before = tuner.get("status") or {}
        status = tuner_status(tuner, spec, records, shown, situation, self.clock())
        self.fleet.note(tuner["metadata"]["namespace"], tuner["metadata"]["name"], spec, status)
        if not spec.suspend:
            self.output.write(tuner, spec, status)
        if status == before:
            return
        try:
            write_status(self.cluster, "VLLMTuner", tuner, status)
        except TargetNotFound:  # deleted meanwhile
            return
        announce_status(self.recorder, tuner, before, status)

    def _bad_spec(self, tuner: Json, trials: Sequence[Json], active: Json | None, error: SpecError) -> float:
        """A spec that cannot be read never strands a trial: roll back with the defaults, then say what is wrong."""
        if active is not None:
            meta = tuner["spec"]
            safe = TunerSpec.parse({"targetRef": meta["targetRef"], "metrics": {"direct": {}}, "suspend": True})
            return self._trial_tick(tuner, safe, trials, active)
        self._write_tuner(
            tuner,
            TunerSpec.parse({"targetRef": {"name": "unknown"}, "metrics": {"direct": {}}}),
            trials,
            None,
            Situation(spec_error=error),
        )
        return BLOCKED_TICK
