"""When the middleware is installed, what the condition says, and that a failed install is not repeated."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from builders import record, spec

from trimtab.engine.install import InstallNames, installed
from trimtab.engine.rewrite import rewrite
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.middleware import Installation, decide, question
from trimtab.plan.preconditions import FleetView, Ground, first_block
from trimtab.plan.record import Phase, TrialKind
from trimtab.plan.spec import TunerSpec

ABSENT = Installation(present=False, current=False, version="0.1.0 (abc)")
OLD = Installation(present=True, current=False, version="0.1.0 (abc)")
THERE = Installation(present=True, current=True, version="0.1.0 (abc)")


def wanting(**more: Any) -> TunerSpec:
    return spec(tokenPolicy={"middleware": "Install"}, **more)


def ended(reason: str, phase: Phase = Phase.ROLLED_BACK) -> Any:
    verdict = Verdict(Kind.ERROR, reason, "no module named prometheus_client")
    return record(phase, kind=TrialKind.INSTALL, verdict=verdict)


@pytest.mark.parametrize(
    ("tuner", "found", "said"),
    [
        (spec(), ABSENT, (False, "False", "")),
        (spec(), THERE, (False, "True", "Installed")),
        (wanting(), ABSENT, (True, "False", "NotInstalled")),
        (wanting(mode="Approve"), ABSENT, (True, "False", "NotInstalled")),
        (wanting(mode="Recommend"), ABSENT, (False, "False", "NotInstalled")),
        (wanting(suspend=True), ABSENT, (False, "False", "NotInstalled")),
        (wanting(), THERE, (False, "True", "Installed")),
        (wanting(), OLD, (True, "True", "Installed")),
    ],
)
def test_it_is_due_only_where_it_is_asked_for_and_not_there(
    tuner: TunerSpec, found: Installation, said: tuple[bool, str, str]
) -> None:
    verdict = decide(tuner, found)
    assert (verdict.due, verdict.status, verdict.reason) == said


def test_an_image_that_forbids_it_is_unsupported_with_the_way_out() -> None:
    found = Installation(False, False, "v", refusal="PYTHONPATH is out of sight. Write it into env.")
    verdict = decide(wanting(), found)
    assert (verdict.due, verdict.reason) == (False, "Unsupported") and "Write it into env" in verdict.message


def test_a_failed_install_is_told_in_the_engines_words_and_not_repeated() -> None:
    verdict = decide(wanting(), Installation(False, False, "v", attempts=[ended("CrashedAtStart")]))
    assert (verdict.due, verdict.status, verdict.reason) == (False, "False", "InstallFailed")
    assert "prometheus_client" in verdict.message and "delete that TuningTrial" in verdict.message


@pytest.mark.parametrize("reason", ["Stopped", "ReplicasChanged", "ExternalChange", "ControlLost", "MetricsLost"])
def test_an_install_that_was_stopped_from_outside_is_tried_again(reason: str) -> None:
    assert decide(wanting(), Installation(False, False, "v", attempts=[ended(reason)])).due


def test_a_rejected_install_is_left_alone() -> None:
    assert not decide(wanting(), Installation(False, False, "v", attempts=[ended("Rejected", Phase.CANCELLED)])).due


def test_a_failed_upgrade_leaves_the_old_one_installed() -> None:
    verdict = decide(wanting(), Installation(True, False, "v", attempts=[ended("CrashedAtStart")]))
    assert (verdict.due, verdict.status, verdict.reason) == (False, "True", "Installed")


# --- the question -----------------------------------------------------------------------------------------------------
def template(**container: Any) -> dict[str, Any]:
    body = {"name": "engine", "image": "vllm/vllm-openai:v0.9.1", "args": ["--model=m"], **container}
    return {"spec": {"containers": [body]}}


def test_other_flags_are_the_same_question_another_image_or_version_is_not() -> None:
    plain = template()
    asked = question(plain, None, "v1")
    tuned = rewrite(plain, {"max_num_seqs": 9})
    both = installed(tuned, None, InstallNames("c", "p", "t"))
    assert question(tuned, None, "v1") == question(both, None, "v1") == asked
    assert question(template(image="vllm/vllm-openai:v0.10.0"), None, "v1") != asked != question(plain, None, "v2")
    assert plain == template()


# --- preconditions by kind --------------------------------------------------------------------------------------------
def ground(kind: TrialKind, replicas: int = 2, **rollout: Any) -> Ground:
    from builders import NOW, observation

    fleet = FleetView(
        exists=True, replicas=replicas, settled=True, stable_seconds=1e4, observation=observation(), engine_problem=""
    )
    return Ground(wanting(rollout=rollout), fleet, [], [], NOW, kind=kind)


def test_a_policy_needs_no_restart_budget_but_two_pods() -> None:
    none_left = {"maxRestartsPerDay": 2}
    tune, policy = (first_block(ground(k, **none_left)) for k in (TrialKind.TUNE, TrialKind.POLICY))
    assert tune is not None and tune.reason == "RestartBudgetTooSmall" and policy is None
    surge = {"maxSurge": 1}
    assert first_block(ground(TrialKind.INSTALL, 1, **surge)) is None
    blocked = first_block(ground(TrialKind.POLICY, 1, **surge))
    assert blocked is not None and blocked.reason == "TooFewReplicas"


def test_deciding_changes_nothing_that_was_given() -> None:
    kept = copy.deepcopy(ABSENT)
    decide(wanting(), ABSENT)
    assert kept == ABSENT
