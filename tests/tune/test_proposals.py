"""How ended trials reach the search."""

from __future__ import annotations

import math
from dataclasses import replace

from simulated_worlds import profile
from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind, Verdict
from trimtab.observe.observation import Histogram, Observation
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase, TrialRecord
from trimtab.search.context import workload_of
from trimtab.tune.argv import configuration_of, template_of
from trimtab.tune.options import TuneOptions, build_spec
from trimtab.tune.proposals import Proposals, fingerprint, outcome_of, outcomes, stakes_of
from trimtab.tune.writing import refused_candidates

TEMPLATE = template_of(["vllm", "serve", "m", "--max-num-seqs", "128"])
BASE = configuration_of(TEMPLATE)


def ended(
    kind: Kind, reason: str, seqs: int = 8, *, score: float | None = None, infeasible: bool = False
) -> TrialRecord:
    verdict = Verdict(kind, reason, "", score=score)
    return TrialRecord(
        f"trial-{seqs}", seqs, Configuration.of(max_num_seqs=seqs), BASE, Phase.ROLLED_BACK, 1.0, 0.0, 2,
        verdict=verdict, infeasible=infeasible,
    )  # fmt: skip


def test_a_breached_guardrail_is_a_bad_measurement_and_no_crash() -> None:
    outcome = outcome_of(ended(Kind.WORSE, "LatencyTooHigh"))
    assert outcome.decided and not outcome.infeasible and (outcome.score or 0) < -0.5


def test_a_crash_condemns_and_a_stop_says_nothing() -> None:
    crash = ended(Kind.ERROR, "OutOfMemory", infeasible=True)
    assert outcome_of(crash).infeasible
    assert outcomes([crash, ended(Kind.INCONCLUSIVE, "Stopped")]) == [outcome_of(crash)]


def test_candidates_are_written_into_the_command_line() -> None:
    spec = build_spec(TuneOptions(candidates=["max_num_seqs=16"]))
    view = FleetView(exists=True, configuration=BASE)
    proposed = Proposals(None).next("k", spec, TEMPLATE, view, [])
    assert proposed is not None and configuration_of(proposed.template)["max_num_seqs"] == 16


def test_what_cannot_be_written_is_passed_over_without_condemning_more() -> None:
    """Below 128 batched tokens the baseline's 128 sequences would not start; the next candidate is taken."""
    spec = build_spec(TuneOptions(candidates=["max_num_batched_tokens=64", "max_num_seqs=192"]))
    view = FleetView(exists=True, configuration=BASE)
    proposed = Proposals(None).next("k", spec, TEMPLATE, view, [])
    assert proposed is not None and proposed.configuration["max_num_seqs"] == 192
    (problem,) = refused_candidates(spec, TEMPLATE, view)
    assert problem.startswith("spec.search.candidates[0] is not tried: ") and "max_num_batched_tokens" in problem


def test_the_same_configuration_is_not_tried_twice() -> None:
    spec = build_spec(TuneOptions(candidates=["max_num_seqs=16"], search=["max_num_seqs=16:16"], prefix_caching="keep"))
    view = FleetView(exists=True, configuration=BASE)
    tried = replace(ended(Kind.WORSE, "GoodputWorse", 16, score=-0.3))
    assert Proposals(None).next("k", spec, TEMPLATE, view, [tried]) is None


def test_what_a_person_rejected_is_not_proposed_again() -> None:
    spec = build_spec(TuneOptions(candidates=["max_num_seqs=16", "max_num_seqs=32"]))
    view = FleetView(exists=True, configuration=BASE)
    rejected = replace(ended(Kind.INCONCLUSIVE, "Rejected", seqs=16), phase=Phase.CANCELLED)
    proposed = Proposals(None).next("k", spec, TEMPLATE, view, [rejected])
    assert proposed is not None and proposed.configuration["max_num_seqs"] == 32


def test_with_a_profile_candidates_are_simulated_before_one_is_tried() -> None:
    """16 slots at a load that needs more: the first proposal is what the simulator found, and says so."""
    template = template_of(["vllm", "serve", "m", "--max-num-seqs", "16", "--enable-prefix-caching"])
    view = FleetView(exists=True, configuration=configuration_of(template))
    spec = build_spec(TuneOptions(search=["max_num_seqs=8:64"], prefix_caching="keep", slo_ttft=5.0))
    found = Proposals(None, profile("slots")).next("k", spec, template, view, [])
    assert found is not None and int(found.configuration["max_num_seqs"]) > 16
    assert found.origin.startswith("simulated ") and found.origin.endswith("after 0 trials")


