"""Swapping a preempted request's KV cache to the host (vLLM v0) against computing it again (v0's default, all "
"of v1)."""

from __future__ import annotations

from dataclasses import replace

from claims_base import (
    A100,
    LLAMA_8B,
    LLAMA_8B_CONFIG,
    RTX4090,
    Answer,
    Card,
    Interval,
    Report,
    Size,
    Traffic,
    change,
    interval,
    modelled,
    table,
    useful_rate,
)

from trimtab.engine.kv.blocks import blocks_for
from trimtab.simulate.config import StepTimes
from trimtab.simulate.simulator import simulate

H100 = Card("H100", 27_600, modelled(LLAMA_8B_CONFIG, "H100"))
#: GB/s: PCIe 4.0 x16 on paper, as large copies reach it, and ever smaller ones (v0 copies each block and layer alone)
BANDWIDTHS = (32.0, 25.0, 8.0, 2.0, 0.5)
CLAIMED_TOKENS = 8000
#: vLLM v0's default of 4 GiB of host memory
SWAP_SPACE_BYTES = 4 * 2**30


def recompute_seconds(times: StepTimes, tokens: int) -> float:
    """Of its prefill alone: the steps run anyway."""
    return times.per_prefill_token * tokens + times.per_pair * tokens**2


def swap_seconds(tokens: int, gigabytes_per_second: float) -> float:
    """Out and in."""
    return 2 * blocks_for(tokens, LLAMA_8B.block_size) * LLAMA_8B.bytes_per_block / (gigabytes_per_second * 1e9)


def swap(size: Size) -> Report:
    cards = (H100, A100, RTX4090)
    recompute = {card.name: recompute_seconds(card.times, CLAIMED_TOKENS) for card in cards}
    even = {name: swap_seconds(CLAIMED_TOKENS, 1.0) / seconds for name, seconds in recompute.items()}
    rows = [
        (n, f"{recompute[n]:.2f}", *(f"{swap_seconds(CLAIMED_TOKENS, b):.3f}" for b in BANDWIDTHS), f"{even[n]:.1f}")
        for n in recompute
    ]
    head = ("card", "recompute", *(f"swap {b:g} GB/s" for b in BANDWIDTHS), "even at GB/s")
    simulated, gains = _simulated(size)
    in_range = {n for n, seconds in recompute.items() if 0.2 <= seconds <= 0.4}
    return Report(
        (table(f"Seconds for {CLAIMED_TOKENS:,} tokens", head, rows), simulated),
        (
            Answer(
                "prefill-8000",
                "depends" if in_range else "contradicted",
                ", ".join(f"{n} {seconds:.2f} s" for n, seconds in recompute.items()),
            ),
            Answer(
                "swap",
                "depends",
                f"even at {even[A100.name]:.1f} GB/s on an A100, {even[H100.name]:.1f} on an H100; simulated on an "
                f"RTX 4090: {gains[25.0].signed(1)} useful tokens/s at 25 GB/s, {gains[0.5].signed(1)} at 0.5",
            ),
        ),
    )


def _simulated(size: Size) -> tuple[str, dict[float, Interval]]:
    """A table, and useful tokens/s by bandwidth against recomputing."""
    loads = [Traffic().load(s, size.requests) for s in range(size.seeds)]
    config = RTX4090.config(async_scheduling=False)
    swapping = replace(config, preemption="swap", cpu_blocks=SWAP_SPACE_BYTES // LLAMA_8B.bytes_per_block)
    ways = {"recompute": [simulate(load, config, RTX4090.times) for load in loads]}
    used = (25.0, 0.5) if size.cheap else BANDWIDTHS
    for b in used:
        times = replace(RTX4090.times, per_swapped_block=LLAMA_8B.bytes_per_block / (b * 1e9))
        ways[f"swap, {b:g} GB/s"] = [simulate(load, swapping, times) for load in loads]
    rates = {name: [useful_rate(o) for o in outs] for name, outs in ways.items()}
    gains = {name: change(rate, rates["recompute"]) for name, rate in rates.items()}
    rows = [
        (n, gains[n].signed(1), interval(rates[n]), interval(o.counters.preemptions / size.requests for o in ways[n]))
        for n in ways
    ]
    head = ("preemption", "against recompute", "useful tokens/s", "preemptions/request")
    text = table("RTX 4090, all waiting, ShareGPT's mean lengths", head, rows)
    return text, {b: gains[f"swap, {b:g} GB/s"] for b in used}
