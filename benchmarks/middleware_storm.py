"""A storm on one real vLLM, admission changed hot between rounds: nothing, static limits, and KV budgets by length.

    python benchmarks/middleware_storm.py PORT POLICY_FILE KV_TOKENS [OUT.json]

The vLLM at PORT runs with the middleware, reads POLICY_FILE and has KV_TOKENS tokens of KV cache (blocks x block size):
more clients than fit. Each round is the same requests (64 closed-loop clients, log-normal output lengths) under each
policy in turn, so that the policies are compared within minutes of each other and with no restart in between. `true`
tells the gate each request's real length, `noisy` one that is off by a log-normal factor (sigma 0.5) as a predictor's
would be, `observed` uses only the lengths of finished requests. `passive` is `default` with streams left alone:
`cpu_seconds` (of the API server) of the two tell what exact counting costs.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

CLIENTS = 64
REQUESTS = 192
ROUNDS = 2


def policies(kv_tokens: int) -> dict[str, dict[str, Any]]:
    kv = {"kv_budget_tokens": kv_tokens, "expected_tokens_header": "x-expected-tokens", "deviations": 0}
    found = {"default": {}, **{f"static_{n}": {"max_sequences": n} for n in (16, 24, 32)}}
    found |= {f"{kind}_{risk:g}": {**kv, "risk": risk} for kind, risk in (("true", 1.0), ("true", 1.3), ("noisy", 1.0))}
    found["observed"] = {"kv_budget_tokens": kv_tokens, "estimate": "observed", "deviations": 1.0}
    made: dict[str, dict[str, Any]] = {n: {"admission": {**a, "max_queued": 1000}} for n, a in found.items()}
    return {**made, "passive": {"counting": "passive"}}


def requests() -> list[dict[str, Any]]:
    chance = random.Random(7)
    found = []
    for _ in range(REQUESTS):
        length = min(1200, max(8, int(math.exp(chance.gauss(math.log(120), 0.9)))))
        prompt = "".join(chance.choice("abcdefgh ") for _number in range(chance.randint(20, 200)))
        # no seed: a seeded request that is preempted ends vLLM 0.32's CPU engine ("CPU Generator does not use offset")
        found.append({"model": "tiny", "prompt": prompt, "max_tokens": length, "ignore_eos": True, "stream": True})
    return found


async def metric(session: aiohttp.ClientSession, name: str) -> float:
    async with session.get("/metrics") as response:
        text = await response.text()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def storm(session: aiohttp.ClientSession, name: str, asked: list[dict[str, Any]]) -> dict[str, float]:
    """One round under one policy: useful tokens/s, preemptions, latencies of all requests in seconds."""
    waiting, first, whole = list(reversed(asked)), [], []
    noise = random.Random(11)
    before, cpu = (
        await metric(session, "vllm:num_preemptions_total"),
        await metric(session, "process_cpu_seconds_total"),
    )
    start = time.monotonic()

    async def client() -> None:
        while waiting:
            body = waiting.pop()
            factor = math.exp(noise.gauss(0, 0.5)) if name.startswith("noisy") else 1.0
            headers = {"x-expected-tokens": str(max(1, int(body["max_tokens"] * factor)))}
            began = time.monotonic()
            async with session.post("/v1/completions", json=body, headers=headers) as response:
                response.raise_for_status()
                seen = False
                async for _ in response.content.iter_any():
                    if not seen:
                        first.append(time.monotonic() - began)
                        seen = True
            whole.append(time.monotonic() - began)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seconds = time.monotonic() - start
    return {
        "useful_tokens_per_second": sum(body["max_tokens"] for body in asked) / seconds,
        "preemptions": await metric(session, "vllm:num_preemptions_total") - before,
        "cpu_seconds": await metric(session, "process_cpu_seconds_total") - cpu,
        "p50_seconds": statistics.median(whole),
        "p99_seconds": sorted(whole)[int(0.99 * len(whole))],
        "ttft_p99_seconds": sorted(first)[int(0.99 * len(first))],
    }


async def measured(port: int, policy: Path, kv_tokens: int) -> dict[str, dict[str, float]]:
    asked, rounds = requests(), {name: [] for name in policies(kv_tokens)}  # type: ignore[var-annotated]
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # uvicorn closes after 5 s: no race with it
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout, connector=connector) as session:
        await storm(session, "warm-up", asked[:64])
        order = list(rounds)
        for number in range(ROUNDS):
            for name in order if number % 2 == 0 else reversed(order):
                fresh = policy.with_suffix(".new")
                fresh.write_text(json.dumps({"generation": number, **policies(kv_tokens)[name]}))
                fresh.rename(policy)
                await asyncio.sleep(0.5)
                rounds[name].append(await storm(session, name, asked))
    return {
        name: {key: round(statistics.median(r[key] for r in found), 3) for key in found[0]}
        for name, found in rounds.items()
    }


def main() -> None:
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    result = asyncio.run(measured(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
    base = result["default"]["useful_tokens_per_second"]
    for name, row in result.items():
        print(f"{name:10} {row['useful_tokens_per_second'] / base:5.2f} x default  " + json.dumps(row))
    if len(sys.argv) > 4:
        Path(sys.argv[4]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