def test_with_a_profile_the_search_is_over_where_no_setting_helps() -> None:
    template = template_of(["vllm", "serve", "m", "--max-num-seqs", "64", "--enable-prefix-caching"])
    ttft = Histogram((1.0, 5.0, math.inf), (90.0, 99.0, 100.0), 50.0)
    calm = Observation(1, 300.0, running=10.0, waiting=0.0, preemptions=0.0, requests=100.0, ttft_seconds=ttft)
    view = FleetView(exists=True, configuration=configuration_of(template), observation=calm)
    spec = build_spec(TuneOptions(search=["max_num_seqs=32:128"], prefix_caching="keep", slo_ttft=5.0))
    proposals = Proposals(None, profile("arrivals"))
    assert proposals.next("k", spec, template, view, []) is None
    assert "the best is simulated" in proposals.stopped


def test_a_verdicts_interval_reaches_the_search_as_its_deviation() -> None:
    told = ended(Kind.BETTER, "GoodputBetter", score=0.1)
    assert told.verdict is not None
    by_interval = replace(told, verdict=replace(told.verdict, gain_low=0.0, gain_high=0.2214))
    by_judge = replace(told, verdict=replace(told.verdict, numbers={"score_deviation": 0.02}))
    assert abs((outcome_of(by_interval).deviation or 0) - 0.051) < 0.001
    assert outcome_of(by_judge).deviation == 0.02
    assert outcome_of(told).deviation is None


def test_the_judges_wish_for_another_start_comes_first() -> None:
    spec = build_spec(TuneOptions(candidates=["max_num_seqs=16", "max_num_seqs=32"]))
    once = ended(Kind.INCONCLUSIVE, "AnotherStartNeeded", 24, score=0.05)
    proposed = Proposals(None).next("k", spec, TEMPLATE, FleetView(exists=True, configuration=BASE), [once])
    assert proposed is not None and proposed.configuration["max_num_seqs"] == 24


def test_earlier_trials_teach_and_only_their_crashes_forbid() -> None:
    spec = build_spec(TuneOptions(search=["max_num_seqs=16:24"], prefix_caching="keep"))
    view = FleetView(exists=True, configuration=BASE)
    was = ended(Kind.BETTER, "GoodputBetter", 16, score=0.3)
    again = Proposals(None).next("k", spec, TEMPLATE, view, [], earlier=[was])
    assert again is not None and again.configuration["max_num_seqs"] == 16 and "1 of other loads" in again.origin
    crashed = ended(Kind.ERROR, "OutOfMemory", 16, infeasible=True)
    proposals = Proposals(None)
    assert proposals.next("k", spec, TEMPLATE, view, [], earlier=[crashed]) is None
    assert proposals.stopped


def test_a_calm_target_within_its_slo_is_left_alone_and_told_why() -> None:
    calm = Observation(2, 300.0, requests=600.0, finished=600.0, running=3.0, waiting=0.0, preemptions=0.0)
    spec = build_spec(TuneOptions(search=["max_num_seqs=8:512"]))
    proposals = Proposals(None)
    view = FleetView(exists=True, configuration=BASE, observation=calm)
    assert proposals.next("k", spec, TEMPLATE, view, []) is None
    assert proposals.stopped.startswith("nothing to gain")


def test_how_long_a_start_takes_is_learned_from_the_trials() -> None:
    spec = build_spec(TuneOptions(warmup=30))
    view = FleetView(exists=True, replicas=3, configuration=BASE)
    slow = replace(ended(Kind.WORSE, "GoodputWorse", score=-0.1), measure_from=630.0)
    assert stakes_of(spec, view, [slow]).start_seconds == 600.0
    assert stakes_of(spec, view, []).start_seconds == 180.0 and stakes_of(spec, view, []).replicas == 3


def test_like_targets_have_one_fingerprint_whatever_is_searched() -> None:
    def of(*args: str, model: str = "m", slo: float | None = None) -> str:
        return fingerprint(template_of(["vllm", "serve", model, *args]), build_spec(TuneOptions(slo_ttft=slo)))

    assert of("--max-num-seqs", "128") == of("--max-num-seqs", "16") == of("--no-enable-prefix-caching")
    assert of("--max-model-len", "4096") != of("--max-model-len", "8192")
    assert of(model="other") != of() != of(slo=1.0), "a score says something else under another SLO"
    assert workload_of(None) == {}
