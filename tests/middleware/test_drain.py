"""Drain: who may, what is held until when, what responses carry, what is refused at the end."""

from __future__ import annotations

import asyncio
import json

import pytest

from middleware.asgi import Engine, Rig
from trimtab.middleware.drain import Drain, hold_seconds, may_drain

BODY = {"prompt": "hi", "max_tokens": 10, "stream": True}


@pytest.mark.parametrize(
    ("client", "headers", "token", "host", "allowed"),
    [
        ("127.0.0.1", {}, "", "", True),
        ("::1", {}, "", "", True),
        ("::ffff:127.0.0.1", {}, "", "", True),
        ("10.0.0.9", {}, "", "", False),
        ("10.0.0.9", {}, "", "10.0.0.9", True),
        ("127.0.0.1", {"x-forwarded-for": "1.2.3.4"}, "", "", False),
        ("10.0.0.9", {"x-trimtab-token": "s"}, "s", "", True),
        ("127.0.0.1", {}, "s", "", False),
        ("127.0.0.1", {"x-trimtab-token": "t"}, "s", "", False),
    ],
)
def test_only_the_kubelet_or_this_pod_may_drain(
    client: str, headers: dict[str, str], token: str, host: str, allowed: bool
) -> None:
    assert may_drain(client, headers, token, host) is allowed


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("x", 8.0), ("-1", 8.0), ("1e9", 600.0), ("nan", 8.0)])
def test_the_hold_is_bounded(text: str, seconds: float) -> None:
    assert hold_seconds(text) == seconds


def test_a_kept_connection_counts_until_it_is_closed_or_its_keep_alive_is_over() -> None:
    drain = Drain(keep_alive_seconds=5.0)
    drain.begins("a")
    assert drain.open_connections(0.0) == 1
    drain.ends("a", closed=False, now=1.0)
    assert drain.open_connections(5.9) == 1 and drain.open_connections(6.1) == 0
    drain.begins("b")
    drain.ends("b", closed=True, now=7.0)
    assert drain.open_connections(7.0) == 0


async def drained(rig: Rig, query: str = "seconds=8", client: str = "127.0.0.1") -> asyncio.Task[object]:
    task = asyncio.ensure_future(rig.call(b"", "/trimtab/drain", method="GET", query=query, client=(client, 1)))
    await asyncio.sleep(0.01)
    return task


async def test_from_the_call_on_responses_close_and_the_answer_waits_for_kept_connections() -> None:
    rig = Rig(Engine([[1]]))
    assert "connection" not in (await rig.call(BODY, client=("10.1.1.1", 7))).headers
    hook = await drained(rig)
    assert rig.value("trimtab_mw_draining") == 1
    rig.clock.now += 4
    await asyncio.sleep(0.15)
    assert not hook.done()  # the kept connection is younger than its keep-alive
    answer = await rig.call(BODY, client=("10.1.1.1", 7))
    assert answer.status == 200 and answer.headers["connection"] == "close"
    await asyncio.wait_for(hook, 2)
    refused = await rig.call(BODY, client=("10.1.1.2", 8))
    assert refused.status == 503 and refused.headers["connection"] == "close" and refused.headers["retry-after"] == "1"
    assert len(rig.engine.seen) == 2


async def test_a_request_in_flight_holds_the_answer_up_to_its_bound() -> None:
    rig = Rig(Engine([[1]]))
    rig.engine.gate = asyncio.Event()
    call = asyncio.ensure_future(rig.call(BODY))
    await asyncio.sleep(0.01)
    hook = await drained(rig)
    rig.clock.now += 7
    await asyncio.sleep(0.15)
    assert not hook.done()
    rig.clock.now += 2
    await asyncio.wait_for(hook, 2)
    rig.engine.gate.set()
    assert (await call).status == 200


async def test_others_may_not_drain_and_a_mistaken_drain_can_be_taken_back() -> None:
    rig = Rig(Engine([[1]]))
    answer = await rig.call(b"", "/trimtab/drain", method="POST", client=("10.9.9.9", 1))
    assert answer.status == 403 and rig.core.drain.state == 0
    hook = await drained(rig)
    await rig.call(b"", "/trimtab/drain", method="POST", query="cancel=1", client=("127.0.0.1", 1))
    await asyncio.wait_for(hook, 2)
    assert rig.core.drain.state == 0 and (await rig.call(BODY)).status == 200


async def test_status_tells_what_the_operator_needs() -> None:
    rig = Rig(Engine([[1, 1]]))
    await rig.call(BODY)
    status = json.loads((await rig.call(b"", "/trimtab/status", method="GET")).body)
    assert status["version"] and status["policy"]["generation"] == 0
    assert (status["useful_tokens"], status["reserved_tokens"]) == (2, 10)
    assert (await rig.call(b"", "/trimtab/none", method="GET")).status == 404
