from __future__ import annotations

from case_shapes import found

IDLE = {"running": 0, "waiting": 0, "requests_per_second": 0, "kv_usage": 0}


def test_known_zeros_only() -> None:
    assert found("NoTraffic", IDLE, IDLE) is not None
    assert found("NoTraffic", {**IDLE, "running": None}) is None
    assert found("NoTraffic", {**IDLE, "running": 2}) is None


def test_blocks_that_stay_are_not_idleness() -> None:
    assert found("NoTraffic", {**IDLE, "kv_usage": 0.6}) is None
