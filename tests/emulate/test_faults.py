"""Faults on command: by variable from the start, over HTTP while it runs, and what a client and a scraper then see."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.emulate.faults import FaultBoard, Faults, distorted
from trimtab.errors import InputError

Running = Any  # conftest.Running: with importlib mode it has no importable name
Start = Callable[..., Awaitable[Running]]
FAULTS = "/emulate/faults"


async def set_faults(running: Running, **faults: Any) -> int:
    async with running.http.post(FAULTS, json=faults) as response:
        return int(response.status)


async def complete(running: Running, tokens: int = 5, **body: Any) -> tuple[int, str]:
    asked = {"prompt": "one two three", "max_tokens": tokens, "ignore_eos": True, **body}
    async with running.http.post("/v1/completions", json=asked) as response:
        return response.status, await response.text()


async def healthy(running: Running) -> int:
    async with running.http.get("/health") as response:
        return int(response.status)


async def test_nobody_can_break_it_over_http_unless_that_was_switched_on(start: Start) -> None:
    running = await start()
    assert await set_faults(running, hang=True) == 404
    assert (await complete(running))[0] == 200


async def test_faults_are_shown_merged_and_checked(start: Start) -> None:
    running = await start(fault_api=True)
    assert await set_faults(running, error_share=0.5) == 200
    assert await set_faults(running, slowdown=3) == 200
    for bad in ({"hang": 1}, {"error_share": 2}, {"fire": True}, {"error_status": 200}):
        assert await set_faults(running, **bad) == 400
    async with running.http.get(FAULTS) as response:
        assert {k: v for k, v in (await response.json()).items() if k in ("error_share", "slowdown", "hang")} == {
            "error_share": 0.5, "slowdown": 3, "hang": False,
        }  # fmt: skip


async def test_a_hanging_engine_is_healthy_and_gives_no_token_until_it_is_freed(start: Start) -> None:
    running = await start(fault_api=True)
    await set_faults(running, hang=True)
    asked = asyncio.create_task(complete(running))
    await running.in_flight(1)
    await asyncio.sleep(0.1)
    assert not asked.done() and await healthy(running) == 200
    await set_faults(running, hang=False)
    assert (await asyncio.wait_for(asked, 5))[0] == 200


async def test_a_share_of_requests_fails_with_the_status_that_was_asked_for(start: Start) -> None:
    running = await start(faults=Faults(error_share=1.0, error_status=503))
    status, text = await complete(running)
    assert status == 503 and "Emulated error" in text
    assert await running.total("vllm:request_success_total") == 0
    assert await running.total("http_requests_total", 'status="5xx"') == 1


async def test_leaked_blocks_stay_taken_after_everybody_has_left(start: Start) -> None:
    running = await start("--num-gpu-blocks-override", "101", fault_api=True)
    await complete(running, prompt="w " * 150)
    assert running.server.engine.kv_usage == 0
    await set_faults(running, leak_share=1.0)
    for _ in range(3):
        await complete(running, prompt="w " * 150)  # ten blocks of sixteen
    assert running.server.engine.kv_usage == pytest.approx(0.3)
    await set_faults(running, leak_share=0.0)
    await complete(running)
    assert await running.total("vllm:kv_cache_usage_perc") == pytest.approx(0.3)


async def test_a_dead_engine_core_fails_what_is_in_flight_and_its_health(start: Start) -> None:
    running = await start(fault_api=True, speedup=1)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    streamed = asyncio.create_task(complete(running, 2000, stream=True))
    whole = asyncio.create_task(complete(running, 2000))
    await running.in_flight(2)
    await set_faults(running, engine_dead=True)
    status, text = await asyncio.wait_for(streamed, 5)
    assert status == 200 and "EngineCore encountered an issue" in text and text.endswith("data: [DONE]\n\n")
    assert (await asyncio.wait_for(whole, 5))[0] == 500
    assert await healthy(running) == 503 and (await complete(running))[0] == 500
    assert await running.total("vllm:request_success_total") == 0


async def test_an_engine_without_work_dies_too(start: Start) -> None:
    running = await start(fault_api=True)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    await set_faults(running, engine_dead=True)
    await asyncio.wait_for(running.server.engine.dead.wait(), 2)
    assert await healthy(running) == 503


async def test_faults_begin_when_they_were_told_to(start: Start) -> None:
    running = await start(faults=Faults(error_share=1.0), faults_after_seconds=0.3)
    assert (await complete(running))[0] == 200
    await asyncio.sleep(0.4)
    assert (await complete(running))[0] == 500


async def test_counters_jump_back_and_gauges_are_no_numbers(start: Start) -> None:
    running = await start(fault_api=True)
    for _ in range(3):
        await complete(running, 7)
    assert await running.total("vllm:generation_tokens_total") == 21
    await set_faults(running, counter_loss=0.5, nan_metrics=True)
    samples = await running.metrics()
    shown = {k: v for k, v in samples.items() if "generation_tokens_total" in k or ("e2e" in k and "count" in k)}
    assert sorted(shown.values()) == [1, 10]
    assert all(math.isnan(v) for k, v in samples.items() if k.startswith("vllm:num_requests_running"))
    assert not any(math.isnan(v) for k, v in samples.items() if k.startswith("http_"))
    await set_faults(running, counter_loss=1.0, nan_metrics=False)
    assert await running.total("vllm:generation_tokens_total") == 0


def test_without_faults_metrics_pass_untouched() -> None:
    assert distorted(b"vllm:x 1\n", Faults()) == b"vllm:x 1\n"


def test_the_process_ends_with_the_code_that_was_asked_for() -> None:
    codes: list[int] = []
    board = FaultBoard(exit_now=codes.append)
    board.set(Faults().changed({"slowdown": 2}, "body"))
    assert codes == []
    board.set(board.now.changed({"exit_code": 137}, "body"))
    assert codes == [137]
    with pytest.raises(InputError, match="exit_code"):
        board.now.changed({"exit_code": 300}, "body")
