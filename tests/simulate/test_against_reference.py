"""The compiled scheduler against the readable Python one: the same requests, the same steps, the same figures."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.simulate.reference.contract import Prompt, SchedulerLimits
from tests.simulate.reference.cost import StepCost
from tests.simulate.reference.virtual import ClientRequest
from tests.simulate.reference.virtual import simulate as simulate_reference

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import ENDINGS
from trimtab.simulate.workload import NEVER, Workload

# powers of two: sums are exact, so equal means equal
COST = StepCost(fixed_ms=8.0, per_prefill_token_ms=0.25, per_decode_seq_ms=0.5, per_kv_token_ms=0.0)
TIMES = StepTimes(fixed=0.008, per_prefill_token=0.00025, per_decode_seq=0.0005, per_kv_token=0.0)

COUNTED = ("steps", "preemptions", "prefill_tokens", "recomputed_tokens", "generation_tokens", "prefix_cache_hits")


def load_of(seed: int, *, cancelled: float, shared: float, count: int = 120) -> list[ClientRequest]:
    rng = random.Random(seed)
    at, out = 0.0, []
    for number in range(count):
        at += rng.expovariate(40.0)
        prompt = max(1, min(300, int(rng.lognormvariate(3.5, 1.0))))
        output = max(1, min(200, int(rng.lognormvariate(3.0, 1.0))))
        group = rng.randrange(3)
        prefix = 70 if rng.random() < shared else 0
        named = Prompt(prompt + prefix, (("group", group),), prefix) if prefix else Prompt(prompt)
        cancel = rng.randint(1, output) if rng.random() < cancelled else None
        patience = 0.6 if rng.random() < cancelled else None
        limit = max(1, int(output * rng.choice((0.5, 1.0, 2.0))))
        out.append(ClientRequest(str(number), at, named, output, limit, cancel, patience))
    return out


def columns(requests: list[ClientRequest]) -> Workload:
    return Workload.of(
        [r.arrival_seconds for r in requests],
        [r.prompt.length_tokens for r in requests],
        [r.output_tokens for r in requests],
        max_tokens=[r.max_tokens for r in requests],
        cancel_tokens=[r.cancel_after_tokens or 0 for r in requests],
        patience=[NEVER if r.patience_seconds is None else r.patience_seconds for r in requests],
        chunks=[[c[1] for c in r.prompt.chunks] for r in requests],  # type: ignore[index]
        chunk_tokens=[r.prompt.chunk_tokens for r in requests],
    )


def figures(outcome: Outcome) -> list[tuple[object, ...]]:
    names = [ENDINGS[e] for e in outcome.ending]
    times = (outcome.first, outcome.last, outcome.end)
    rows = zip(names, outcome.tokens, outcome.preemptions, outcome.cached, *times, strict=True)
    return [
        (a, int(b), int(c), int(d), *(None if np.isnan(t) else round(float(t), 7) for t in ts))
        for a, b, c, d, *ts in rows
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_gpu_blocks": 45},
        {"max_num_seqs": 4, "num_gpu_blocks": 60},
        {"watermark": 0.1, "num_gpu_blocks": 60},
        {"reserve_full_prompt": False, "num_gpu_blocks": 60},
        {"max_num_batched_tokens": 64, "num_gpu_blocks": 70},
        {"max_num_active_seqs": 6},
    ],
    ids=str,
)
def test_every_request_fares_as_in_the_reference(seed: int, caching: bool, change: dict[str, float]) -> None:
    limits = SchedulerLimits(
        max_num_seqs=32, max_num_batched_tokens=256, num_gpu_blocks=200, enable_prefix_caching=caching
    )
    limits = replace(limits, **change)
    requests = load_of(seed, cancelled=0.2 * (seed % 3), shared=0.5 * (seed % 2))
    expected = simulate_reference(requests, limits, COST)
    config = EngineConfig(
        async_scheduling=False, **{f: getattr(limits, f) for f in SchedulerLimits.__dataclass_fields__}
    )
    outcome = simulate(columns(requests), config, TIMES)
    wanted = []
    for r in expected.records:
        times = (r.first_token_seconds, r.last_token_seconds, r.end_seconds)
        wanted.append(
            (r.ending, r.tokens, r.preemptions, r.cached_tokens, *(t if t is None else round(t, 7) for t in times))
        )
    assert figures(outcome) == wanted
    for name in COUNTED:
        assert getattr(outcome.counters, name) == getattr(expected.counters, name), name


def test_pressure_was_real() -> None:
    """The comparison above means something: this load preempts, recomputes and hits the cache."""
    config = EngineConfig(num_gpu_blocks=45, max_num_seqs=32, max_num_batched_tokens=256, async_scheduling=False)
    counters = simulate(columns(load_of(1, cancelled=0.2, shared=0.5)), config, TIMES).counters
    assert counters.preemptions > 10 and counters.recomputed_tokens > 100 and counters.prefix_cache_hits > 100
