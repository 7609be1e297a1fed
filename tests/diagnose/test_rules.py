"""Each rule by its behaviour, with the wrong conclusions that the field reports have drawn."""

from __future__ import annotations

from dataclasses import fields

import pytest

from trimtab.diagnose.finding import Limits, Severity
from trimtab.diagnose.rules import RULES, diagnose
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation

NO_LIMITS = Limits()
SEQS = Configuration.of(max_num_seqs=64)
INF = float("inf")


def observed(**values: object) -> Observation:
    """A target that works well, with changes."""
    base: dict[str, object] = {
        "pods": 2, "window_seconds": 300.0, "requests": 1000.0, "finished": 995.0, "preemptions": 0.0,
        "generated_tokens": 2e5, "useful_tokens": 2e5, "reserved_tokens": 3e5, "running": 20.0, "waiting": 0.0,
        "kv_usage": 0.5, "kv_usage_max": 0.6, "prefix_queries": 1e6, "prefix_hits": 1e5,
    }  # fmt: skip
    return Observation(**{**base, **values})  # type: ignore[arg-type]


def names(observation: Observation, configuration: Configuration = SEQS, limits: Limits = NO_LIMITS) -> list[str]:
    return [f.name for f in diagnose(observation, configuration, limits)]


def test_a_target_that_works_is_healthy() -> None:
    assert names(observed()) == ["Healthy"]


def test_high_kv_use_with_nothing_waiting_is_no_trouble() -> None:
    """vllm#18115: 8 running, 0 waiting, KV 95.8%, full speed."""
    assert names(observed(running=8.0, kv_usage=0.958, kv_usage_max=0.96)) == ["Healthy"]


def test_preemption_is_counted_per_finished_request() -> None:
    (finding, *_) = diagnose(observed(preemptions=200.0, kv_usage_max=0.99), SEQS, NO_LIMITS)
    assert (finding.name, finding.severity) == ("Preemption", Severity.WARNING)
    assert finding.evidence == {"preemptions_per_request": pytest.approx(0.201, abs=0.001), "kv_usage": 0.99}
    spiral = diagnose(observed(preemptions=2000.0), SEQS, NO_LIMITS)[0]
    assert spiral.severity is Severity.CRITICAL
    assert spiral.confidence < finding.confidence, "preempting with a cache that is not full is doubtful"
    assert "Preemption" not in names(observed(preemptions=10.0))


def test_cancellation_needs_more_than_a_tenth_and_enough_requests() -> None:
    assert "CancellationDominates" in names(observed(requests=1000.0, finished=850.0))
    assert "CancellationDominates" not in names(observed(requests=1000.0, finished=950.0))
    assert "CancellationDominates" not in names(observed(requests=10.0, finished=5.0))


def test_a_low_useful_ratio_is_information_on_vllm() -> None:
    found = {f.name: f for f in diagnose(observed(reserved_tokens=1e6), SEQS, NO_LIMITS)}
    assert found["OverReservation"].severity is Severity.INFO
    assert "Healthy" in found


def test_waiting_with_full_slots_and_free_kv_is_slot_bound() -> None:
    assert names(observed(waiting=12.0, running=63.0, kv_usage=0.3)) == ["SlotBound"]


def test_waiting_with_free_slots_is_not_slot_bound() -> None:
    """vllm#53130 (parked requests hold slots), vllm#39734 (one prompt blocks all): more sequences would not help."""
    assert names(observed(waiting=12.0, running=10.0, kv_usage=0.3)) == ["QueueHeadBlocked"]
    assert "SlotBound" not in names(observed(waiting=12.0, running=63.0, kv_usage=0.3), Configuration.of())


def test_waiting_with_a_full_cache_is_kv_bound() -> None:
    assert names(observed(waiting=5.0, kv_usage=0.97)) == ["KvBound"]


def queue(seconds_below: float) -> Histogram:
    return Histogram((1.0, 10.0, INF), (seconds_below, 100.0, 100.0), 300.0)


def test_a_queue_beyond_the_limit_is_over_capacity() -> None:
    limited = Limits(ttft_seconds=2.0)
    assert "QueueOverCapacity" in names(observed(queue_seconds=queue(10.0)), limits=limited)
    assert "QueueOverCapacity" not in names(observed(queue_seconds=queue(90.0)), limits=limited)
    assert "QueueOverCapacity" not in names(observed(queue_seconds=queue(10.0)))


def test_prefix_caching() -> None:
    assert "PrefixCacheOff" in names(observed(), Configuration.of(enable_prefix_caching=False))
    assert "PrefixCacheOff" not in names(observed(), Configuration.of()), "unset is unknown, not off"
    assert "PrefixCachePays" in names(observed(prefix_hits=6.65e5))
    assert "PrefixCacheNotPaying" in names(observed(prefix_hits=100.0))
    assert "PrefixCacheNotPaying" not in names(observed(prefix_queries=500.0, prefix_hits=0.0))


def test_waiting_with_nothing_running_is_a_deadlock_to_alarm_not_tune() -> None:
    stuck = observed(running=0.0, waiting=4.0, kv_usage=0.0, generated_tokens=0.0, finished=0.0, useful_tokens=0.0)
    assert names(stuck)[0] == "SchedulerDeadlock"
    assert "Healthy" not in names(stuck)
    short = observed(running=0.0, waiting=4.0, generated_tokens=0.0, window_seconds=20.0)
    assert "SchedulerDeadlock" not in names(short)


def test_running_without_tokens_is_a_hang_not_idleness() -> None:
    """vllm#42897."""
    hung = observed(generated_tokens=0.0, finished=0.0, requests=0.0, useful_tokens=0.0)
    assert names(hung)[0] == "Hang"
    assert "NoTraffic" not in names(hung)


def test_no_traffic_needs_known_zeros() -> None:
    idle = {"requests": 0.0, "finished": 0.0, "generated_tokens": 0.0, "useful_tokens": 0.0, "running": 0.0,
            "reserved_tokens": 0.0}  # fmt: skip
    assert names(observed(**idle)) == ["NoTraffic"]
    assert names(observed(**{**idle, "running": None})) == []


def test_nothing_known_finds_nothing_not_even_health() -> None:
    assert names(Observation(pods=1, window_seconds=300.0)) == []


@pytest.mark.parametrize("missing", [f.name for f in fields(Observation) if f.name not in ("pods", "window_seconds")])
def test_no_rule_fails_on_a_missing_input(missing: str) -> None:
    everything = {"queue_seconds": queue(10.0), "waiting": 5.0, "kv_usage": 0.97, "preemptions": 500.0}
    names(observed(**{**everything, missing: None}), limits=Limits(1.0, 1.0))


def test_findings_are_sorted_by_severity_and_named_as_in_the_table() -> None:
    found = diagnose(observed(preemptions=2000.0, waiting=5.0, kv_usage=0.97, reserved_tokens=1e6), SEQS, NO_LIMITS)
    assert [f.severity for f in found] == [Severity.CRITICAL, Severity.WARNING, Severity.INFO]
    assert {f.name for f in found} <= {*RULES, "Healthy"}
    assert all(0 < f.confidence <= 1 and f.advice and f.message for f in found)
