from __future__ import annotations

from case_shapes import found, lead

STUCK = {"running": 0, "waiting": 6, "kv_usage": 0.0, "generation_tokens_per_second": 0}


def test_a_prompt_above_the_pool_is_told_from_a_deadlock() -> None:
    """vllm#39734."""
    rows = [{**STUCK, "kv_capacity_tokens": 76_640}] * 3
    finding = lead(*rows, args="--max-model-len 262144")
    assert (finding.name, finding.tunable) == ("HeadNeverAdmissible", False)
    assert finding.evidence["kv_pool_tokens"] == 76_640 and "max_model_len" in finding.advice


def test_the_pool_may_stand_in_the_start_up_line() -> None:
    facts = ["INFO GPU KV cache size: 30,000 tokens", "one client sends a 48,000 token prompt"]
    finding = found("HeadNeverAdmissible", STUCK, STUCK, facts=facts)
    assert finding is not None and finding.evidence["longest_prompt_tokens"] == 48_000


def test_a_pool_that_holds_the_longest_prompt_is_not_the_cause() -> None:
    rows = [{**STUCK, "kv_capacity_tokens": 300_000}] * 3
    assert found("HeadNeverAdmissible", *rows, args="--max-model-len 262144") is None
    assert lead(*rows, args="--max-model-len 262144").name == "SchedulerDeadlock"


def test_an_engine_that_keeps_running_others_is_not_blocked_by_its_limit_alone() -> None:
    rows = [{"running": 20, "waiting": 3, "kv_usage": 0.5, "kv_capacity_tokens": 76_640}] * 3
    assert found("HeadNeverAdmissible", *rows, args="--max-model-len 262144") is None
