"""The table, and one window of an operator's Observation through all rules."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from case_shapes import NO_LIMITS, SEQS, case, names, observed, queue

from trimtab.diagnose.case import FIELDS, evidence
from trimtab.diagnose.finding import DO_NOT_TUNE, Finding, Limits, Role, Severity, stops_tuning
from trimtab.diagnose.rank import FOLLOWS, PRECEDENCE, main_cause, ranked
from trimtab.diagnose.rules import RULES, diagnose, examine
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation

SOURCES = Path(__file__).resolve().parents[2] / "tuner/trimtab/diagnose"


def test_a_target_that_works_is_healthy() -> None:
    assert set(names(observed())) == {"Healthy", "ArrivalBound"}


def test_a_queue_beyond_the_limit_is_over_capacity() -> None:
    limited = Limits(ttft_seconds=2.0)
    assert "QueueOverCapacity" in names(observed(queue_seconds=queue(10.0)), limits=limited)
    assert "QueueOverCapacity" not in names(observed(queue_seconds=queue(90.0)), limits=limited)
    assert "QueueOverCapacity" not in names(observed(queue_seconds=queue(10.0)))


def test_cancellation_needs_enough_requests() -> None:
    assert "CancellationDominates" in names(observed(requests=1000.0, finished=850.0))
    assert "CancellationDominates" not in names(observed(requests=10.0, finished=5.0))


def test_nothing_known_is_no_health() -> None:
    assert names(Observation(pods=1, window_seconds=300.0)) == ["MetricsMissing"]


@pytest.mark.parametrize("missing", [f.name for f in fields(Observation) if f.name not in ("pods", "window_seconds")])
def test_no_rule_fails_on_a_missing_input(missing: str) -> None:
    everything = {"queue_seconds": queue(10.0), "waiting": 5.0, "kv_usage": 0.97, "preemptions": 500.0}
    names(observed(**{**everything, missing: None}), limits=Limits(1.0, 1.0))


def test_every_finding_has_its_name_evidence_and_advice() -> None:
    found = diagnose(
        observed(preemptions=2000.0, waiting=5.0, kv_usage=0.97, kv_usage_max=0.99, reserved_tokens=1e6),
        SEQS,
        NO_LIMITS,
    )
    assert {f.name for f in found} <= {*RULES, "Healthy"}
    assert all(0 < f.confidence <= 1 and f.advice and f.message and f.evidence for f in found)


def test_one_cause_leads_and_the_rest_follows_from_it_or_stands_beside() -> None:
    found = diagnose(
        observed(preemptions=2000.0, waiting=5.0, kv_usage=0.97, kv_usage_max=0.99, reserved_tokens=1e6),
        SEQS,
        NO_LIMITS,
    )
    assert [(f.name, f.role) for f in found][:2] == [("DeathSpiral", Role.MAIN), ("KvBound", Role.CONSEQUENCE)]
    roles = [f.role for f in found]
    assert roles == sorted(roles, key=[Role.MAIN, Role.CONSEQUENCE, Role.CONTEXT].index) and roles[-1] is Role.CONTEXT


@pytest.mark.parametrize("name", ["CancellationDominates", "Hang", "LeakedBlocks", "SchedulerDeadlock"])
def test_beside_a_cause_that_no_setting_mends_nothing_is_to_be_tuned(name: str) -> None:
    cause = Finding(name, Severity.CRITICAL, 0.9, "m", "a", {"x": 1.0})
    slots = Finding(
        "SlotBound", Severity.WARNING, 0.99, "m", "Raise max_num_seqs.", {}, tunable=True, settings=("max_num_seqs",)
    )
    first, second = ranked([slots, cause])
    assert (first.name, first.role) == (name, Role.MAIN)
    assert (second.tunable, second.settings) == (False, ()) and "Raise" not in second.advice


def test_what_is_hardly_believed_does_not_lead() -> None:
    doubtful = Finding("LeakedBlocks", Severity.WARNING, 0.5, "m", "a")
    sure = Finding("SlotBound", Severity.WARNING, 0.85, "m", "a", tunable=True)
    leader = main_cause([doubtful, sure])
    assert leader is not None and leader.name == "SlotBound"
    assert main_cause([Finding("Healthy", Severity.INFO, 1.0, "m", "a")]) is None


def test_an_alarm_stops_tuning_only_when_it_is_believed() -> None:
    assert stops_tuning(Finding("LeakedBlocks", Severity.CRITICAL, 0.9, "m", "a"))
    assert not stops_tuning(Finding("LeakedBlocks", Severity.WARNING, 0.5, "m", "a"))
    assert not stops_tuning(Finding("SlotBound", Severity.WARNING, 0.9, "m", "a"))


def test_the_tables_name_rules_only() -> None:
    assert set(PRECEDENCE) <= set(RULES) and set(RULES) >= DO_NOT_TUNE
    assert set(FOLLOWS) | {n for follows in FOLLOWS.values() for n in follows} <= set(RULES)


def test_every_rule_has_a_file_of_tests() -> None:
    modules = {rule.__module__.rsplit(".", 1)[1] for rule in RULES.values()}
    assert {m for m in modules if not (Path(__file__).parent / f"test_{m}.py").exists()} == set()


@pytest.mark.parametrize("path", sorted(SOURCES.glob("*.py")), ids=lambda p: p.name)
def test_rules_ask_for_series_that_exist(path: Path) -> None:
    asked = set(re.findall(r'\.(?:now|early|last|change|highest|lowest|series)\(\s*"(\w+)"', path.read_text()))
    assert asked <= FIELDS


def test_evidence_is_finite() -> None:
    assert evidence(a=1.23456, b=None, c=float("inf"), d=float("nan")) == {"a": 1.235}


def test_an_empty_case_and_odd_numbers_do_no_harm() -> None:
    assert [f.name for f in examine(case())] == ["MetricsMissing"]
    odd = [{"running": 0, "waiting": 0, "kv_usage": 0, "generation_tokens_per_second": 0, "requests_per_second": 0,
            "preemptions_per_second": 0, "ttft_p50_seconds": 0, "tpot_p50_seconds": 0,
            "prompt_tokens_p50": 0}]  # fmt: skip
    examine(case(*odd * 4, args="--max-num-seqs 1"))
    assert Configuration.of(max_num_seqs=64) == SEQS
