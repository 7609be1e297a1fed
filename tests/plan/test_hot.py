"""A policy tried on one pod: what the file says by phase, what is seen, and the whole way through the state machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import CRASHED, HEALTHY, NOW, evidence, record, spec

from trimtab.middleware import policy_file
from trimtab.observe.observation import Histogram
from trimtab.plan.hot import (
    HotPod,
    cap_of,
    desired_body,
    experiment,
    hot_view,
    policy_in_force,
    propose_cap,
    since,
    with_cap,
)
from trimtab.plan.record import Evidence, Phase, PodView, PolicyChange, Template, TrialKind, TrialRecord, Wish
from trimtab.plan.token_policy import policy_text
from trimtab.plan.trial import advance

OLD = {
    "tokens": {"default_max_tokens": 900},
    "rules": [{"match": {"route": "chat"}, "tokens": {"cap_max_tokens": 700}}],
}
NEW = with_cap(OLD, 500)
CHANGE = PolicyChange("p-1", OLD, NEW)
TRIAL = record(kind=TrialKind.POLICY, policy=CHANGE, name="llm-4")
EXPERIMENT = experiment(CHANGE, "llm-4")


def pods(taken: bool | dict[str, bool], health: Any = HEALTHY) -> list[HotPod]:
    names = ("p-0", "p-1", "p-2")
    of = taken if isinstance(taken, dict) else dict.fromkeys(names, taken)
    return [HotPod(PodView(n, "10.0.0.1", health), of.get(n, False)) for n in names]


def seen(rec: TrialRecord, body: Any, taken: Any = True, **more: Any) -> Any:
    given: dict[str, Any] = {"exists": True, "replicas": 3, "settled": True, **more}
    return hot_view(rec, body, pods(taken), **given)


def test_the_experiment_is_a_file_that_the_middleware_takes() -> None:
    policy = policy_file.parse(policy_text(EXPERIMENT, 3).encode())
    assert policy.experiment is not None
    control, trial = policy.experiment.arms
    assert (control.pods, trial.pods, trial.tokens.cap_max_tokens) == ((), ("p-1",), 500)
    assert trial.rules == policy.rules and policy.tokens.default_max_tokens == 900


@pytest.mark.parametrize(
    ("phase", "body"),
    [
        (Phase.AWAITING_APPROVAL, OLD), (Phase.STARTING, EXPERIMENT), (Phase.WARMING_UP, EXPERIMENT),
        (Phase.MEASURING, EXPERIMENT), (Phase.CONFIRMING, EXPERIMENT), (Phase.PROMOTING, NEW), (Phase.VERIFYING, NEW),
        (Phase.ROLLING_BACK, OLD), (Phase.PROMOTED, NEW), (Phase.ROLLED_BACK, OLD), (Phase.CANCELLED, OLD),
    ],
)  # fmt: skip
def test_what_the_file_says_follows_from_the_phase(phase: Phase, body: Any) -> None:
    assert desired_body(replace(TRIAL, phase=phase)) == body


def drive(rec: TrialRecord, now: float, body: Any, taken: Any, ev: Evidence, wish: Wish) -> tuple[TrialRecord, Any]:
    """One tick of the shell: look, advance, write."""
    after = advance(spec(), rec, seen(rec, body, taken), ev, wish, now)
    if after.phase is Phase.STARTING:
        after = replace(after, applied=True)
    return after, desired_body(after)


def way(gain: float, until: tuple[Phase, ...], wish_at: float | None = None) -> list[tuple[Phase, Any]]:
    """Ticks of 5 s, each change of the file is in the pods one tick later."""
    rec, body, delivered, phases = TRIAL, OLD, OLD, []
    for tick in range(80):
        now = NOW + 5.0 * tick
        start = rec.measure_from or NOW
        count = int((now - start) // 6)
        ev = evidence(gain, start=start, windows=count) if rec.measure_from and count else evidence()
        wish = Wish(stop="asked") if wish_at is not None and now >= NOW + wish_at else Wish()
        after, wanted = drive(rec, now, body, body == delivered, ev, wish)
        delivered, body = body, wanted
        if after.phase is not rec.phase:
            phases.append((after.phase, wanted))
        rec = after
        if rec.phase in until:
            break
    assert rec.restarts == 0
    return phases


def test_a_better_policy_goes_to_all_pods_without_a_restart() -> None:
    assert way(0.2, (Phase.PROMOTED, Phase.ROLLED_BACK)) == [
        (Phase.WARMING_UP, EXPERIMENT), (Phase.MEASURING, EXPERIMENT), (Phase.CONFIRMING, EXPERIMENT),
        (Phase.PROMOTING, NEW), (Phase.VERIFYING, NEW), (Phase.PROMOTED, NEW),
    ]  # fmt: skip


def test_a_worse_policy_and_a_stop_put_the_old_one_back() -> None:
    assert way(-0.3, (Phase.PROMOTED, Phase.ROLLED_BACK))[-2:] == [(Phase.ROLLING_BACK, OLD), (Phase.ROLLED_BACK, OLD)]
    stopped = way(0.2, (Phase.PROMOTED, Phase.ROLLED_BACK), wish_at=30)
    assert stopped[-1] == (Phase.ROLLED_BACK, OLD)


def test_it_is_not_over_before_every_pod_has_the_old_policy_again() -> None:
    back = replace(TRIAL, phase=Phase.ROLLING_BACK, applied=True, message="x")
    late = seen(back, OLD, {"p-0": True, "p-2": True})
    assert advance(spec(), back, late, Evidence(), Wish(), NOW).phase is Phase.ROLLING_BACK
    assert advance(spec(), back, seen(back, OLD), Evidence(), Wish(), NOW).phase is Phase.ROLLED_BACK


def test_a_killed_operator_goes_on_from_what_the_file_says() -> None:
    """Killed after the write and before the status: the next one sees the experiment and takes it for applied."""
    after = advance(spec(), TRIAL, seen(TRIAL, EXPERIMENT), Evidence(), Wish(), NOW + 1)
    assert after.phase is Phase.WARMING_UP and after.applied and after.held


def test_a_file_that_someone_else_wrote_is_written_again_and_nothing_is_measured_by_it() -> None:
    measuring = replace(TRIAL, phase=Phase.MEASURING, applied=True, held=True)
    view = seen(measuring, {"tokens": {"cap_max_tokens": 1}})
    assert view.template is Template.CANDIDATE and view.paused and view.canary == ()
    assert desired_body(measuring) == EXPERIMENT


def test_a_file_put_back_by_someone_ends_the_trial() -> None:
    measuring = replace(TRIAL, phase=Phase.MEASURING, applied=True, held=True)
    after = advance(spec(), measuring, seen(measuring, OLD), Evidence(), Wish(), NOW)
    assert after.phase is Phase.ROLLING_BACK and after.verdict is not None and after.verdict.reason == "Reverted"


def test_a_target_that_is_gone_ends_it() -> None:
    gone = seen(TRIAL, EXPERIMENT, exists=False)
    assert advance(spec(), TRIAL, gone, Evidence(), Wish(), NOW).phase is Phase.CANCELLED


def test_only_deaths_since_the_trial_began_count() -> None:
    old = PodView("p", None, CRASHED)
    assert since(old, None, NOW).health.restarts == since(old, NOW - 1, NOW).health.restarts == 0
    assert since(old, NOW + 1, NOW).health.restarts == 1


# --- the cap ----------------------------------------------------------------------------------------------------------
def test_a_cap_lowers_what_the_person_gave_and_never_raises_it() -> None:
    assert with_cap({}, 500)["tokens"] == {"cap_max_tokens": 500, "default_max_tokens": 500}
    own = {"tokens": {"cap_max_tokens": 300, "lower_client": True}, "rules": []}
    assert with_cap(own, 500)["tokens"] == {"cap_max_tokens": 300, "default_max_tokens": 500, "lower_client": True}
    assert own["tokens"] == {"cap_max_tokens": 300, "lower_client": True}


def percentile_spec(**more: Any) -> Any:
    return spec(
        tokenPolicy={
            "middleware": "Install", "method": "Percentile", "maxNewTokens": {"min": 64, "max": 2048}, **more,
        }
    )  # fmt: skip


def lengths(count: float = 1000.0) -> Histogram:
    """As vLLM's buckets: all outputs between 100 and 200 tokens but for a tail of 2% up to 500."""
    bounds = (50.0, 100.0, 200.0, 500.0, 1000.0, float("inf"))
    counts = tuple(count * share for share in (0.0, 0.05, 0.98, 1.0, 1.0, 1.0))
    return Histogram(bounds, counts, count * 150)


