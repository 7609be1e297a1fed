from __future__ import annotations

from dataclasses import replace

from trimtab.diagnose.finding import Finding, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.search.priors import candidates, concurrency
from trimtab.search.space import Space

INF = float("inf")
SPACE = Space({"max_num_seqs": (4, 512)})
#: means of 1000 and 500 tokens
PROMPT = Histogram((1000.0, 2000.0, INF), (90.0, 100.0, 100.0), 1e5)
OUTPUT = Histogram((500.0, 1000.0, INF), (90.0, 100.0, 100.0), 5e4)
SEEN = Observation(
    1, 300.0, kv_capacity_tokens=144_000.0, prompt_length=PROMPT, output_length=OUTPUT, prefix_queries=0.0
)


def finding(name: str) -> Finding:
    return Finding(name, Severity.WARNING, 1.0, "", "")


def test_concurrency_is_capacity_over_the_mean_request() -> None:
    assert concurrency(SEEN) == 96.0
    assert concurrency(Observation(1, 300.0)) is None


def test_the_combination_comes_first_then_neighbours() -> None:
    guesses = candidates(Configuration.of(max_num_seqs=256, enable_prefix_caching=False), SEEN, [], SPACE)
    assert [dict(g.configuration) for g in guesses] == [
        {"max_num_seqs": 96, "enable_prefix_caching": True},
        {"max_num_seqs": 256, "enable_prefix_caching": True},
        {"max_num_seqs": 128, "enable_prefix_caching": True},
        {"max_num_seqs": 64, "enable_prefix_caching": True},
    ]
    assert all(g.origin for g in guesses)


def test_preemption_asks_for_fewer_before_more() -> None:
    now = Configuration.of(max_num_seqs=256, enable_prefix_caching=True)
    order = [g.configuration["max_num_seqs"] for g in candidates(now, SEEN, [finding("Preemption")], SPACE)]
    assert order == [96, 64, 128]


def test_caching_that_is_seen_at_work_is_not_switched_on_again() -> None:
    busy = replace(SEEN, prefix_queries=9e4)
    guesses = candidates(Configuration.of(max_num_seqs=256), busy, [], SPACE)
    assert guesses and all("enable_prefix_caching" not in g.configuration for g in guesses)
    idle = candidates(Configuration.of(max_num_seqs=256), SEEN, [], SPACE)
    assert idle[0].configuration["enable_prefix_caching"] is True


def test_guesses_stay_in_the_space_and_differ_from_now() -> None:
    small = Space({"max_num_seqs": (4, 32)}, tune_prefix_caching=False)
    assert [dict(g.configuration) for g in candidates(Configuration.of(max_num_seqs=16), SEEN, [], small)] == [
        {"max_num_seqs": 32}
    ]
    assert candidates(Configuration.of(max_num_seqs=32), SEEN, [], small) == []


def test_without_capacity_the_findings_point_the_way() -> None:
    blind, now = Observation(1, 300.0), Configuration.of(max_num_seqs=64)
    down = candidates(now, blind, [finding("Preemption")], SPACE)
    assert [g.configuration["max_num_seqs"] for g in down] == [48, 32]
    up = candidates(now, blind, [finding("SlotBound")], SPACE)
    assert [g.configuration["max_num_seqs"] for g in up] == [96, 128]
    assert candidates(now, blind, [], SPACE) == []


def test_a_broken_or_idle_engine_is_not_tuned() -> None:
    for name in ("SchedulerDeadlock", "Hang", "NoTraffic"):
        assert candidates(Configuration.of(max_num_seqs=256), SEEN, [finding(name)], SPACE) == []
