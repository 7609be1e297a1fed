"""Scripted scenarios for a live vLLM: settings, requests, when each joins the queue and when its client leaves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.simulate.config import EngineConfig

BLOCK_SIZE = 32
#: what the server is started with; a scenario may not ask for more
SERVER = EngineConfig(400, max_num_seqs=64, max_num_batched_tokens=2048, block_size=BLOCK_SIZE, max_model_len=2048)
#: token ids of the tiny model's letters
LETTERS = range(256)


@dataclass(frozen=True)
class Asked:
    """One request. `prefix`: it begins with that many tokens of text number `text`. `call`: the scheduling decision
    before which it joins the queue (0: at once). It leaves after `abort_tokens` tokens or before call `abort_call`."""

    prompt: int
    output: int
    call: int = 0
    text: int = 0
    prefix: int = 0
    priority: int = 0
    abort_tokens: int | None = None
    abort_call: int | None = None

    @property
    def blocks(self) -> list[int]:
        """Numbers of the shared full blocks that it begins with."""
        return [1000 * self.text + k for k in range(min(self.prefix, self.prompt) // BLOCK_SIZE)]

    def ids(self, number: int) -> list[int]:
        """Its prompt: the same letters for the same number and text."""
        shared = random.Random(f"text {self.text}").choices(LETTERS, k=self.prefix)
        return (shared + random.Random(f"own {number}").choices(LETTERS, k=self.prompt))[: self.prompt]


@dataclass(frozen=True)
class Scenario:
    name: str
    requests: Sequence[Asked]
    changes: dict[str, Any] = field(default_factory=dict)

    def config(self, *, async_scheduling: bool) -> EngineConfig:
        return replace(SERVER, async_scheduling=async_scheduling, **self.changes)


def some(name: str, count: int, prompts: tuple[int, int], outputs: tuple[int, int], every: int = 0) -> list[Asked]:
    """Lengths drawn from ranges, one more request each `every` calls."""
    chance = random.Random(name)
    return [Asked(chance.randint(*prompts), chance.randint(*outputs), every * k) for k in range(count)]


def _families(name: str, count: int, families: int, prefix: int, every: int) -> list[Asked]:
    """Requests that share one of several beginnings."""
    chance = random.Random(name)
    return [
        Asked(prefix + chance.randint(1, 100), chance.randint(2, 40), every * k, 1 + chance.randrange(families), prefix)
        for k in range(count)
    ]


def _prioritised(name: str, count: int, every: int) -> list[Asked]:
    chance = random.Random(name)
    return [replace(r, priority=chance.randint(0, 2)) for r in some(name, count, (20, 120), (30, 90), every)]


def _leaving(name: str, count: int, every: int) -> list[Asked]:
    """Every second client leaves: by tokens, or at a call (running, waiting or preempted)."""
    chance = random.Random(name)
    out = []
    for k, r in enumerate(some(name, count, (20, 150), (20, 80), every)):
        if k % 4 == 1:
            r = replace(r, abort_tokens=chance.randint(1, r.output - 1))
        elif k % 4 == 3:
            r = replace(r, abort_call=r.call + chance.randint(1, 60))
        out.append(r)
    return out


SCENARIOS = (
    Scenario("plain", some("plain", 12, (1, 300), (1, 60))),
    Scenario("one_at_a_time", some("one", 5, (5, 100), (1, 20), 3), {"max_num_seqs": 1}),
    Scenario("four_at_a_time", some("four", 14, (5, 200), (1, 50), 2), {"max_num_seqs": 4}),
    Scenario("fewer_active_than_slots", some("active", 10, (5, 90), (5, 40)), {"max_num_active_seqs": 3}),
    Scenario("small_budget", some("budget", 10, (100, 600), (5, 40), 4), {"max_num_batched_tokens": 64}),
    Scenario(
        "budget_below_the_batch",
        some("tiny budget", 16, (3, 40), (5, 30)),
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},
    ),
    Scenario(
        "whole_prompts_only",
        some("unchunked", 10, (50, 500), (5, 40)),
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
    ),
    Scenario("long_prefill", some("long", 9, (20, 500), (10, 40), 5), {"long_prefill_token_threshold": 48}),
    Scenario(
        "long_prefill_fair_share",
        some("fair", 9, (100, 700), (10, 40), 3),
        {"long_prefill_token_threshold": 16, "long_prefill_token_threshold_adaptive": True,
         "max_num_batched_tokens": 256},
    ),
    Scenario(
        "long_prefill_alone",
        [Asked(900, 10), Asked(700, 10, 60)],
        {"long_prefill_token_threshold": 48, "max_num_batched_tokens": 512},
    ),
    Scenario(
        "storm",
        some("storm", 14, (5, 40), (100, 200), 1),
        {"num_gpu_blocks": 16, "enable_prefix_caching": False},
    ),
    Scenario("storm_with_hits", some("storm hits", 14, (5, 40), (100, 200), 1), {"num_gpu_blocks": 16}),
    Scenario(
        "storm_in_chunks",
        some("storm chunks", 12, (150, 400), (60, 160), 2),
        {"num_gpu_blocks": 24, "max_num_batched_tokens": 96},
    ),
    Scenario("watermark", some("watermark", 14, (20, 120), (60, 160), 2), {"num_gpu_blocks": 20, "watermark": 0.1}),
    Scenario(
        "no_gate",
        some("gate", 8, (200, 600), (20, 60), 1),
        {"num_gpu_blocks": 33, "max_num_batched_tokens": 128, "reserve_full_prompt": False},
    ),
    Scenario("head_of_line", [Asked(40, 90), Asked(800, 5, 2), *some("head", 6, (10, 60), (5, 30), 1)],
             {"num_gpu_blocks": 27}),
    Scenario("shared_beginnings", _families("families", 16, 2, 256, 3)),
    Scenario("eviction", _families("eviction", 30, 5, 160, 7), {"num_gpu_blocks": 24, "max_num_seqs": 4}),
    Scenario("whole_prompt_cached", [Asked(256, 5, 12 * k, 1, 256) for k in range(4)]),
    Scenario("cached_while_others_fill_it", [Asked(300, 5, k, 1, 288) for k in range(4)],
             {"max_num_batched_tokens": 64}),
    Scenario("priority", _prioritised("priority", 12, 4), {"policy": "priority", "max_num_seqs": 4}),
    Scenario(
        "priority_storm",
        _prioritised("priority storm", 14, 3),
        {"policy": "priority", "num_gpu_blocks": 14, "enable_prefix_caching": False},
    ),
    Scenario("priority_storm_with_hits", _prioritised("storm 2", 14, 3), {"policy": "priority", "num_gpu_blocks": 14}),
    Scenario("clients_leave", _leaving("leave", 20, 2), {"max_num_seqs": 6}),
    Scenario("clients_leave_a_storm", _leaving("leave storm", 20, 2), {"num_gpu_blocks": 16}),
    Scenario("pauses", some("pauses", 8, (10, 200), (1, 20), 40)),
)  # fmt: skip


@dataclass(frozen=True)
class Stroll:
    """Free arrivals in real time (`rate` per second): every fourth client hangs up, every second shares a beginning."""

    name: str
    num_gpu_blocks: int
    rate: float = 25.0
    count: int = 60

    def config(self, *, async_scheduling: bool) -> EngineConfig:
        return replace(SERVER, num_gpu_blocks=self.num_gpu_blocks, async_scheduling=async_scheduling)

    @property
    def requests(self) -> list[Asked]:
        chance = random.Random(self.name)
        out = []
        for k, r in enumerate(some(self.name, self.count, (5, 250), (5, 150))):
            if k % 2:
                r = replace(r, prompt=r.prompt + 128, text=1, prefix=128)
            if k % 4 == 3:
                r = replace(r, abort_tokens=chance.randint(1, r.output))
            out.append(r)
        return out


STROLLS = (Stroll("stroll", 400), Stroll("stroll_among_few_blocks", 24))


def drawn(seed: int) -> Scenario:
    """Any settings with any load: few blocks, shared beginnings, priorities, clients that leave."""
    chance = random.Random(seed)
    longest = chance.choice((60, 200, 600))
    answers = chance.choice((10, 60, 150))
    seqs = chance.choice((1, 2, 4, 8, 16, 64))
    chunked = chance.random() < 0.8
    changes = {
        "num_gpu_blocks": 2 + (longest + 160 + answers) // BLOCK_SIZE + chance.choice((1, 2, 5, 10, 40)),
        "max_num_seqs": seqs,
        "max_num_active_seqs": chance.choice((None, None, 1, min(3, seqs))),
        "max_num_batched_tokens": max(seqs, chance.choice((16, 64, 200, 2048))) if chunked else 2048,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": chance.random() < 0.6,
        "long_prefill_token_threshold": chance.choice((0, 0, 10, 50)),
        "long_prefill_token_threshold_adaptive": chance.random() < 0.5,
        "policy": chance.choice(("fcfs", "fcfs", "priority")),
        "watermark": chance.choice((0.0, 0.0, 0.05, 0.3)),
        "reserve_full_prompt": chance.random() < 0.8,
    }
    return Scenario(f"drawn_{seed}", [_any(chance, k, longest, answers) for k in range(chance.randint(2, 24))], changes)


def _any(chance: random.Random, k: int, longest: int, answers: int) -> Asked:
    text = chance.choice((0, 0, 1, 2, 3))
    prefix = 32 * text + 64 if text else 0
    asked = Asked(
        prefix + chance.randint(0 if text else 1, longest),
        chance.randint(1, answers),
        chance.choice((0, k, 3 * k, 20 * k)),
        text,
        prefix,
        chance.randint(0, 2),
    )
    leaves = chance.random()
    if leaves < 0.15:
        return replace(asked, abort_tokens=chance.randint(1, asked.output))
    if leaves < 0.3:
        return replace(asked, abort_call=asked.call + chance.randint(1, 80))
    return asked
