from __future__ import annotations

from case_shapes import busy, found, lead


def test_a_queue_that_grows_while_tokens_do_not() -> None:
    rows = [busy(waiting=w, running=60, kv_usage=0.85, generation_tokens_per_second=g)
            for w, g in ((4, 2000), (20, 2040), (60, 2010), (140, 2030))]  # fmt: skip
    finding = found("QueueOverCapacity", *rows)
    assert finding is not None and not finding.tunable and "Scale out" in finding.advice


def test_more_come_than_finish() -> None:
    finding = found("QueueOverCapacity", *[busy(waiting=50, requests_per_second=12, finished_per_second=4)] * 2)
    assert finding is not None and finding.evidence["overload"] == 3.0


def test_what_slots_could_give_is_weighed_against_what_is_asked() -> None:
    rows = [busy(waiting=w, running=64, kv_usage=0.6, requests_per_second=30, finished_per_second=5)
            for w in (100, 1600, 3100, 4600)]  # fmt: skip
    assert lead(*rows, args="--max-num-seqs 64").name == "QueueOverCapacity"
    mild = [{**r, "requests_per_second": 5.5} for r in rows]
    assert lead(*mild, args="--max-num-seqs 64").name == "SlotBound"


def test_a_limit_told_in_words_counts() -> None:
    rows = [busy(waiting=30, running=60, kv_usage=0.6, ttft_p50_seconds=6.0)] * 3
    assert found("QueueOverCapacity", *rows, facts=["our SLO is TTFT 2 s"]) is not None
    assert found("QueueOverCapacity", *rows, slo={"ttft_seconds": 10}) is None
