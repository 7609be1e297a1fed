"""What the middleware costs: microseconds added per request and per streamed chunk, and memory over many requests.

    python benchmarks/middleware.py [OUT.json] [--requests N]

A fake engine in this process, no network: each round runs the same requests with and without the middleware, in turn,
and the differences of a round are reported (paired, so that a machine whose speed wanders does not matter much).
Time is the thread's CPU time: what else runs on the machine is left out. A chat of 1,500 characters; a stream of 300
chunks as vLLM 0.32 writes them. Not in it: what vLLM itself pays to write running usage into each chunk.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from trimtab.middleware.app import Middleware
from trimtab.middleware.core import Core
from trimtab.middleware.metrics import Metrics

CHUNKS = 300
ROUNDS = 15
REQUESTS_PER_ROUND = 300
STREAMS_PER_ROUND = 20


def chunk(number: int, usage: bool, last: bool) -> bytes:
    finish = '"length"' if last else "null"
    tail = (
        f',"usage":{{"prompt_tokens":400,"total_tokens":{400 + number},"completion_tokens":{number}}}' if usage else ""
    )
    return (
        '{"id":"chatcmpl-0b5e7b1c4f7e4a0d","object":"chat.completion.chunk","created":1796024998,"model":"tiny",'
        f'"choices":[{{"index":0,"delta":{{"content":" word"}},"logprobs":null,"finish_reason":{finish},'
        f'"token_ids":null}}]{tail}}}'
    ).encode()


def parts(usage: bool) -> list[dict[str, Any]]:
    texts = [b"data: " + chunk(n, usage, n == CHUNKS) + b"\n\n" for n in range(1, CHUNKS + 1)]
    return [{"type": "http.response.body", "body": text, "more_body": True} for text in [*texts, b"data: [DONE]\n\n"]]


WITH, WITHOUT = parts(True), parts(False)
STREAM_START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
JSON_START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
WHOLE = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"' + b"word " * 60 + b'"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
    b'"usage":{"prompt_tokens":400,"total_tokens":460,"completion_tokens":60}}'
)
LAST = {"type": "http.response.body", "body": b"", "more_body": False}


async def engine(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    if b'"stream": true' in body or b'"stream":true' in body:
        await send(STREAM_START)
        for part in WITH if b"continuous_usage_stats" in body else WITHOUT:
            await send(part)
        await send(LAST)
    else:
        await send(JSON_START)
        await send({"type": "http.response.body", "body": WHOLE, "more_body": False})


def request(stream: bool) -> bytes:
    messages = [
        {"role": "system", "content": "You are helpful. " * 20},
        {"role": "user", "content": "Tell me more. " * 80},
    ]
    return json.dumps({"model": "tiny", "messages": messages, "max_tokens": 512, "stream": stream}).encode()


async def nothing(message: Any) -> None:
    return None


async def call(app: Any, raw: bytes, port: int = 1) -> float:
    """CPU seconds of one request."""
    message = {"type": "http.request", "body": raw, "more_body": False}

    async def receive() -> Any:
        return message

    headers = [(b"host", b"x"), (b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode()),
               (b"authorization", b"Bearer abc"), (b"user-agent", b"bench")]  # fmt: skip
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": headers,
        "client": ("a", port),
    }
    start = time.thread_time()
    await app(scope, receive, nothing)
    return time.thread_time() - start


def timed(work: Callable[[], Any], times: int = 200) -> float:
    """CPU microseconds of one call: how fast this machine is now."""
    start = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - start) / times * 1e6


async def paired(app: Any, raw: bytes, number: int) -> tuple[list[float], list[float]]:
    """Per round: (added p50, added p99) in microseconds per request."""
    p50, p99 = [], []
    for _ in range(ROUNDS):
        gc.collect()
        bare = sorted([await call(engine, raw) for _ in range(number)])
        worn = sorted([await call(app, raw) for _ in range(number)])
        p50.append((statistics.median(worn) - statistics.median(bare)) * 1e6)
        p99.append((worn[int(0.99 * number)] - bare[int(0.99 * number)]) * 1e6)
    return p50, p99


def resident_mib() -> float:
    text = Path("/proc/self/statm").read_text() if Path("/proc/self/statm").exists() else ""
    return int(text.split()[1]) * resource.getpagesize() / 2**20 if text else 0.0


async def memory(app: Any, requests: int) -> list[tuple[int, float]]:
    """(requests so far, MiB resident) at ten points; whole answers and streams, each from another port.

    For 5 s a connection counts as kept: that is what grows, with the rate of new connections.
    """
    raws = [request(False), request(True)]
    points = []
    for number in range(requests + 1):
        if number % (requests // 10) == 0 and number:
            gc.collect()
            points.append((number, round(resident_mib(), 1)))
        await call(app, raws[number % 50 == 0], number % 60_000)
    return points


async def measured(requests: int) -> dict[str, Any]:
    core = Core({"POD_NAME": "bench"}, metrics=Metrics(CollectorRegistry()))
    app = Middleware(engine, core)
    whole50, whole99 = await paired(app, request(False), REQUESTS_PER_ROUND)
    stream50, stream99 = await paired(app, request(True), STREAMS_PER_ROUND)
    per_chunk = [(s - w) / CHUNKS for s, w in zip(stream50, whole50, strict=True)]
    per_chunk99 = [(s - w) / CHUNKS for s, w in zip(stream99, whole50, strict=True)]
    points = await memory(app, requests)
    raw = request(False)
    yardstick = min(timed(lambda: json.loads(raw)) for _ in range(50))
    return {
        "json_loads_of_the_request_us": round(yardstick, 1),
        "request_added_us": {"p50": round(statistics.median(whole50), 1), "p99": round(statistics.median(whole99), 1)},
        "chunk_added_us": {
            "p50": round(statistics.median(per_chunk), 2),
            "p99": round(statistics.median(per_chunk99), 2),
        },
        "memory_mib": points,
        "memory_growth_mib": round(points[-1][1] - points[0][1], 1),
    }


def main() -> None:
    arguments = sys.argv[1:]
    requests = int(arguments[arguments.index("--requests") + 1]) if "--requests" in arguments else 200_000
    text = json.dumps(asyncio.run(measured(requests)), indent=1)
    print(text)
    for out in (a for a in arguments if a.endswith(".json")):
        Path(out).write_text(text + "\n")


if __name__ == "__main__":
    main()
