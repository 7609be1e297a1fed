from __future__ import annotations

from case_shapes import busy, found, lead


def test_clients_that_hold_far_more_than_the_engine_has() -> None:
    rows = [busy(running=12, waiting=0, client_in_flight=200, kv_usage=0.1)] * 3
    finding = lead(*rows)
    assert (finding.name, finding.tunable) == ("FrontendBound", False)
    assert finding.evidence["client_in_flight"] == 200


def test_replicas_may_hold_them() -> None:
    assert found("FrontendBound", *[busy(running=50, client_in_flight=200, replicas=4)] * 3) is None


def test_a_cpu_at_its_limit_with_an_idle_gpu() -> None:
    """vllm#9113, #13247."""
    rows = [busy(running=20, cpu_utilization=1.0, gpu_utilization=0.2, tpot_mean_seconds=0.2)] * 2
    assert lead(*rows).name == "FrontendBound"


def test_words_do_not_stand_against_numbers() -> None:
    rows = [busy(running=20, gpu_utilization=0.98)] * 2
    assert found("FrontendBound", *rows, facts=["the CPU limit is 4 cores"]) is None


def test_the_engine_s_own_queue_is_not_the_frontend() -> None:
    rows = [busy(running=10, waiting=60, client_in_flight=160)] * 3
    assert found("FrontendBound", *rows) is None
