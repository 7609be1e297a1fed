from __future__ import annotations

import pytest
from case_shapes import busy, found, lead

FROZEN = {"running": 9, "waiting": 2, "kv_usage": 0.3, "generation_tokens_per_second": 0, "prompt_tokens_per_second": 0}


def test_running_without_tokens_is_a_hang_not_idleness() -> None:
    """vllm#42897."""
    finding = lead(busy(), FROZEN, FROZEN, FROZEN)
    assert (finding.name, finding.tunable) == ("Hang", False) and finding.confidence >= 0.9
    assert finding.evidence["running"] == 9 and "restart" in finding.advice


def test_the_heartbeat_tells_a_slow_engine_from_a_hung_one() -> None:
    """gonka#1421."""
    rows = [{"running": 9, "generation_tokens_per_second": 0, "steps_per_second": rate} for rate in (0, 0, 0)]
    assert found("Hang", *rows) is not None
    slow = [{**busy(), "generation_tokens_per_second": 2, "steps_per_second": 0.5}] * 3
    assert found("Hang", *slow) is None


def test_a_counter_that_stands_still_is_a_heartbeat() -> None:
    rows = [{"running": 3, "generation_tokens_per_second": 0, "iteration_tokens_total_count": 5000}] * 4
    finding = found("Hang", *rows)
    assert finding is not None and finding.evidence["steps_per_second"] == 0


def test_a_long_prefill_is_no_hang() -> None:
    rows = [{"running": 2, "generation_tokens_per_second": 0, "prompt_tokens_per_second": 4000}] * 3
    assert found("Hang", *rows) is None


@pytest.mark.parametrize(("health", "least"), [(200, 0.8), (None, 0.5)])
def test_samples_that_stop_while_requests_run_are_a_hang(health: object, least: float) -> None:
    finding = found("Hang", busy(), busy(), {"health": health}, {"health": health}, {"health": health})
    assert finding is not None and finding.confidence >= least


def test_samples_that_stop_after_idleness_are_not() -> None:
    assert found("Hang", busy(running=0), {"health": 200}, {"health": 200}) is None


def test_a_few_seconds_prove_nothing() -> None:
    assert found("Hang", FROZEN, FROZEN, every=5) is None


def test_a_hang_of_two_minutes_is_surer_than_one_of_half_a_minute() -> None:
    short, long = found("Hang", FROZEN, FROZEN, every=30), found("Hang", FROZEN, FROZEN, FROZEN, every=60)
    assert short is not None and long is not None and short.confidence < 0.7 < long.confidence
