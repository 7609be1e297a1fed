"""The loop: look, decide, write down, act, until the search has converged. The decisions are plan's, as on Kubernetes.

The order is the safety: a trial's next phase is in the state file before a process is touched for it. After a kill all
processes are gone or ended, so the next run starts the baseline everywhere and the trial in flight is rolled back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from trimtab.diagnose.render import finding_json
from trimtab.engine.settings import Configuration
from trimtab.errors import TrimtabError
from trimtab.observe.observation import Observation
from trimtab.plan.block import Block
from trimtab.plan.looks import earlier_starts, undisturbed_since
from trimtab.plan.preconditions import FleetView, Ground, first_block
from trimtab.plan.record import SERVING, Evidence, Peer, Phase, Strategy, TargetView, TrialKind, TrialRecord, Wish
from trimtab.plan.spec import TunerSpec
from trimtab.plan.switchback import advance, desired
from trimtab.plan.trial import objective
from trimtab.plan.way import Way, way
from trimtab.search.context import workload_of
from trimtab.tune.calibrated import baseline_profile, fetched, waits
from trimtab.tune.evidence import look_at, with_findings
from trimtab.tune.periods import evidence_of
from trimtab.tune.proposals import Proposals, tried
from trimtab.tune.state import State, Store
from trimtab.tune.target import Target, WatchedSource

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile

Json = dict[str, Any]
TICK_SECONDS: Final = 0.5
STUDY: Final = "tune"
#: window of what is shown as "now"
_SHOWN_SECONDS: Final = 20.0
#: limits of the windows that give the figures before and after
_FIGURES_SECONDS: Final = (20.0, 120.0)
#: phases in which metrics are asked for; those of a switchback in which the baseline serves alone
_WATCHED: Final = SERVING | {Phase.VERIFYING}
_ALONE: Final = frozenset({Phase.MEASURING_BEFORE, Phase.MEASURING_AFTER})
_KILLED: Final = "stopped because the run before was ended in the middle of it"


class CannotTune(TrimtabError):
    """A precondition that only a person can mend."""

    hint = "Mend it and start again; finished trials are kept in the state file."
    retry_seconds = None


@dataclass
class Seen:
    """What the display shows of the latest tick."""

    view: TargetView | None = None
    fleet: FleetView | None = None
    block: Block | None = None
    canary: Observation | None = None
    control: Observation | None = None
    note: str = ""


@dataclass
class Loop:
    """One run. `on_tick` is called after every tick; `clock` gives unix seconds, `sleep` lets time pass.

    calibrate: from the baseline, before the first trial, where no profile is given; `on_profile` keeps what came of it.
    """

    spec: TunerSpec
    target: Target
    source: WatchedSource
    proposals: Proposals
    store: Store
    state: State
    on_tick: Callable[[Loop], None] = lambda loop: None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tick_seconds: float = TICK_SECONDS
    calibrate: bool = False
    on_profile: Callable[[Profile], None] = lambda profile: None
    seen: Seen = field(default_factory=Seen)
    #: the trial that the run before left in the middle: it has to go back
    inherited: str = ""
    _exhausted: bool = False

    async def run(self) -> None:
        """Until converged. CannotTune for what waiting will not mend. Cancel it to stop early."""
        active = self.state.active
        self.inherited = active.name if active is not None else ""
        while not self.state.done:
            now = self.clock()
            await self.target.look(now)
            record = self.state.active
            self.source.watch(self.target.ready_refs(), keep=_compared(record))
            if record is not None:
                await self._trial_tick(record, now)
            else:
                await self._idle_tick(now)
            self.on_tick(self)
            await self.sleep(self.tick_seconds)

    # --- a trial is in flight -----------------------------------------------------------------------------------------
    async def _trial_tick(self, record: TrialRecord, now: float) -> None:
        view = self.target.view()
        evidence = await self._evidence(record, view, now)
        wish = Wish(stop=_KILLED if record.name == self.inherited else "")
        after = advance(self.spec, record, view, evidence, wish, now)
        if after != record:
            self.state.put(after)
            if after.phase is Phase.PROMOTED:
                self.target.adopt()
                self.state.template = dict(self.target.template)
            self.store.save(self.state)
        self.seen = Seen(view=view, canary=evidence.recent_canary, control=evidence.recent_control)
        self.target.drive(desired(after, view.template))

    async def _evidence(self, record: TrialRecord, view: TargetView, now: float) -> Evidence:
        phases = _WATCHED if record.strategy is Strategy.CANARY else _WATCHED | _ALONE
        if record.phase not in phases or record.name == self.inherited:
            return Evidence()
        seen = await asyncio.to_thread(evidence_of, self.source, self.spec, record, view, self.target.ref, now)
        return replace(seen, earlier=earlier_starts(record, self.state.trials))

    # --- between trials -----------------------------------------------------------------------------------------------
    async def _idle_tick(self, now: float) -> None:
        fleet = await self._look(now, _SHOWN_SECONDS if self.state.trials else self._before_seconds(now))
        trials = self.state.trials
        history = [t for t in trials if tried(t)]  # one that a kill stopped is not counted against maxTrials
        block = first_block(Ground(self.spec, fleet, history, trials, now, self._exhausted))
        self.seen = Seen(view=self.target.view(), fleet=fleet, block=block)
        if block is None:
            await self._begin(fleet, now)
        elif block.reason == "Converged":
            await self._finish(fleet, now)
        elif block.hard and block.reason != "MetricsUnavailable":
            raise CannotTune(f"{block.reason}: {block.message}")

    async def _look(self, now: float, seconds: float) -> FleetView:
        fleet = self.target.fleet(now)
        refs = self.target.ready_refs()
        if not refs:
            return fleet
        look = await asyncio.to_thread(look_at, self.source, refs, seconds, now)
        seen = replace(fleet, observation=look.observation, metrics_problem=look.trouble)
        return with_findings(seen, self.spec, look)

    async def _begin(self, fleet: FleetView, now: float) -> None:
        """The next trial, in the state file before anything is touched."""
        template = self.target.template
        if self.calibrate and not self.state.screened and self.proposals.profile is None:
            warm = now - undisturbed_since(self.spec, fleet.stable_seconds, now)
            if not self.state.trials and waits(fleet.observation, warm):
                self.seen.note = "waiting for more finished requests, to calibrate the simulator by them"
                return
            await self._calibrate(fleet, now)
        proposed = await asyncio.to_thread(
            self.proposals.next, STUDY, self.spec, template, fleet, self.state.trials, earlier=self.state.earlier
        )
        if self.state.before is None:
            self.state.before = figures(self.spec, fleet.observation)
            self.state.findings = [finding_json(f) for f in fleet.findings]
        if proposed is None:
            self._exhausted, self.state.stopped = True, self.proposals.stopped
            return
        number = len(self.state.trials) + 1
        chosen = way(self.spec.rollout, fleet.replicas, TrialKind.TUNE, self.state.trials, now)
        assert fleet.configuration is not None and isinstance(chosen, Way)  # no block means that they are known
        record = TrialRecord(
            name=f"trial-{number}",
            number=number,
            configuration=proposed.configuration,
            baseline=fleet.configuration,
            phase=Phase.STARTING if chosen.strategy is Strategy.CANARY else Phase.MEASURING_BEFORE,
            phase_since=now,
            started_at=now,
            replicas=fleet.replicas,
            origin=proposed.origin,
            message=proposed.origin,
            strategy=chosen.strategy,
            max_surge=chosen.max_surge,
            peers=tuple(Peer(p.name, p.place) for p in self.target.view().control),
            undisturbed_since=undisturbed_since(self.spec, fleet.stable_seconds, now),
            workload=workload_of(fleet.observation),
        )
        self.state.put(record)
        self.store.save(self.state)
        self.target.begin(proposed.template)

    async def _calibrate(self, fleet: FleetView, now: float) -> None:
        if self.state.trials:
            return  # a run before this one did not
        known = fleet.configuration or Configuration.of()
        since = undisturbed_since(self.spec, fleet.stable_seconds, now)
        rest = await asyncio.to_thread(
            fetched, self.source, self.target.ready_refs(), known, fleet.observation, since, now
        )
        profile, self.state.screened = await asyncio.to_thread(baseline_profile, rest)
        self.seen.note = self.state.screened
        if profile is not None:
            self.proposals.profile = profile
            self.on_profile(profile)

    async def _finish(self, fleet: FleetView, now: float) -> None:
        """After a promotion the whole target is measured once more, so that before and after can be compared."""
        promoted = any(t.phase is Phase.PROMOTED for t in self.state.trials)
        window = self._figures_seconds()
        settle = min(self.spec.rollout.warmup_seconds, window)
        if promoted and fleet.stable_seconds < settle + window:
            self.seen.note = f"measuring the result: {settle + window - fleet.stable_seconds:.0f} s left"
            return
        if promoted:
            final = await self._look(now, window)
            self.state.after = figures(self.spec, final.observation)
        self.state.done = True
        self.store.save(self.state)

    def _before_seconds(self, now: float) -> float:
        """The first minutes, without those in which the engines filled up where there are enough."""
        warm = self.target.fleet(now).stable_seconds - self.spec.rollout.warmup_seconds
        return min(self._figures_seconds(), max(_FIGURES_SECONDS[0], warm))

    def _figures_seconds(self) -> float:
        low, high = _FIGURES_SECONDS
        return min(high, max(low, self.spec.rollout.measurement_seconds))


def _compared(record: TrialRecord | None) -> set[str]:
    """Pods that are gone but whose samples the trial still needs."""
    return set() if record is None else {p.name for p in record.peers} | {s.pod for s in record.spans}


def figures(spec: TunerSpec, observation: Observation | None) -> Json | None:
    """What a person compares: per replica where it is a rate, seconds where it is a time; None is unknown.

    shares: of both latencies, [[seconds, share of requests that took no longer], ...].
    """
    if observation is None:
        return None
    goal, o = objective(spec), observation
    pods = max(1, o.pods)

    def each(value: float | None) -> float | None:
        return None if value is None else value / pods

    def quantile(name: str, q: float) -> float | None:
        histogram = getattr(o, f"{name}_seconds")
        value: float | None = None if histogram is None else histogram.quantile(q)
        return value

    return {
        "window_seconds": o.window_seconds,
        "goodput_tokens_per_second": o.goodput(goal.ttft_seconds, goal.tpot_seconds),
        "useful_tokens_per_second": each(o.useful_tokens_per_second),
        "generated_tokens_per_second": each(o.generated_tokens_per_second),
        "slo_attainment": o.attainment(goal.ttft_seconds, goal.tpot_seconds),
        "ttft_p50_seconds": quantile("ttft", 0.5),
        "ttft_p99_seconds": quantile("ttft", 0.99),
        "tpot_p50_seconds": quantile("tpot", 0.5),
        "tpot_p99_seconds": quantile("tpot", 0.99),
        "preemptions_per_second": each(o.preemptions_per_second),
        "prefix_hit_ratio": o.prefix_hit_ratio,
        "useful_token_ratio": o.useful_token_ratio,
        "error_ratio": o.error_ratio,
        "running": o.running,
        "waiting": o.waiting,
        # lists, not tuples: a state that was saved and read is the same state
        "shares": {
            name: [[*pair] for pair in histogram.shares()]
            for name, histogram in (("ttft", o.ttft_seconds), ("tpot", o.tpot_seconds))
            if histogram is not None
        },
    }
