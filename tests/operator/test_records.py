"""Records survive the way through the custom resource, and conditions keep their times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, record
from hypothesis import given
from hypothesis import strategies as st

from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Phase
from trimtab.text import plain
from trimtab_operator.records import conditions, record_of, rfc3339, settings_text, status_of, unix

times = st.one_of(st.none(), st.floats(NOW, NOW + 1e6).map(lambda t: round(t, 3)))
verdicts = st.one_of(
    st.none(),
    st.builds(
        Verdict,
        kind=st.sampled_from(list(Kind)),
        reason=st.sampled_from(["GoodputBetter", "WithinNoise"]),
        message=st.text(max_size=20).map(lambda text: plain(text, 100)),
        gain=st.one_of(st.none(), st.integers(-50, 900).map(lambda p: p / 100)),
        score=st.one_of(st.none(), st.integers(-3000, 3000).map(lambda s: s / 1000)),
        numbers=st.just({"windows": 7.0}),
    ),
)


@given(
    phase=st.sampled_from(list(Phase)),
    verdict=verdicts,
    at=st.tuples(times, times, times, times),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    counts=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
def test_a_record_survives_the_custom_resource(phase: Any, verdict: Any, at: Any, flags: Any, counts: Any) -> None:
    made = replace(
        record(phase),
        verdict=verdict,
        **dict(zip(("measure_from", "confirm_from", "metrics_seen_at", "finished_at"), at, strict=True)),
        **dict(zip(("applied", "held", "infeasible"), flags, strict=True)),
        **dict(zip(("evaluations", "remeasured", "restarts"), counts, strict=True)),
    )
    trial = {
        "metadata": {"name": made.name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "number": 1,
            "configuration": {"maxNumSeqs": 32},
            "baselineConfiguration": {"maxNumSeqs": 128},
            "baseline": {"replicas": 3},
        },
        "status": status_of(made, {}, "pod-1", 1),
    }
    assert record_of(trial) == made


@given(st.floats(0, 4e9).map(lambda t: round(t, 3)))
def test_times_survive(seconds: float) -> None:
    assert unix(rfc3339(seconds)) == pytest.approx(seconds, abs=1e-3)


def test_history_has_one_line_per_phase() -> None:
    first = status_of(record(Phase.STARTING, message="a"), {}, "", 1)
    again = status_of(record(Phase.STARTING, message="b"), first, "", 1)
    later = status_of(record(Phase.WARMING_UP, NOW + 9, message="c"), again, "", 1)
    assert [(h["phase"], h["message"]) for h in later["history"]] == [("Starting", "b"), ("WarmingUp", "c")]


def test_transition_time_moves_only_when_the_status_flips() -> None:
    first = conditions([("Ready", "True", "Watching", "x")], [], 1, NOW)
    same = conditions([("Ready", "True", "Other", "y")], first, 2, NOW + 60)
    assert same[0]["lastTransitionTime"] == first[0]["lastTransitionTime"] and same[0]["reason"] == "Other"
    flipped = conditions([("Ready", "False", "Broken", "z")], same, 2, NOW + 120)
    assert flipped[0]["lastTransitionTime"] != first[0]["lastTransitionTime"]


def test_settings_text_says_what_changes() -> None:
    before, after = Configuration.of(max_num_seqs=128), Configuration.of(max_num_seqs=32, enable_prefix_caching=True)
    assert settings_text(before, after) == "enable_prefix_caching=true max_num_seqs=32"
    assert settings_text(after, Configuration.of(max_num_seqs=32)) == "enable_prefix_caching=default"
