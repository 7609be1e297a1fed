"""How a request ended is told truthfully, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest

from trimtab.errors import TrimtabError
from trimtab.load.client import Client, ClientOptions
from trimtab.load.prompt import Prompts
from trimtab.load.records import Record
from trimtab.load.trace import Request

REQUEST = Request(
    0.0, prompt_tokens=20, output_tokens=6, prefix_group=None, prefix_tokens=0, cancel_after_tokens=None, max_tokens=6
)


async def send(server: Any, request: Request = REQUEST, **options: Any) -> Record:
    async with Client(ClientOptions(url=server.url, model="m", prompts=Prompts("s"), **options)) as client:
        return await asyncio.wait_for(client.send(request, 0, 0.0), 5)


async def test_a_whole_answer_is_ok_with_times_in_order(server: Any) -> None:
    server.token_seconds = 0.002
    record = await send(server)
    assert (record.ending, record.cause, record.tokens) == ("ok", None, 6)
    assert record.sent_at is not None and record.first_token_at is not None and record.last_token_at is not None
    assert record.sent_at <= record.first_token_at < record.last_token_at <= record.ended_at
    assert record.tpot_seconds is not None and record.tpot_seconds >= 0.002


@pytest.mark.parametrize(
    ("mode", "cause", "tokens"),
    [
        ("http500", "http_500", 0),
        ("disconnect", "reset", 0),
        ("abort", "abort", 2),
        ("error", "error_event", 2),
        ("cut", "cut", 2),
        ("stop", "no_finish", 2),
        ("no_done", "no_done", 6),
    ],
)
async def test_each_failure_has_its_cause(server: Any, mode: str, cause: str, tokens: int) -> None:
    server.mode = mode
    record = await send(server)
    assert (record.ending, record.cause, record.tokens) == ("failed", cause, tokens)


async def test_an_empty_200_is_a_failure(server: Any) -> None:
    server.mode = "no_done"
    record = await send(server, replace(REQUEST, output_tokens=0, max_tokens=0))
    assert (record.ending, record.cause) == ("failed", "empty_stream")


async def test_detail_carries_the_servers_words(server: Any) -> None:
    server.mode = "http500"
    assert (await send(server)).detail == "engine dead"


async def test_no_listener_is_a_connect_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        record = await send(type("Nobody", (), {"url": f"http://127.0.0.1:{taken.getsockname()[1]}"}))
    assert (record.ending, record.cause) == ("failed", "connect_error")


async def test_patience_ends_a_wait_for_the_first_token_only(server: Any) -> None:
    server.mode = "hang"
    record = await send(server, patience_seconds=0.05, timeout_seconds=4)
    assert (record.ending, record.cause, record.tokens) == ("gave_up", None, 0)
    server.mode, server.token_seconds = "ok", 0.03
    record = await send(server, patience_seconds=0.1, timeout_seconds=4)
    assert (record.ending, record.tokens) == ("ok", 6)


async def test_timeout_ends_a_stalled_stream_and_a_wait_without_patience(server: Any) -> None:
    server.mode = "stall"
    record = await send(server, patience_seconds=0.05, timeout_seconds=0.15)
    assert (record.ending, record.cause, record.tokens) == ("failed", "timeout", 2)
    server.mode = "hang"
    record = await send(server, timeout_seconds=0.1)
    assert (record.ending, record.cause, record.tokens) == ("failed", "timeout", 0)


async def test_a_planned_cancellation_is_no_failure_and_the_server_sees_it(server: Any) -> None:
    server.token_seconds = 0.01
    request = replace(REQUEST, output_tokens=200, max_tokens=200, cancel_after_tokens=3)
    record = await send(server, request)
    assert record.ending == "cancelled" and 3 <= record.tokens < 10
    for _ in range(100):
        if server.closed:
            break
        await asyncio.sleep(0.01)
    assert server.closed == 1 and server.sent_tokens < 20


async def test_odd_line_breaks_and_escaped_quotes_in_the_text_do_not_tear_events(server: Any) -> None:
    server.text = '\u2028 \u0085 \x0b \x1c data: { "finish_reason":null, \n\n [DONE]'
    record = await send(server)
    assert (record.ending, record.tokens) == ("ok", 6)


async def test_connections_are_fresh_by_default_and_kept_on_request(server: Any) -> None:
    async with Client(ClientOptions(url=server.url + "/v1/", model="m", prompts=Prompts("s"))) as client:
        for number in range(3):
            await client.send(REQUEST, number, 0.0)
        assert len(server.connections) == 3
        server.connections.clear()
        for number in range(3):
            assert (await client.send(REQUEST, number, 0.0, keepalive=True)).keepalive
        assert len(server.connections) == 1


async def test_forced_lengths_pin_both_ends_and_emulated_lengths_keep_max_tokens(server: Any) -> None:
    request = replace(REQUEST, max_tokens=9)
    await send(server, request)
    record = await send(server, request, lengths="emulated")
    forced, emulated = server.bodies
    assert (forced["max_tokens"], forced["min_tokens"], forced["ignore_eos"], forced["stream"]) == (6, 6, True, True)
    assert (emulated["max_tokens"], emulated["vllm_xargs"]) == (9, {"emulated_output_tokens": 6})
    assert "min_tokens" not in emulated and record.max_tokens == 9 and record.tokens == 6


async def test_model_name_comes_from_the_server_or_the_error_says_what_to_do(server: Any) -> None:
    async with Client(ClientOptions(url=server.url, model="", prompts=Prompts("s"))) as client:
        assert await client.model_name() == "fake-model"
    async with Client(ClientOptions(url="http://127.0.0.1:9", model="", prompts=Prompts("s"))) as client:
        with pytest.raises(TrimtabError, match="does not answer") as raised:
            await client.model_name()
    assert "--model" in raised.value.hint
