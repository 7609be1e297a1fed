from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trimtab.judge.guardrail import GuardrailLimits, PodHealth, serving_breach, startup_breach
from trimtab.observe.observation import Observation

STARTING = PodHealth(False, 0, None, None, None, 30.0)
SERVING = PodHealth(True, 0, None, None, None, 300.0)
LIMITS = GuardrailLimits(max_error_percent=2.0, max_latency_ratio=3.0, max_restarts=0, min_requests=20)


@pytest.mark.parametrize(
    ("health", "reason", "infeasible"),
    [
        (replace(STARTING, restarts=1), "CrashedAtStart", True),
        (replace(STARTING, waiting_reason="CrashLoopBackOff"), "CrashedAtStart", True),
        (replace(STARTING, terminated_reason="Error", exit_code=1), "CrashedAtStart", True),
        (replace(STARTING, terminated_reason="OOMKilled", exit_code=137), "OutOfMemory", True),
        (replace(STARTING, exit_code=1, last_log="torch.OutOfMemoryError: CUDA out of memory"), "OutOfMemory", True),
        (replace(STARTING, waiting_reason="ImagePullBackOff"), "ImageUnavailable", False),
        (replace(STARTING, waiting_reason="ErrImagePull"), "ImageUnavailable", False),
    ],
)
def test_a_start_that_fails_ends_the_trial_at_once(health: PodHealth, reason: str, infeasible: bool) -> None:
    breach = startup_breach(health, 5.0, 900.0)
    assert breach is not None and (breach.reason, breach.infeasible) == (reason, infeasible)


@pytest.mark.parametrize(
    ("health", "reason", "infeasible"),
    [
        (STARTING, "NeverReady", True),
        (replace(STARTING, scheduled=False), "NotScheduled", False),
        (replace(STARTING, waiting_reason="ContainerCreating"), "StartTimedOut", False),
    ],
)
def test_the_deadline(health: PodHealth, reason: str, infeasible: bool) -> None:
    assert startup_breach(health, 899.0, 900.0) is None
    breach = startup_breach(health, 901.0, 900.0)
    assert breach is not None and (breach.reason, breach.infeasible) == (reason, infeasible)


def test_a_ready_pod_is_no_breach_after_the_deadline() -> None:
    assert startup_breach(SERVING, 5000.0, 900.0) is None


def test_the_last_words_are_kept() -> None:
    breach = startup_breach(replace(STARTING, exit_code=1, last_log="a\n\nValueError: block size\n"), 5.0, 900.0)
    assert breach is not None and breach.message.endswith("ValueError: block size")


def test_the_cause_is_quoted_from_its_head_not_what_was_printed_after_it() -> None:
    cause = "pydantic_core.ValidationError: 1 validation error for SchedulerConfig"
    value = "  Value error, max_num_batched_tokens (512) is smaller than max_model_len (4096). " + 300 * "x"
    after = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    log = "\n".join(("Traceback:", "  File", cause, value, "    For further information", "  File", after))
    breach = startup_breach(replace(STARTING, exit_code=1, last_log=log), 5.0, 900.0)
    assert breach is not None
    assert f"Last log: {cause} | Value error, max_num_batched_tokens (512)" in breach.message


def observation(**values: float) -> Observation:
    base = {"requests": 100.0, "finished": 100.0, "generated_tokens": 1e4, "running": 3.0, "http_errors": 0.0}
    return Observation(pods=1, window_seconds=30.0, **{**base, **values})  # type: ignore[arg-type]


def test_restarts_and_deaths_under_load() -> None:
    assert serving_breach(SERVING, None, None, LIMITS) is None
    dying = replace(SERVING, ready=False, terminated_reason="OOMKilled", exit_code=137)
    breach = serving_breach(dying, None, None, LIMITS)
    assert breach is not None and breach.reason == "OutOfMemory" and breach.infeasible
    assert serving_breach(replace(SERVING, restarts=1), None, None, LIMITS) is not None
    lenient = replace(LIMITS, max_restarts=1)
    assert serving_breach(replace(SERVING, restarts=1), None, None, lenient) is None
    assert serving_breach(replace(SERVING, restarts=2), None, None, lenient) is not None


def test_errors_count_beyond_those_of_the_control() -> None:
    bad = observation(http_errors=5.0)
    breach = serving_breach(SERVING, bad, observation(), LIMITS)
    assert breach is not None and breach.reason == "ErrorsTooHigh" and not breach.infeasible
    assert serving_breach(SERVING, bad, observation(http_errors=4.0), LIMITS) is None
    assert serving_breach(SERVING, bad, None, LIMITS) is not None
    assert serving_breach(SERVING, observation(requests=10.0, http_errors=5.0), observation(), LIMITS) is None


def test_a_hang_is_running_requests_without_a_token_beside_a_working_control() -> None:
    silent = observation(generated_tokens=0.0, finished=0.0, requests=0.0)
    breach = serving_breach(SERVING, silent, observation(), LIMITS)
    assert breach is not None and breach.reason == "CanaryHangs" and breach.infeasible
    assert serving_breach(SERVING, replace(silent, running=0.0), observation(), LIMITS) is None
    assert serving_breach(SERVING, silent, replace(silent), LIMITS) is None


def test_requests_that_wait_while_none_runs_are_a_hang_too() -> None:
    """Leaked KV blocks: nothing is admitted any more."""
    stuck = observation(generated_tokens=0.0, finished=0.0, requests=0.0, running=0.0, waiting=3.0)
    breach = serving_breach(SERVING, stuck, observation(), LIMITS)
    assert (
        breach is not None and breach.reason == "CanaryHangs" and "3.0 requests waiting and none running" in str(breach)
    )
    assert serving_breach(SERVING, replace(stuck, waiting=0.0), observation(), LIMITS) is None


def test_a_slow_canary_ends_the_trial_and_an_equal_one_seldom(experiment: Callable[[Any, int], Any], load: Any) -> None:
    def breaches(ttft: float) -> int:
        windows = (experiment(load(windows=1, rate=2.0, ttft=ttft), seed) for seed in range(100))
        return sum(serving_breach(SERVING, e.canary, e.control, LIMITS) is not None for e in windows)

    assert breaches(1.0) <= 2
    assert breaches(20.0) >= 80
