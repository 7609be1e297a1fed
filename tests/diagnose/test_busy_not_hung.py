from __future__ import annotations

from case_shapes import busy, found, lead


def test_tokens_that_flow_outweigh_a_failed_probe() -> None:
    finding = lead(busy(health="ok"), busy(health="timeout"), busy(health=503))
    assert (finding.name, finding.tunable) == ("BusyNotHung", False)
    assert finding.evidence["failed_checks"] == 2


def test_a_failed_probe_without_tokens_is_not_called_busy() -> None:
    stuck = busy(health="timeout", generation_tokens_per_second=0, prompt_tokens_per_second=0, finished_per_second=0)
    assert found("BusyNotHung", stuck, stuck, stuck) is None
    assert lead(stuck, stuck, stuck).name == "Hang"


def test_a_probe_that_passes_is_no_finding() -> None:
    assert found("BusyNotHung", busy(health=True), busy(health=True)) is None
