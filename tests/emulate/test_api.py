"""The HTTP API: vLLM's token limits, errors, streams, cancellation accounting, drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.emulate.faults import Faults

Running = Any  # conftest.Running: with importlib mode it has no importable name
Start = Callable[..., Awaitable[Running]]
PROMPT = "one two three"
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
OVERRIDE = "--override-generation-config"


async def complete(running: Running, path: str = "/v1/completions", **body: Any) -> tuple[int, dict[str, Any]]:
    if path == "/v1/completions":
        body = {"prompt": PROMPT, **body}
    else:
        body = {"messages": [{"role": "user", "content": PROMPT}], **body}
    async with running.http.post(path, json=body) as response:
        return response.status, await response.json()


def planned(tokens: int) -> dict[str, int]:
    return {"emulated_output_tokens": tokens}


async def settle(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not settle")


# --- token limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "path", "body", "tokens", "reason"),
    [
        ((), TEXT, {"vllm_xargs": planned(40)}, 16, "length"),
        ((), TEXT, {"vllm_xargs": planned(7)}, 7, "stop"),
        ((), TEXT, {"vllm_xargs": planned(7), "max_tokens": 7}, 7, "stop"),
        ((), TEXT, {"vllm_xargs": planned(7), "ignore_eos": True, "max_tokens": 9}, 9, "length"),
        ((), TEXT, {"vllm_xargs": planned(7), "min_tokens": 9, "max_tokens": 20}, 10, "stop"),
        ((), TEXT, {"vllm_xargs": planned(7), "min_tokens": 9, "max_tokens": 9}, 9, "length"),
        ((), CHAT, {"vllm_xargs": planned(40)}, 40, "stop"),
        ((), CHAT, {"vllm_xargs": planned(40), "max_tokens": 9, "max_completion_tokens": 5}, 5, "length"),
        (("--max-model-len", "30"), CHAT, {"vllm_xargs": planned(99)}, 25, "length"),
        ((OVERRIDE, '{"max_new_tokens": 6}'), TEXT,
         {"max_tokens": 12, "ignore_eos": True}, 6, "length"),
        ((OVERRIDE, '{"max_new_tokens": 6}'), CHAT, {"ignore_eos": True}, 6, "length"),
        ((OVERRIDE, '{"max_tokens": 6}'), CHAT, {"vllm_xargs": planned(9)}, 9, "stop"),
    ],
)  # fmt: skip
async def test_how_many_tokens_come(
    start: Start, flags: tuple[str, ...], path: str, body: dict[str, Any], tokens: int, reason: str
) -> None:
    running = await start(*flags)
    status, answer = await complete(running, path, **body)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == reason


async def test_natural_lengths_are_drawn_per_prompt_and_repeat(start: Start) -> None:
    lengths = []
    for _ in range(2):
        running = await start(speedup=1000, output_median_tokens=30.0)
        counts = []
        for index in range(6):
            _, answer = await complete(running, prompt=f"{PROMPT} {index}", max_tokens=2000)
            counts.append(answer["usage"]["completion_tokens"])
        lengths.append(counts)
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 3


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"model": "other"}, 404, "NotFoundError", "does not exist"),
        ({"prompt": "w " * 50}, 400, "BadRequestError", "maximum context length is 50"),
        ({"min_tokens": 20}, 400, "BadRequestError", "max_tokens=16, got 20"),
        ({"max_tokens": 0}, 400, "BadRequestError", "at least 1"),
        ({"max_tokens": "many"}, 400, "BadRequestError", "valid integer"),
        ({"n": 2}, 400, "BadRequestError", "n=1"),
        ({"prompt": None}, 400, "BadRequestError", "prompt"),
        ({"vllm_xargs": 3}, 400, "BadRequestError", "vllm_xargs"),
    ],
)
async def test_errors_in_vllms_shape(start: Start, body: dict[str, Any], status: int, kind: str, words: str) -> None:
    running = await start("--max-model-len", "50")
    got, answer = await complete(running, **body)
    assert got == answer["error"]["code"] == status
    assert answer["error"]["type"] == kind
    assert words in answer["error"]["message"]


async def test_a_body_that_is_no_json(start: Start) -> None:
    running = await start()
    async with running.http.post("/v1/completions", data=b"{oops") as response:
        assert response.status == 400


# --- streams ----------------------------------------------------------------------------------------------------------


async def stream(running: Running, path: str, body: dict[str, Any]) -> list[Any]:
    async with running.http.post(path, json={**body, "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        events = (await response.text()).strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


async def test_a_completion_streams_one_event_per_token(start: Start) -> None:
    running = await start()
    body = {"prompt": [1, 2, 3], "vllm_xargs": planned(3), "stream_options": {"include_usage": True}}
    *events, usage = await stream(running, "/v1/completions", body)
    choices = [event["choices"][0] for event in events]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert len("".join(choice["text"] for choice in choices).split()) == 3
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 6,
        "completion_tokens": 3,
        "prompt_tokens_details": None,
    }


async def test_a_chat_stream_opens_with_the_role(start: Start) -> None:
    running = await start()
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "vllm_xargs": planned(2)}
    opening, first, last = await stream(running, "/v1/chat/completions", body)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["finish_reason"] is None
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["choices"][0]["delta"]["content"]


async def test_models_health_version(start: Start) -> None:
    running = await start("--served-model-name", "a", "b", "--max-model-len", "100")
    async with running.http.get("/v1/models") as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["max_model_len"], card["root"]) for card in cards] == [("a", 100, "m"), ("b", 100, "m")]
    async with running.http.get("/health") as response:
        assert response.status == 200
    async with running.http.get("/version") as response:
        assert await response.json() == {"version": "0.32.0-emulated"}


# --- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_disconnect_frees_blocks_and_is_counted_only_as_generated_tokens_and_http(
    start: Start, streaming: bool
) -> None:
    running = await start(speedup=5)
    body = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": streaming}
    if streaming:
        response = await running.http.post("/v1/completions", json=body)
        await response.content.readuntil(b"\n\n")
        response.close()
    else:
        task = asyncio.create_task(running.http.post("/v1/completions", json=body))
        await asyncio.sleep(0.1)
        task.cancel()
    await running.in_flight(0)
    await settle(lambda: running.server.engine.kv_usage == 0)
    assert await running.total("vllm:generation_tokens_total") > 0
    for silent in ("request_success_total", "request_params_n_count", "request_generation_tokens_count",
                   "e2e_request_latency_seconds_count"):  # fmt: skip
        assert await running.total(f"vllm:{silent}") == 0
    assert await running.total("http_requests_total", 'status="2xx"') == 1


async def test_accounting_of_finished_requests(start: Start) -> None:
    running = await start(speedup=200)
    await asyncio.gather(*(complete(running, vllm_xargs=planned(5 + i), max_tokens=100) for i in range(8)))
    await complete(running, vllm_xargs=planned(50), max_tokens=10)
    tokens = sum(5 + i for i in range(8)) + 10
    assert await running.total("vllm:request_success_total", 'finished_reason="stop"') == 8
    assert await running.total("vllm:request_success_total", 'finished_reason="length"') == 1
    assert await running.total("vllm:generation_tokens_total") == tokens
    assert await running.total("vllm:request_generation_tokens_sum") == tokens
    assert await running.total("vllm:request_params_max_tokens_sum") == 810
    assert await running.total("vllm:prompt_tokens_total") == 27
    assert await running.total("vllm:iteration_tokens_total_sum") == 27 + tokens
    assert await running.total("vllm:inter_token_latency_seconds_count") == tokens - 9
    assert await running.total("vllm:num_requests_running") == 0


async def test_preemptions_and_cache_hits_show_in_the_metrics(start: Start) -> None:
    running = await start("--num-gpu-blocks-override", "14", "--block-size", "4", speedup=500)
    prompt = " ".join(map(str, range(10)))
    await asyncio.gather(*(complete(running, prompt=prompt, vllm_xargs=planned(30), max_tokens=99) for _ in range(4)))
    preempted = await running.total("vllm:num_preemptions_total")
    assert preempted == await running.total("vllm:request_num_preemptions_sum") > 0
    assert await running.total("vllm:prefix_cache_queries_total") == 40
    assert await running.total("vllm:prefix_cache_hits_total") == 24
    assert await running.total("vllm:prompt_tokens_by_source_total", "local_cache_hit") == 24
    assert await running.total("vllm:prompt_tokens_by_source_total", "local_compute") == 16


# --- faults, limits, end ----------------------------------------------------------------------------------------------


async def test_a_share_of_requests_fails_when_told_so(start: Start) -> None:
    running = await start(faults=Faults(error_share=0.5), speedup=1000)
    statuses = [(await complete(running, vllm_xargs=planned(1)))[0] for _ in range(40)]
    assert 8 < statuses.count(500) < 32
    assert set(statuses) == {200, 500}


async def test_a_full_queue_answers_503(start: Start) -> None:
    running = await start("--max-num-queued-reqs", "1", speedup=5)
    first = asyncio.create_task(complete(running, vllm_xargs=planned(16)))
    await running.in_flight(1)
    assert (await complete(running))[0] == 503
    assert (await first)[0] == 200
    assert await running.total("vllm:admission_rejections_total", "max_num_queued_reqs") == 1


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest(start: Start) -> None:
    running = await start(speedup=10)
    flight = asyncio.create_task(complete(running, vllm_xargs=planned(16)))
    await running.in_flight(1)
    drain = asyncio.create_task(running.server.engine.drain(5))
    await asyncio.sleep(0)
    status, answer = await complete(running)
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert (await flight)[1]["choices"][0]["finish_reason"] == "stop"
    await asyncio.wait_for(drain, 1)


@pytest.mark.parametrize("drain_seconds", [0, 0.05])
async def test_without_time_to_drain_requests_end_as_aborted_with_status_200(
    start: Start, drain_seconds: float
) -> None:
    running = await start(speedup=1)
    body = {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True}
    events = asyncio.create_task(stream(running, "/v1/completions", body))
    await running.in_flight(1)
    await running.server.engine.drain(drain_seconds)
    assert (await events)[-1]["choices"][0]["finish_reason"] == "abort"
    assert await running.total("vllm:request_success_total", "abort") == 1


async def test_without_log_stats_the_engines_metrics_are_gone(start: Start) -> None:
    running = await start("--disable-log-stats")
    await complete(running)
    samples = await running.metrics()
    assert not any(name.startswith("vllm:") for name in samples)
    assert await running.total("http_requests_total") == 1


async def test_a_defect_in_the_model_is_loud(start: Start) -> None:
    running = await start()
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["message"]))

    def broken() -> None:
        raise ZeroDivisionError

    running.server.engine._stepper.step = broken
    status, answer = await complete(running)
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert told == ["the engine died"]
    async with running.http.get("/health") as response:
        assert response.status == 503
    assert (await complete(running))[0] == 500
