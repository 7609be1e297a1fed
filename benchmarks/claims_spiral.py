"""Preemption under a load that grows beyond what the KV cache holds: when it starts, what it costs, whether it "
"feeds itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from claims_base import (
    RTX4090,
    Answer,
    Card,
    Interval,
    Lengths,
    Picture,
    Report,
    Size,
    Traffic,
    capacity,
    change,
    interval,
    table,
    useful_rate,
)
from claims_clients import own_folder, own_rate

from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

PLENTY_OF_BLOCKS = 200_000
#: a prompt token three times as dear beside a decode step: a slower card, a larger model
DEAR = replace(RTX4090, times=replace(RTX4090.times, per_prefill_token=3 * RTX4090.times.per_prefill_token))
LONG_ANSWERS = Traffic(output=Lengths(1500, 0.5, 3500))
LONG_PROMPTS = Traffic(prompt=Lengths(1200, 0.5, 3500))
WHOLE, CHUNK = "the whole prompt fits (default)", "its first chunk fits"
LOADS = (0.6, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0)


def _run(card: Card, load: Workload, **settings: Any) -> Outcome:
    return simulate(load, card.config(**settings), card.times)


@dataclass(frozen=True)
class Pressed:
    """One run; `gap`: the share of (TPOT p99 - p50) that is gone with KV blocks for all."""

    useful: float
    preempted: float
    again: float
    kv: float
    busy: float
    p50: float
    p99: float
    gap: float


def _pressed(load: Workload, card: Card = RTX4090, **settings: Any) -> Pressed:
    out = _run(card, load, **settings)
    easy = _run(replace(card, blocks=PLENTY_OF_BLOCKS), load, **settings)
    p50, p99 = np.nanpercentile(out.tpot, (50, 99))
    c = out.counters
    gap = float(np.clip((p99 - np.nanpercentile(easy.tpot, 99)) / (p99 - p50), 0.0, 1.0))
    return Pressed(
        useful_rate(out),
        c.preemptions / len(load),
        c.recomputed_tokens / c.prefill_tokens,
        c.mean_kv_usage,
        c.busy_seconds / (c.end_seconds - float(load.arrival[0])),
        float(p50),
        float(p99),
        gap,
    )


Runs = Mapping[float, list[Pressed]]
ByCount = Mapping[int, list[Pressed]]
Named = Mapping[str, list[Pressed]]


def _of(runs: Sequence[Pressed], name: str) -> Interval:
    return interval(getattr(r, name) for r in runs)


def spiral(size: Size) -> Report:
    limit = capacity(RTX4090, Traffic(), size)

    def runs(load: float, **settings: Any) -> list[Pressed]:
        return [_pressed(Traffic(load * limit).load(s, size.requests), **settings) for s in range(size.seeds)]

    def waiting(traffic: Traffic, **settings: Any) -> list[Pressed]:
        return [_pressed(traffic.load(s, size.requests), **settings) for s in range(size.seeds)]

    by_load = {x: runs(x) for x in ((0.6, 1.0, 2.0) if size.cheap else LOADS)}
    sequences = (64, 80, 256) if size.cheap else (48, 64, 80, 96, 128, 256)
    fewer = {n: waiting(Traffic(), max_num_seqs=n) for n in sequences}
    dear = {n: waiting(Traffic(), card=DEAR, max_num_seqs=n) for n in sequences}
    long = {n: waiting(LONG_ANSWERS, max_num_seqs=n) for n in ((24, 40, 256) if size.cheap else (24, 32, 40, 64, 256))}
    gate = {
        name: waiting(LONG_PROMPTS, reserve_full_prompt=whole, max_num_batched_tokens=256)
        for name, whole in ((WHOLE, True), (CHUNK, False))
    }
    after = _after_a_burst(limit, size)
    return Report(
        (
            _table(
                "RTX 4090, 256 sequences, ShareGPT's mean lengths; load 1 = what leaves when all wait", "load", by_load
            ),
            _table("all waiting", "max_num_seqs", fewer),
            _table("the same where a prompt token costs three times as much", "max_num_seqs", dear),
            _table("answers of mean 1500, all waiting", "max_num_seqs", long),
            _table("prompts of mean 1200, budget 256, all waiting", "admission when", gate),
            f"  after a burst (load 2, then 0.6): preemptions/request of the last quarter {after}",
        ),
        (*_start_and_tail(by_load, long), _feeds_itself(by_load, (fewer, dear, long), gate, after)),
        () if size.cheap else (_picture(by_load),),
    )


def _table(title: str, what: str, runs: Runs | ByCount | Named) -> str:
    columns = {
        "useful": "useful tokens/s", "preempted": "preemptions/request", "again": "recomputed/prefill", "kv": "KV use",
        "busy": "busy", "p50": "TPOT p50 (s)", "p99": "p99", "gap": "of the gap by preemption",
    }  # fmt: skip
    rows = [(str(x), *(_of(r, name) for name in columns)) for x, r in runs.items()]
    return table(title, (what, *columns.values()), rows)


def _start_and_tail(by_load: Runs, long: ByCount) -> tuple[Answer, Answer]:
    first = next((x for x in by_load if _of(by_load[x], "preempted").mean > 0.01), 2.0)
    kv = _of(by_load[first], "kv")
    usual, many, few = by_load[2.0], long[256], long[min(long)]
    ratio, long_ratio = (interval(r.p99 / r.p50 for r in runs) for runs in (usual, many))
    rise = interval(b.p99 / a.p99 for a, b in zip(few, many, strict=True))
    return (
        Answer(
            "preempt-start",
            "contradicted" if kv.high < 0.88 else "holds",
            f"it starts at load {first:g}, where KV use is {kv.share()} on average",
        ),
        Answer(
            "preempt-tail",
            "depends",
            f"load 2: x {ratio.mean:.1f}, {_of(usual, 'gap').share()} of the gap by preemption; with answers of "
            "1500 tokens "
            f"x {long_ratio.mean:.1f}, {_of(many, 'gap').share()}, and p99 x {rise.mean:.0f} from {min(long)} to 256 "
            "sequences",
        ),
    )


def _feeds_itself(by_load: Runs, by_count: tuple[ByCount, ByCount, ByCount], gate: Named, after: Interval) -> Answer:
    def against(runs: Sequence[Pressed], others: Sequence[Pressed]) -> Interval:
        return change([r.useful for r in runs], [r.useful for r in others])

    flat = against(by_load[2.0], by_load[1.0])
    gains = []
    for runs in by_count:
        best = max(runs, key=lambda n: _of(runs[n], "useful").mean)
        gains.append(f"{against(runs[best], runs[256]).signed()} ({best} sequences)")
    again, chunk = _of(by_load[2.0], "again"), against(gate[CHUNK], gate[WHOLE])
    return Answer(
        "spiral",
        "depends" if flat.high > -0.1 and after.mean < 0.05 else "holds",
        f"load 1 -> 2: useful tokens/s {flat.signed()} while {again.share()} of prefill is repeated; the best "
        f"max_num_seqs for 256: {gains[0]}, where prefill costs three times as much {gains[1]}, with answers of 1500 "
        f"tokens {gains[2]}; admitting by the chunk {chunk.signed()}; {after} preemptions a request after a burst"
        + _own_runs(),
    )


def _own_runs() -> str:
    if not own_folder():
        return ""
    many, few = (own_rate(f"b160_s{n}_apc_c0") for n in (64, 16))
    return f"; one pair of own runs of vLLM on a CPU, 16 sequences for 64: {few / many - 1:+.0%}"


def _after_a_burst(limit: float, size: Size) -> Interval:
    """Preemptions per request of the last quarter: a quarter of the requests come at load 2, the others at 0.6."""
    seen = []
    for s in range(size.seeds):
        load = Traffic(1.0).load(s, size.requests)
        gaps = np.diff(load.arrival, prepend=0.0)
        slow = np.arange(size.requests) >= size.requests // 4
        arrival = np.cumsum(gaps / np.where(slow, 0.6 * limit, 2.0 * limit))
        out = _run(RTX4090, replace(load, arrival=arrival))
        seen.append(float(out.preemptions[-size.requests // 4 :].mean()))
    return interval(seen)


def _picture(runs: Runs) -> Picture:
    x = tuple(runs)
    peak = max(_of(r, "useful").mean for r in runs.values())
    useful = [_of(r, "useful") for r in runs.values()]
    again = [_of(r, "again") for r in runs.values()]
    return Picture(
        "spiral",
        "Over the cliff: work is repeated, the throughput stays",
        "offered load (1 = capacity)",
        "%",
        x,
        (
            (
                "useful tokens/s, of the highest",
                tuple(100 * i.mean / peak for i in useful),
                tuple(100 * i.half / peak for i in useful),
            ),
            ("prefill that is repeated", tuple(100 * i.mean for i in again), tuple(100 * i.half for i in again)),
        ),
    )
