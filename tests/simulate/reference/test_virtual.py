"""The reference in virtual time: clients that leave, over-commitment."""

from __future__ import annotations

import random

import pytest
from tests.simulate.reference.contract import Prompt, SchedulerLimits
from tests.simulate.reference.cost import StepCost
from tests.simulate.reference.virtual import ClientRequest, VirtualRun, simulate

from trimtab.errors import InputError

COST = StepCost(fixed_ms=10, per_prefill_token_ms=0, per_decode_seq_ms=0, per_kv_token_ms=0)


def client(name: str = "a", at: float = 0.0, output: int = 10, cap: int = 100, **behaviour: object) -> ClientRequest:
    return ClientRequest(name, at, Prompt(20), output, cap, **behaviour)  # type: ignore[arg-type]


def test_a_lone_request_takes_a_step_per_token() -> None:
    run = simulate([client(at=5.0)], SchedulerLimits(), COST)
    record = run.records[0]
    assert record.ttft_seconds == pytest.approx(0.01)
    assert record.tpot_seconds == pytest.approx(0.01)
    assert (record.tokens, record.ending, record.end_seconds) == (10, "stop", pytest.approx(5.1))
    assert (run.counters.steps, run.counters.generation_tokens, run.useful_tokens) == (10, 10, 10)


def test_the_cap_ends_with_length() -> None:
    assert simulate([client(output=10, cap=4)], SchedulerLimits(), COST).records[0].ending == "length"


def test_a_client_cancels_at_its_token_and_its_work_is_not_useful() -> None:
    run = simulate([client(cancel_after_tokens=4), client("b")], SchedulerLimits(), COST)
    assert [(record.ending, record.tokens) for record in run.records] == [("cancelled", 4), ("stop", 10)]
    assert (run.useful_tokens, run.counters.generation_tokens) == (10, 14)


def test_a_client_gives_up_in_the_queue_and_makes_room() -> None:
    limits = SchedulerLimits(max_num_seqs=1)
    run = simulate([client("a"), client("b", patience_seconds=0.05), client("c")], limits, COST)
    by_name = {record.request_id: record for record in run.records}
    assert by_name["b"].ending == "gave_up"
    assert by_name["b"].end_seconds == pytest.approx(0.05)
    assert by_name["b"].tokens == 0
    assert by_name["c"].first_token_seconds == pytest.approx(0.11)


def test_patience_is_about_the_first_token_only() -> None:
    assert simulate([client(patience_seconds=0.05)], SchedulerLimits(), COST).records[0].ending == "stop"


def test_who_left_while_a_step_was_computed_gets_no_token_of_it() -> None:
    run = simulate([client(patience_seconds=0.005)], SchedulerLimits(), COST)
    assert (run.records[0].tokens, run.records[0].ending, run.counters.generation_tokens) == (0, "gave_up", 0)


def test_what_can_never_be_admitted_is_stuck_until_its_client_leaves() -> None:
    limits = SchedulerLimits(num_gpu_blocks=4)
    huge = ClientRequest("huge", 0.0, Prompt(200), 1, 1)
    assert [r.ending for r in simulate([huge, client()], limits, COST).records] == ["stuck", "stuck"]
    impatient = ClientRequest("huge", 0.0, Prompt(200), 1, 1, patience_seconds=3.0)
    records = simulate([impatient, client()], limits, COST).records
    assert [r.ending for r in records] == ["gave_up", "stop"]
    assert records[1].first_token_seconds == pytest.approx(3.01)


def test_records_keep_the_order_of_the_requests() -> None:
    run = simulate([client("late", at=9.0), client("early", at=1.0)], SchedulerLimits(), COST)
    assert [record.request_id for record in run.records] == ["late", "early"]


def test_no_requests_no_records() -> None:
    assert simulate([], SchedulerLimits(), COST).records == ()


def test_ids_must_differ() -> None:
    with pytest.raises(InputError):
        simulate([client("a"), client("a")], SchedulerLimits(), COST)


def pressed(max_num_seqs: int) -> VirtualRun:
    """128 requests on 200 blocks of 32 tokens: the pressure of a real run that preempted 237 times."""
    rng = random.Random(7)
    requests = [
        ClientRequest(
            str(index),
            0.0,
            Prompt(max(16, min(900, int(rng.lognormvariate(3.4, 0.6))))),
            max(4, min(800, int(rng.lognormvariate(5.5, 0.8)))),
            800,
        )
        for index in range(128)
    ]
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        num_gpu_blocks=200,
        block_size=32,
        max_model_len=2048,
        enable_prefix_caching=False,
    )
    return simulate(requests, limits)


def test_over_commitment_preempts_and_the_best_concurrency_is_in_the_middle() -> None:
    widths = (4, 8, 16, 24, 48, 64)
    runs = {width: pressed(width) for width in widths}
    rate = {width: run.useful_tokens / run.counters.end_seconds for width, run in runs.items()}
    ttft = [sum(record.ttft_seconds or 0 for record in run.records) / 128 for run in runs.values()]
    assert all(record.ending in ("stop", "length") for run in runs.values() for record in run.records)
    assert runs[8].counters.preemptions == 0
    assert runs[64].counters.preemptions > 200
    assert runs[64].counters.recomputed_tokens > 10_000
    best = max(rate, key=rate.__getitem__)
    assert 8 < best < 64
    assert rate[64] < 0.98 * rate[best]
    assert ttft == sorted(ttft, reverse=True)


def test_prefix_caching_saves_prefill() -> None:
    shared = tuple(range(8))
    requests = [ClientRequest(str(i), float(i), Prompt(4096, shared, 512), 5, 5) for i in range(4)]
    runs = {
        caching: simulate(requests, SchedulerLimits(max_model_len=8192, enable_prefix_caching=caching))
        for caching in (True, False)
    }
    assert runs[True].counters.prefill_tokens < runs[False].counters.prefill_tokens / 2
    assert runs[True].counters.prefix_cache_hits == 3 * 4080
