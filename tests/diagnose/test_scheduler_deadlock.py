from __future__ import annotations

import pytest
from case_shapes import busy, found, lead

STUCK = {"running": 0, "waiting": 4, "kv_usage": 0.0, "generation_tokens_per_second": 0}


def test_waiting_with_nothing_running_is_an_alarm_not_a_setting() -> None:
    finding = lead(busy(), STUCK, STUCK, STUCK)
    assert (finding.name, finding.tunable) == ("SchedulerDeadlock", False)
    assert finding.confidence >= 0.9 and "max_num_seqs" in finding.avoid


def test_a_single_moment_is_believed_in_part() -> None:
    finding = found("SchedulerDeadlock", STUCK)
    assert finding is not None and finding.confidence < 0.7


def test_ten_seconds_prove_nothing() -> None:
    assert found("SchedulerDeadlock", STUCK, STUCK, every=10) is None


@pytest.mark.parametrize(
    "change", [{"running": 1}, {"generation_tokens_per_second": 9}, {"waiting": 0}, {"kv_usage": 0.9}]
)
def test_what_moves_or_holds_memory_is_no_deadlock(change: dict[str, float]) -> None:
    assert found("SchedulerDeadlock", *[{**STUCK, **change}] * 3) is None
