"""Counts of trials hold under a load like today's only."""

from __future__ import annotations

from dataclasses import replace

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation
from trimtab.plan.load_drift import STILL_OPEN, Ended, of_this_load
from trimtab.plan.preconditions import FleetView, Ground, first_block
from trimtab.plan.record import Phase, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.search.context import workload_of

SPEC = TunerSpec.parse({
    "targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"direct": {}}, "search": {"patience": 2},
})  # fmt: skip


def seen(rate: float) -> Observation:
    return Observation(2, 1000.0, requests=2000.0 * rate)


def trial(number: int, rate: float) -> TrialRecord:
    at = Configuration.of(max_num_seqs=16 * number)
    return TrialRecord(
        f"t{number}", number, at, at, Phase.ROLLED_BACK, 1.0, 0.0, 2, workload=workload_of(seen(rate)), finished_at=1.0
    )


def test_trials_under_another_load_do_not_count_against_patience() -> None:
    old = [trial(1, 2.0), trial(2, 2.1)]
    fleet = FleetView(exists=True, replicas=2, settled=True, stable_seconds=1e4, observation=seen(2.0))
    ground = Ground(SPEC, fleet, of_this_load(SPEC, old, seen(2.0)), old, 1e6)
    block = first_block(ground)
    assert block is not None and block.reason == "Converged"
    drifted = of_this_load(SPEC, old, seen(5.0))
    assert drifted == []
    after = first_block(replace(ground, history=drifted, fleet=replace(fleet, observation=seen(5.0))))
    assert after is None or after.reason != "Converged"
    assert of_this_load(SPEC, old, seen(2.2)) == old, "and they count again when the load comes back"


def test_trials_of_before_the_load_was_written_down_count() -> None:
    old = [replace(trial(1, 2.0), workload={})]
    assert of_this_load(SPEC, old, seen(9.0)) == old
    assert of_this_load(SPEC, [trial(1, 2.0)], None) == [trial(1, 2.0)]


def test_what_a_promotion_changed_is_no_drift_of_the_load() -> None:
    """A full target whose throughput has doubled by the promotion: as many trials count as before it."""
    promoted = replace(trial(1, 2.0), configuration=Configuration.of(max_num_seqs=64), phase=Phase.PROMOTED)
    assert of_this_load(SPEC, [promoted], seen(5.0), promoted.configuration) == [promoted]
    assert of_this_load(SPEC, [promoted], seen(5.0), promoted.baseline) == []


def test_an_ended_search_holds_until_the_load_drifts_and_says_why_it_ended() -> None:
    ended = Ended.under(seen(2.0), "nothing to gain: a reason")
    assert ended.holds(SPEC, seen(2.4)) and ended.holds(SPEC, None)
    assert not ended.holds(SPEC, seen(4.0)) and not STILL_OPEN.holds(SPEC, seen(2.0))
    fleet = FleetView(exists=True, replicas=2, settled=True, stable_seconds=1e4, observation=seen(2.0))
    block = first_block(Ground(SPEC, fleet, [], [], 1e6, search_exhausted=True, search_ended=ended.why))
    assert block is not None and block.message == "nothing to gain: a reason"
