"""The requests of `storm.py` and its 64 clients: four kinds of prompts, each with its own output lengths."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from trimtab.middleware.features import row_of
from trimtab.middleware.wire import understand

CLIENTS = 64
#: what every client asks for: larger than any answer, as users do
MAX_TOKENS = 1024
LONGEST = 1000
#: first words of a prompt -> median output tokens. The words tell the kind; within a kind the length is chance
KINDS = {
    "classify this ticket :": 24,
    "translate to french :": 80,
    "explain this code :": 200,
    "write a story on :": 420,
}
#: of the log of the output length within a kind
SIGMA = 0.5
WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]


@dataclass(frozen=True)
class Asked:
    """leave_after_tokens, leave_after_seconds: when its client goes, if before the end."""

    prompt: str
    true_tokens: int
    leave_after_tokens: int | None = None
    leave_after_seconds: float | None = None


@dataclass(frozen=True)
class Seen:
    """What a client saw, seconds from its request. first: to the first token. ending: done | left | what went wrong."""

    ending: str
    tokens: int
    whole_seconds: float
    first_seconds: float | None
    per_token_seconds: float | None
    broken: bool = False


def requests(count: int, seed: int, salt: int, cancel: str = "") -> list[Asked]:
    """The same for the same seed, but for a word in each prompt by `salt`: no run finds another's prefixes cached.

    cancel: "" | "tokens": 30% leave after a random part of their answer | "seconds": 30% leave after up to 4 s,
    wherever their request is by then.
    """
    chance, found = random.Random(seed), []
    kinds = list(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        true = max(4, min(LONGEST, round(chance.lognormvariate(math.log(KINDS[kind]), SIGMA))))
        words = max(4, min(150, round(chance.lognormvariate(math.log(36), 0.6))))  # 4 bytes, so 4 tokens, a word
        prompt = f"{kind} {salt:04d} " + " ".join(chance.choice(WORDS) for _ in range(words))
        leaves, share, patience = chance.random() < 0.3, chance.random(), chance.uniform(0.0, 4.0)
        found.append(Asked(
            prompt, true,
            max(1, int(true * share)) if leaves and cancel == "tokens" else None,
            patience if leaves and cancel == "seconds" else None,
        ))  # fmt: skip
    chance.shuffle(found)
    return found


def log_rows(asked: list[Asked]) -> Iterator[dict[str, Any]]:
    """The lines that the middleware's feature log would have of these requests: its own features, answers whole."""
    for number, one in enumerate(asked):
        request = understand("completions", body_of(one))
        if request is not None:
            yield {
                **row_of(request), "at": float(number), "output_tokens": one.true_tokens, "ending": "stop",
                "cap_tokens": MAX_TOKENS, "model": "tiny",
            }  # fmt: skip


def body_of(asked: Asked) -> dict[str, Any]:
    """No seed: a seeded request that is preempted ends vLLM 0.32's CPU engine."""
    return {"model": "tiny", "prompt": asked.prompt, "max_tokens": MAX_TOKENS, "stream": True}


class Tally:
    """Tokens that reached any client, until the last request was sent: the load is full until then."""

    def __init__(self) -> None:
        self.tokens = self.sent_again = 0
        self.began = time.monotonic()
        self.full_load_tokens_per_second = math.nan

    @property
    def full_load(self) -> bool:
        return math.isnan(self.full_load_tokens_per_second)

    def sent_last(self) -> None:
        self.full_load_tokens_per_second = self.tokens / (time.monotonic() - self.began)


async def ask(session: aiohttp.ClientSession, asked: Asked, tally: Tally) -> Seen:
    """One request as a stream. One whose connection breaks before an answer is sent again, as HTTP clients do."""
    seen = await _ask(session, asked, tally)
    if seen.broken:
        tally.sent_again += 1
        seen = await _ask(session, asked, tally)
    return seen


async def _ask(session: aiohttp.ClientSession, asked: Asked, tally: Tally) -> Seen:
    began = time.monotonic()
    first = last = None
    events, ending, broken = 0, "failed", False
    try:
        async with asyncio.timeout(asked.leave_after_seconds):
            headers = {"x-true-tokens": str(asked.true_tokens)}
            async with session.post("/v1/completions", json=body_of(asked), headers=headers) as response:
                if response.status != 200:
                    return Seen(f"http {response.status}", 0, time.monotonic() - began, None, None)
                async for part in response.content.iter_any():
                    last = time.monotonic()
                    first = last if first is None else first
                    found = part.count(b"data: ")
                    events += found
                    tally.tokens += found
                    if b"[DONE]" in part:
                        ending = "done"
                    elif asked.leave_after_tokens is not None and events >= asked.leave_after_tokens:
                        ending = "left"
                        response.close()
                        break
    except TimeoutError:
        ending = "left"
    except (aiohttp.ClientError, OSError) as error:
        ending, broken = f"{type(error).__name__}: {error}", first is None
    tokens = asked.true_tokens if ending == "done" else events
    per_token = (last - first) / max(1, tokens - 1) if first is not None and last is not None else None
    whole = time.monotonic() - began
    return Seen(ending, tokens, whole, None if first is None else first - began, per_token, broken)


async def storm(session: aiohttp.ClientSession, asked: list[Asked], tally: Tally) -> dict[str, Any]:
    """CLIENTS clients, each sends its next request when the last one ended. See `figures`."""
    waiting, seen = list(reversed(asked)), list[Seen]()

    async def client() -> None:
        while waiting:
            mine = waiting.pop()
            if not waiting:
                tally.sent_last()
            seen.append(await ask(session, mine, tally))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seconds = time.monotonic() - tally.began
    own = {"full_load_tokens_per_second": tally.full_load_tokens_per_second, "sent_again": tally.sent_again}
    return {**own, **figures(seconds, seen)}


def figures(seconds: float, seen: list[Seen]) -> dict[str, Any]:
    """Of one run. Latencies are of answers that came whole; TTFT also of those left behind after their first token."""
    done = [s for s in seen if s.ending == "done"]
    first = [s.first_seconds for s in seen if s.first_seconds is not None]
    per_token = [s.per_token_seconds for s in done if s.per_token_seconds is not None and s.tokens > 1]
    return {
        "seconds": seconds,
        "done": len(done),
        "left": sum(s.ending == "left" for s in seen),
        "failed": sum(s.ending not in ("done", "left") for s in seen),
        "failures": dict(Counter(s.ending for s in seen if s.ending not in ("done", "left"))),
        "useful_tokens_per_second": sum(s.tokens for s in done) / seconds,
        "ttft_p50_seconds": at(first, 0.5),
        "ttft_p99_seconds": at(first, 0.99),
        "tpot_p50_seconds": at(per_token, 0.5),
        "tpot_p99_seconds": at(per_token, 0.99),
        "e2e_p50_seconds": at([s.whole_seconds for s in done], 0.5),
        "e2e_p99_seconds": at([s.whole_seconds for s in done], 0.99),
    }


def at(values: list[float], level: float) -> float:
    """Quantile, linear between neighbours; NaN of nothing."""
    if len(values) < 2:
        return values[0] if values else math.nan
    return statistics.quantiles(values, n=1000, method="inclusive")[max(0, round(level * 1000) - 1)]
