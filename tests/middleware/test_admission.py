"""The gate: limits, turns, bounds and deadlines; and through the middleware, what a client and the engine see."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middleware.asgi import Engine, Rig
from trimtab.middleware.admission import Gate, Lengths, Ticket, Waiter
from trimtab.middleware.policy_file import Admission

BODY = {"prompt": "hi", "max_tokens": 10, "stream": True}


def waiter(ticket: Ticket, client: int = 0) -> Waiter:
    return Waiter(ticket, client, asyncio.get_running_loop().create_future())


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0, 500), st.floats(0, 1e4), st.integers(0, 3)), max_size=40),
    st.integers(1, 12) | st.none(),
    st.integers(1, 2000) | st.none(),
    st.randoms(use_true_random=False),
)
def test_limits_hold_nobody_is_lost_and_everything_is_given_back(
    jobs: list[tuple[int, float, float, int]], sequences: int | None, budget: int | None, chance: Any
) -> None:
    async def run() -> None:
        gate = Gate()
        gate.limits = Admission(max_sequences=sequences, kv_budget_tokens=budget)
        running: list[Ticket] = []
        waiting: list[Waiter] = []
        for seqs, tokens, variance, client in jobs:
            ticket = Ticket(seqs, tokens, tokens / 2, variance)
            if gate.enter(ticket):
                running.append(ticket)
            else:
                waiting.append(waiter(ticket, client))
                assert gate.wait(waiting[-1])
            if running and chance.random() < 0.5:
                gate.release(running.pop(chance.randrange(len(running))))
            elif waiting and chance.random() < 0.3:
                gate.leave(waiting.pop(chance.randrange(len(waiting))))
            running += [w.ticket for w in waiting if w.admitted.done()]
            waiting = [w for w in waiting if not w.admitted.done()]
            assert gate.queued == len(waiting)
            assert gate.running_sequences == sum(t.sequences for t in running)
            if sequences is not None and len(running) > 1:
                assert gate.running_sequences <= sequences
            assert not gate.queued or gate.running_requests
        while running:
            gate.release(running.pop())
            running += [w.ticket for w in waiting if w.admitted.done()]
            waiting = [w for w in waiting if not w.admitted.done()]
        assert not waiting and gate.queued == gate.running_requests == gate.running_sequences == 0
        assert gate.peak() == 0

    asyncio.run(run())


async def test_clients_are_served_in_turn() -> None:
    gate = Gate()
    gate.limits = Admission(max_sequences=1)
    first = Ticket(1)
    assert gate.enter(first)
    waiting = [waiter(Ticket(1), client) for client in (1, 1, 1, 2)]
    for one in waiting:
        gate.wait(one)
    order = []
    ticket = first
    for _ in waiting:
        gate.release(ticket)
        ready = next(w for w in waiting if w.admitted.done() and w not in order)
        order.append(ready)
        ticket = ready.ticket
    assert [w.client for w in order] == [1, 2, 1, 1]


def ticket(prompt: float, mean: float, variance: float = 0.0, done: int = 0, sequences: int = 1) -> Ticket:
    made = Ticket(sequences, prompt, mean, variance)
    made.generated = lambda: done
    return made


def test_the_peak_is_what_requests_hold_together_before_the_first_of_them_leaves() -> None:
    gate = Gate()
    gate.limits = Admission(kv_budget_tokens=1000, deviations=0.0)
    gate.take(ticket(100, 50))
    assert gate.peak() == 150
    gate.take(ticket(100, 200))
    # after 50 more tokens each: 150 + 150, then one leaves; at the end 300
    assert gate.peak() == 300
    gate.take(ticket(100, 60, done=40))  # 20 to go
    assert gate.peak() == max(100 + 200, 300, 100 + 100 + 140 + 3 * 20)
    assert gate.fits(ticket(600, 1)) and not gate.fits(ticket(701, 1))
    before = gate.peak()
    gate.block_tokens = 32
    assert gate.peak() == before + 3 * 16  # three are there at the peak, each with half an empty block


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(0, 400), st.integers(1, 4)), max_size=8)
)
def test_the_peak_is_that_of_playing_all_requests_to_their_end(jobs: list[tuple[int, int, int, int]]) -> None:
    gate = Gate()
    gate.limits = Admission(kv_budget_tokens=1, deviations=0.0)
    rows = []
    for prompt, mean, done, sequences in jobs:
        one = ticket(prompt, mean, done=done * sequences, sequences=sequences)
        gate.take(one)
        rows.append((prompt + done * sequences, max(0, mean - done), sequences))
    played = max(
        (sum(now + s * step for now, left, s in rows if left >= step) for step in range(301)),
        default=0,
    )
    assert gate.peak() == pytest.approx(played)


def test_spread_and_risk_move_the_budget_and_a_request_that_outlives_its_mean_still_counts() -> None:
    gate = Gate()
    gate.limits = Admission(kv_budget_tokens=1000, deviations=2.0)
    gate.take(ticket(500, 0.0, 2500.0))
    assert gate.peak() == 500 + 50 + 100  # a standard deviation more to come, and two for safety
    assert gate.fits(ticket(300, 100)) and not gate.fits(ticket(301, 100))
    gate.limits = Admission(kv_budget_tokens=1000, deviations=0.0)
    assert gate.fits(ticket(300, 100))
    gate.limits = Admission(kv_budget_tokens=1000, risk=0.89, deviations=0.0)
    assert not gate.fits(ticket(300, 100))


def test_lengths_follow_what_finishes() -> None:
    lengths = Lengths(4.0)
    for number in range(4000):
        lengths.add(100 if number % 2 else 300)
        lengths.prompt(300, 100)
    assert lengths.mean == pytest.approx(200, rel=0.1)
    assert lengths.variance**0.5 == pytest.approx(100, rel=0.1)
    assert lengths.chars_per_token == pytest.approx(3.0, rel=0.01)


async def start(rig: Rig, number: int, **more: Any) -> list[asyncio.Task[Any]]:
    calls = [asyncio.ensure_future(rig.call({**BODY, "prompt": f"p{n}"}, **more)) for n in range(number)]
    await asyncio.sleep(0.02)
    return calls


def rig_with(tmp_path: Path, admission: dict[str, Any]) -> Rig:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"admission": admission}))
    rig = Rig(Engine([[1, 1]]), policy=path)
    rig.engine.gate = asyncio.Event()
    return rig


async def test_what_is_over_the_limit_waits_and_is_served(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"max_sequences": 2})
    calls = await start(rig, 5)
    assert len(rig.engine.seen) == 2 and rig.value("trimtab_mw_queued_requests") == 3
    rig.engine.gate.set()
    assert [(await call).status for call in calls] == [200] * 5
    assert rig.value("trimtab_mw_admissions_total", decision="queued") == 3
    assert rig.value("trimtab_mw_running_sequences") == 0


async def test_a_full_queue_gives_429_with_retry_after_in_the_routes_shape(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"max_sequences": 1, "max_queued": 1, "retry_after_seconds": 2.5})
    calls = await start(rig, 2)
    answer = await rig.call(BODY)
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    assert json.loads(answer.body)["error"]["code"] == 429
    message = await rig.call({"messages": [], "max_tokens": 5}, "/v1/messages")
    assert json.loads(message.body)["type"] == "error"
    rig.engine.gate.set()
    await asyncio.gather(*calls)
    assert rig.by_ending("trimtab_mw_requests_total")["rejected"] == 2
    assert rig.value("llm_reserved_tokens_total") == 20


async def test_a_wait_has_a_deadline(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"max_sequences": 1, "queue_seconds": 0.05})
    calls = await start(rig, 1)
    answer = await rig.call(BODY)
    assert answer.status == 429 and rig.value("trimtab_mw_admissions_total", decision="rejected_deadline") == 1
    rig.engine.gate.set()
    await asyncio.gather(*calls)
    assert rig.core.gate.queued == 0


async def test_a_request_cancelled_while_queued_never_reaches_the_engine(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"max_sequences": 1})
    running = await start(rig, 1)
    leave = asyncio.Event()
    waiting = await start(rig, 20, leave=leave)
    assert rig.value("trimtab_mw_queued_requests") == 20
    leave.set()
    await asyncio.gather(*waiting)
    rig.engine.gate.set()
    await asyncio.gather(*running)
    assert len(rig.engine.seen) == 1
    assert rig.value("trimtab_mw_admissions_total", decision="cancelled_queued") == 20
    assert rig.by_ending("trimtab_mw_requests_total") == {"stop": 1, "client_cancel": 20}
    assert rig.value("llm_reserved_tokens_total") == 10
    assert rig.value("trimtab_mw_queued_requests") == 0


async def test_a_client_that_leaves_after_its_wait_is_still_noticed(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"max_sequences": 1})
    first, leave = await start(rig, 1), asyncio.Event()
    second = await start(rig, 1, leave=leave)
    gate, rig.engine.gate = rig.engine.gate, asyncio.Event()
    gate.set()
    await asyncio.gather(*first)
    await asyncio.sleep(0.02)
    assert len(rig.engine.seen) == 2
    leave.set()
    await asyncio.gather(*second)
    assert rig.engine.stopped == 1


async def test_a_raised_limit_lets_the_queue_in_at_once(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"max_sequences": 1})
    calls = await start(rig, 4)
    assert len(rig.engine.seen) == 1
    (tmp_path / "policy.json").write_text('{"generation": 1, "admission": {"max_sequences": 4}}')
    rig.clock.now += 1
    await rig.call(b"", "/trimtab/status", method="GET")
    await asyncio.sleep(0.02)
    assert len(rig.engine.seen) == 4
    rig.engine.gate.set()
    await asyncio.gather(*calls)


async def test_kv_admission_uses_the_true_length_that_a_header_tells(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"kv_budget_tokens": 100, "expected_tokens_header": "x-expected"})
    body = {**BODY, "prompt": [1] * 20, "max_tokens": 90}
    calls = [asyncio.ensure_future(rig.call(body, headers={"x-expected": "30"})) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert len(rig.engine.seen) == 2 and rig.value("trimtab_mw_kv_expected_tokens") == 100
    rig.engine.gate.set()
    await asyncio.gather(*calls)


@pytest.mark.parametrize("told", ["\u00b2", "many", "-1", "9" * 500])
async def test_a_length_that_is_no_number_is_left_aside(told: str, tmp_path: Path) -> None:
    """A header is latin-1, where a superscript two counts as a digit and is no number."""
    rig = rig_with(tmp_path, {"kv_budget_tokens": 100, "expected_tokens_header": "x-expected"})
    rig.engine.gate.set()
    body = {**BODY, "prompt": [1] * 20, "max_tokens": 30}
    assert (await rig.call(body, headers={"x-expected": told})).status == 200
    assert not any(rig.value("trimtab_mw_faults_total", hook=hook) for hook in ("admission", "begin", "understand"))


async def test_one_request_larger_than_the_budget_runs_alone(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, {"kv_budget_tokens": 10, "max_sequences": 1})
    rig.engine.gate.set()
    assert (await rig.call({**BODY, "prompt": [1] * 500, "n": 1})).status == 200
