"""The decisions that a live vLLM 0.32 took (recorded by `test_against_vllm.py`) are the model's, without vLLM."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulate.replay import Line, compare, lengths_of
from simulate.scenarios import SCENARIOS, STROLLS, Scenario, Stroll
from simulate.test_against_vllm import RECORDED
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

MODES = ("sync", "async")
#: each step takes one second, whatever it computes
TICK = StepTimes(fixed=1.0, per_prefill_token=0.0, per_decode_seq=0.0, per_kv_token=0.0)


@cache
def recorded() -> dict[str, list[Line]]:
    return dict(json.loads(gzip.decompress(RECORDED.read_bytes())))


def lines_of(scenario: Scenario | Stroll, mode: str) -> tuple[list[Line], EngineConfig]:
    return recorded()[f"{scenario.name}_{mode}"], scenario.config(async_scheduling=mode == "async")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", (*SCENARIOS, *STROLLS), ids=lambda s: s.name)
def test_the_model_decides_as_vllm_did(scenario: Scenario | Stroll, mode: str) -> None:
    lines, config = lines_of(scenario, mode)
    compare(lines, scenario.requests, config)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("storm", {"num_gpu_blocks": 17}), ("watermark", {"watermark": 0.0}),
        ("no_gate", {"reserve_full_prompt": True}), ("fewer_active_than_slots", {"max_num_active_seqs": 4}),
        ("four_at_a_time", {"max_num_seqs": 5}), ("small_budget", {"max_num_batched_tokens": 65}),
        ("storm_with_hits", {"enable_prefix_caching": False}), ("priority_storm", {"policy": "fcfs"}),
        ("long_prefill", {"long_prefill_token_threshold": 0}), ("plain", {"async_scheduling": True}),
        ("whole_prompts_only", {"enable_chunked_prefill": True}),
        ("long_prefill_fair_share", {"long_prefill_token_threshold_adaptive": False}), ("storm", {"block_size": 16}),
    ],
)  # fmt: skip
def test_another_setting_is_told_apart(name: str, change: dict[str, object]) -> None:
    scenario = next(s for s in SCENARIOS if s.name == name)
    lines, config = lines_of(scenario, "sync")
    with pytest.raises((AssertionError, KeyError)):
        compare(lines, scenario.requests, replace(config, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_fast_loop_gives_each_token_at_vllms_step(scenario: Scenario, mode: str) -> None:
    """`simulate` jumps over steps that only decode."""
    lines, config = lines_of(scenario, mode)
    requests = scenario.requests
    if any(r.abort_tokens or r.abort_call for r in requests):
        pytest.skip("a client that leaves before a call has no time at which it does")
    clock = clock_of(lines, mode)
    joined = {who: line["call"] for line in lines for _, who in line["events"]}
    if any(call and clock[call - 1] == clock[max(0, call - 2)] and busy(lines, call) for call in joined.values()):
        pytest.skip("a request joins between two decisions of the same time")
    load = Workload.of(
        [clock[joined[k] - 1] if joined[k] else 0.0 for k in range(len(requests))],
        [r.prompt for r in requests],
        lengths_of(lines, requests),
        max_tokens=[r.output for r in requests],
        priority=[r.priority for r in requests],
        chunks=[r.blocks for r in requests],
        chunk_tokens=[config.block_size] * len(requests),
    )
    outcome = simulate(load, config, TICK)
    times: list[list[int]] = [[] for _ in requests]
    for line in lines:
        for who in line["tokens"]:
            times[who].append(clock[line["call"]])
    assert outcome.first.tolist() == [times[i][0] for i in load.order]
    assert outcome.last.tolist() == [times[i][-1] for i in load.order]
    assert outcome.counters.preemptions == sum(len(line["preempted"]) for line in lines)
    at_first = {i: cached for line in lines for i, cached, again in line["admitted"] if not again}
    assert outcome.cached.tolist() == [at_first[i] for i in load.order]


def clock_of(lines: list[Line], mode: str) -> list[int]:
    """Batches computed by the end of each call; asynchronous: a batch is computed in the call after its own."""
    computed = np.cumsum([bool(line["scheduled"]) for line in lines]).tolist()
    return [0, *computed[:-1]] if mode == "async" else computed


def busy(lines: list[Line], call: int) -> bool:
    """Whether any request is there just before `call`."""
    before = lines[:call]
    return sum(len(line["events"]) for line in before) > sum(len(line["finished"]) for line in before)
