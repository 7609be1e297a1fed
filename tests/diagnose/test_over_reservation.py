from __future__ import annotations

import pytest
from case_shapes import SEQS, busy, found, lead, observed

from trimtab.diagnose.finding import Limits, Severity
from trimtab.diagnose.rules import diagnose

LOW = {"running": 12, "waiting": 30, "useful_token_ratio": 0.18, "kv_usage": 0.97}


def test_on_vllm_it_is_information() -> None:
    by_name = {f.name: f for f in diagnose(observed(reserved_tokens=1e6), SEQS, Limits())}
    assert by_name["OverReservation"].severity is Severity.INFO and not by_name["OverReservation"].tunable
    assert "Healthy" in by_name


@pytest.mark.parametrize("engine", ["TGI", "TensorRT-LLM", "text-generation-inference"])
def test_on_an_engine_that_reserves_it_is_the_cause(engine: str) -> None:
    finding = lead(LOW, LOW, engine=engine)
    assert (finding.name, finding.tunable) == ("OverReservation", True)
    assert "max_new_tokens" in finding.settings and finding.evidence["useful_token_ratio"] == 0.18


def test_a_tensorrt_that_admits_on_demand_does_not_reserve() -> None:
    finding = found("OverReservation", LOW, engine="TensorRT-LLM", args="--capacity_scheduler_policy MAX_UTILIZATION")
    assert finding is not None and finding.severity is Severity.INFO


def test_lengths_stand_in_for_the_ratio() -> None:
    finding = found("OverReservation", busy(waiting=9, max_tokens_mean=2048, output_tokens_mean=210), engine="tgi")
    assert finding is not None and finding.evidence["useful_token_ratio"] == pytest.approx(0.1025, abs=1e-3)


def test_more_than_half_used_is_none() -> None:
    assert found("OverReservation", {**LOW, "useful_token_ratio": 0.6}, engine="tgi") is None
