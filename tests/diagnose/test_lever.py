"""Where settings are the lever: clients that leave a starved target are a matter of settings, others are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab.diagnose.finding import Limits, Role
from trimtab.diagnose.lever import no_lever
from trimtab.diagnose.rules import diagnose
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation

BOUNDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, float("inf"))


def times(value: float, count: float) -> Histogram:
    return Histogram(BOUNDS, tuple(count if b >= value else 0.0 for b in BOUNDS), count * value)


def observed(ttft: float, finished: float, running: float = 4.0, waiting: float = 10.0) -> Observation:
    """360 requests in a minute, of which `finished` do; two pods."""
    return Observation(
        pods=2, window_seconds=60.0, requests=360.0, finished=finished, engine_aborts=0.0, engine_errors=0.0,
        http_errors=0.0, preemptions=0.0, generated_tokens=finished * 100, useful_tokens=finished * 100,
        running=running, waiting=waiting, kv_usage=0.08, ttft_seconds=times(ttft, finished),
        tpot_seconds=times(0.02, finished),
    )  # fmt: skip


@pytest.mark.parametrize(("ttft", "finished"), [(6.5, 120.0), (3.0, 120.0), (3.0, 300.0), (0.4, 300.0), (3.0, 40.0)])
def test_a_starved_target_whose_clients_leave_is_tuned(ttft: float, finished: float) -> None:
    """As the demo's: 4 slots, requests wait, users give up."""
    findings = diagnose(observed(ttft, finished), Configuration.of(max_num_seqs=4), Limits(2.0))
    assert findings[0].name == "CancellationDominates" and findings[0].role is Role.MAIN
    assert no_lever(findings) is None


def test_clients_that_leave_a_target_with_room_are_not() -> None:
    findings = diagnose(observed(0.3, 300.0, running=4.0, waiting=0.0), Configuration.of(max_num_seqs=64), Limits(2.0))
    cause = no_lever(findings)
    assert cause is not None and cause.name == "CancellationDominates"
    assert no_lever([replace(f, confidence=0.6) for f in findings]) is None
    assert no_lever([]) is None
