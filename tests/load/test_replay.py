"""Open loop: on time, never delayed, every request accounted for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from trimtab.load.client import Client, ClientOptions, Clock
from trimtab.load.prompt import Prompts
from trimtab.load.records import Record
from trimtab.load.replay import Replay, ReplayOptions
from trimtab.load.trace import Request


def requests(count: int, gap: float, tokens: int = 5) -> list[Request]:
    return [Request(n * gap, 10, tokens, None, 0, None, tokens) for n in range(count)]


async def replay(
    server: Any,
    trace: Sequence[Request],
    stop_after: float | None = None,
    patience: float | None = None,
    **options: Any,
) -> list[Record]:
    out: list[Record] = []
    clock, stop = Clock(), asyncio.Event()
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, stop.set)
    client_options = ClientOptions(url=server.url, model="m", prompts=Prompts("s"), patience_seconds=patience)
    async with Client(client_options, clock) as client:
        await asyncio.wait_for(Replay(client, ReplayOptions(**options), out.append, clock, stop).run(trace), 10)
    return sorted(out, key=lambda r: r.number)


async def test_requests_leave_at_their_times_though_nothing_is_answered(server: Any) -> None:
    server.mode = "hang"
    records = await replay(server, requests(10, 0.02), patience=0.3)
    assert Counter(r.ending for r in records) == {"gave_up": 10}
    start = records[0].arrival_at
    for record in records:
        assert record.sent_at is not None
        assert record.arrival_at - start == pytest.approx(record.number * 0.02, abs=1e-6)
        assert 0 <= record.sent_at - record.arrival_at < 0.2


async def test_beyond_the_cap_requests_are_dropped_and_counted(server: Any) -> None:
    server.mode = "hang"
    records = await replay(server, requests(8, 0.001), patience=0.2, max_in_flight=3)
    assert [r.ending for r in records] == ["gave_up"] * 3 + ["not_sent"] * 5
    assert records[-1].sent_at is None and records[-1].cause == "max_in_flight" and records[-1].tokens == 0


async def test_clients_wait_for_their_answers_and_begin_the_trace_again(server: Any) -> None:
    records = await replay(server, requests(5, 0.1), clients=2)
    assert len(records) > 5 and [r.number for r in records] == list(range(len(records)))
    assert all(r.ending == "ok" for r in records)
    for record in records:
        others = [r for r in records if r.number != record.number and r.arrival_at <= record.arrival_at < r.ended_at]
        assert len(others) <= 1


async def test_clients_that_get_no_answer_send_no_more(server: Any) -> None:
    server.mode = "hang"
    records = await replay(server, requests(5, 0.1), clients=3, drain_seconds=0.0)
    assert [r.ending for r in records] == ["unfinished"] * 3


async def test_a_stop_ends_everything_and_says_unfinished(server: Any) -> None:
    server.mode = "stall"
    records = await replay(server, requests(5, 0.05), stop_after=0.12)
    assert [r.ending for r in records] == ["unfinished"] * 3 and {r.tokens for r in records} == {2}


async def test_the_drain_time_bounds_the_wait_for_open_requests(server: Any) -> None:
    server.mode = "hang"
    records = await replay(server, requests(2, 0.0), drain_seconds=0.1)
    assert [(r.ending, r.cause) for r in records] == [("unfinished", "run_ended")] * 2


async def test_no_drain_time_still_leaves_a_record_of_each(server: Any) -> None:
    assert len(await replay(server, requests(3, 0.0), drain_seconds=0.0)) == 3


async def test_the_keepalive_share_is_random_by_seed(server: Any) -> None:
    first, again = [await replay(server, requests(60, 0.0, 1), keepalive_share=0.5, seed=4) for _ in range(2)]
    kept = [r.keepalive for r in first]
    assert kept == [r.keepalive for r in again] and 15 < sum(kept) < 45
    assert all(r.ending == "ok" for r in first + again)


async def test_an_error_of_the_receiver_ends_the_run_and_comes_out(server: Any) -> None:
    def broken(record: Record) -> None:
        raise OSError("disk full")

    clock, stop = Clock(), asyncio.Event()
    async with Client(ClientOptions(url=server.url, model="m", prompts=Prompts("s")), clock) as client:
        run = Replay(client, ReplayOptions(), broken, clock, stop).run(requests(3, 30.0))
        with pytest.raises(OSError, match="disk full"):
            await asyncio.wait_for(run, 5)
