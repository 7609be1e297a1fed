from __future__ import annotations

from case_shapes import busy, found, lead


def test_nothing_known_is_said_not_guessed() -> None:
    finding = lead({"client_in_flight": 20})
    assert (finding.name, finding.tunable) == ("MetricsMissing", False)


def test_the_flag_that_removes_them() -> None:
    finding = found("MetricsMissing", {"client_in_flight": 20}, args="vllm serve m --disable-log-stats")
    assert finding is not None and finding.confidence > 0.9 and "--disable-log-stats" in finding.message


def test_a_few_unknown_fields_are_usual() -> None:
    assert found("MetricsMissing", busy(kv_usage=None, waiting=None)) is None