def test_a_cap_is_proposed_from_the_lengths_within_the_range() -> None:
    found = propose_cap(percentile_spec(), lengths(), {}, [], NOW)
    assert found is not None and 200 <= found.cap <= 500 and "Cuts" in found.origin
    narrow = percentile_spec(maxNewTokens={"min": 64, "max": 128})
    bounded = propose_cap(narrow, lengths(), {}, [], NOW)
    assert bounded is not None and bounded.cap == 128


def test_nothing_is_proposed_from_too_little_or_for_trifles() -> None:
    assert propose_cap(percentile_spec(), lengths(50), {}, [], NOW) is None
    assert propose_cap(percentile_spec(), None, {}, [], NOW) is None
    assert propose_cap(spec(), lengths(), {}, [], NOW) is None
    found = propose_cap(percentile_spec(), lengths(), {}, [], NOW)
    assert found is not None
    stricter = {"tokens": {"cap_max_tokens": 16, "default_max_tokens": 16}}
    assert propose_cap(percentile_spec(), lengths(), stricter, [], NOW) is None
    tried = replace(TRIAL, phase=Phase.ROLLED_BACK, policy=PolicyChange("p", {}, with_cap({}, found.cap)))
    assert propose_cap(percentile_spec(), lengths(), {}, [tried], NOW) is None


def test_the_policy_in_force_is_the_persons_with_the_last_cap_that_won() -> None:
    own = percentile_spec(policy={"tokens": {"defaultMaxTokens": 100}})
    won = replace(TRIAL, phase=Phase.PROMOTED, policy=PolicyChange("p", {}, with_cap({}, 400)))
    lost = replace(TRIAL, phase=Phase.ROLLED_BACK, policy=PolicyChange("p", {}, with_cap({}, 300)))
    assert cap_of(policy_in_force(own, [won, lost])) == 400
    assert policy_in_force(own, [lost]) == {"tokens": {"default_max_tokens": 100}}
    static = spec(tokenPolicy={"middleware": "Install", "policy": {"tokens": {"capMaxTokens": 9}}})
    assert policy_in_force(static, [won]) == {"tokens": {"cap_max_tokens": 9}}


def test_bodies_survive_the_way_through_the_trials_json() -> None:
    assert json.loads(json.dumps(NEW)) == NEW and experiment(CHANGE, "x" * 200)["experiment"]["name"] == "x" * 80
