"""What Prometheus hears of the tuners, and that alerts and dashboards of the chart ask for what is there."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, record
from prometheus_client import CollectorRegistry

from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Phase
from trimtab.plan.spec import TunerSpec
from trimtab_operator.fleet_metrics import FleetMetrics
from trimtab_operator.records import rfc3339

STATUS: dict[str, Any] = {
    "phase": "Tuning",
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Watching"},
        {"type": "Progressing", "status": "True", "reason": "Measuring", "lastTransitionTime": rfc3339(NOW)},
    ],
    "findings": [{"name": "Preemption", "severity": "Warning", "confidence": 0.8}],
    "trials": {"total": 2, "promoted": 1},
    "restartsToday": 5,
    "bestGainPercent": 12.5,
    "currentTrial": "llm-2",
}
SPEC = TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}})


@pytest.fixture
def metrics() -> FleetMetrics:
    return FleetMetrics()


def told(metrics: FleetMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels without namespace and tuner) -> value; all are of ml/llm."""
    registry = CollectorRegistry()
    registry.register(metrics)
    found = {}
    for sample in (s for family in registry.collect() for s in family.samples):
        labels = dict(sample.labels)
        assert (labels.pop("namespace"), labels.pop("tuner")) == ("ml", "llm")
        found[re.sub(r"^trimtab_", "", sample.name), frozenset(labels.items())] = sample.value
    return found


def test_a_status_becomes_series(metrics: FleetMetrics) -> None:
    metrics.note("ml", "llm", SPEC, STATUS)
    series = told(metrics)
    assert series["tuner_info", frozenset({("target", "llm"), ("mode", "Recommend")})] == 1
    assert series["tuner_phase", frozenset({("phase", "Tuning")})] == 1
    assert series["tuner_phase", frozenset({("phase", "Failed")})] == 0
    assert series["tuner_condition", frozenset({("type", "Ready"), ("status", "True"), ("reason", "Watching")})] == 1
    assert series["tuner_finding", frozenset({("finding", "Preemption"), ("severity", "Warning")})] == 0.8
    assert series["tuner_trials", frozenset({("result", "promoted")})] == 1
    assert series["tuner_restarts_today", frozenset()] == 5
    assert series["tuner_restarts_limit", frozenset()] == SPEC.rollout.max_restarts_per_day
    assert series["tuner_best_gain_ratio", frozenset()] == 0.125
    assert series["tuner_trial_started_timestamp_seconds", frozenset({("trial", "llm-2")})] == NOW


def test_what_a_status_does_not_know_is_left_out(metrics: FleetMetrics) -> None:
    metrics.note("ml", "llm", SPEC, {"phase": "Observing"})
    assert {name for name, _ in told(metrics)} == {"tuner_info", "tuner_phase", "tuner_restarts_limit"}


def test_trials_are_counted_by_how_they_ended(metrics: FleetMetrics) -> None:
    crashed = replace(record(Phase.ROLLED_BACK), verdict=Verdict(Kind.ERROR, "CrashLoop", "it died"))
    for ended in (crashed, crashed, record(Phase.CANCELLED)):
        metrics.ended("ml", "llm", ended)
    by = {
        dict(labels)["reason"]: value for (name, labels), value in told(metrics).items() if name == "trials_ended_total"
    }
    assert by == {"CrashLoop": 2, "": 1}


def test_a_tuner_that_is_gone_leaves_nothing(metrics: FleetMetrics) -> None:
    metrics.note("ml", "llm", SPEC, STATUS)
    metrics.ended("ml", "llm", record(Phase.CANCELLED))
    metrics.forget("ml", "llm")
    assert told(metrics) == {}
