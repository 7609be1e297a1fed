"""Figures that others published, from their settings as far as these are known; what is not known is varied and said.

`recompute`: vllm-project/vllm issue 54644. `cliff`: inference-sim/inference-sim pull request 298. `watermark`:
vllm-project/vllm pull request 44594.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import claims_blis as blis
import numpy as np
from claims_base import Answer, Interval, Picture, Report, Size, interval, modelled, table

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.roofline import Json
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Workload

# --- recompute share --------------------------------------------------------------------------------------------------
#: blocks and the share of recomputation at them; at 400 also 623,948 tokens lost, 415 a preemption
PUBLISHED_SHARES = {2800: 0.0, 1600: 0.322, 800: 0.579, 400: 0.788}
PUBLISHED_LOST, PUBLISHED_LOST_PER_PREEMPTION = 623_948, 415
OFFLINE_REQUESTS = 300
#: prompt tokens a request with which 623,948 lost tokens are 78.8% of all prefill
OFFLINE_PROMPT = round(PUBLISHED_LOST * (1 / PUBLISHED_SHARES[400] - 1) / OFFLINE_REQUESTS)
#: no duration changes a count when all wait at the start
ANY_TIMES = StepTimes(0.005, 5e-5, 0.0, 1e-5, 0.0)


@dataclass(frozen=True)
class Offline:
    """What the issue does not say. `spread`: lengths are uniform within mean x (1 ± spread)."""

    max_num_seqs: int = 44
    budget: int = 256
    output: int = 200
    spread: float = 0.9
    whole_prompt: bool = False

    def lost(self, blocks: int, seed: int) -> tuple[float, int, int]:
        """(share of prefill that is recomputation, tokens recomputed, preemptions)."""
        rng = np.random.default_rng(seed)
        prompt, output = (_uniform(rng, mean, self.spread, OFFLINE_REQUESTS) for mean in (OFFLINE_PROMPT, self.output))
        config = EngineConfig(
            blocks,
            self.max_num_seqs,
            max(self.budget, self.max_num_seqs),
            enable_prefix_caching=False,
            reserve_full_prompt=self.whole_prompt,
        )
        counters = simulate(Workload.of(np.zeros(OFFLINE_REQUESTS), prompt, output), config, ANY_TIMES).counters
        return counters.recomputed_tokens / counters.prefill_tokens, counters.recomputed_tokens, counters.preemptions

    def shares(self, size: Size) -> dict[int, Interval]:
        return {b: interval(self.lost(b, s)[0] for s in range(size.seeds)) for b in PUBLISHED_SHARES}


def _uniform(rng: np.random.Generator, mean: float, spread: float, n: int) -> I32:
    values = rng.uniform(mean * (1 - spread), mean * (1 + spread), n)
    scaled: I32 = np.maximum(1, np.rint(values * mean / values.mean())).astype(np.int32)
    return scaled


def _off(shares: dict[int, Interval]) -> float:
    """The largest difference to the published shares."""
    return max(abs(shares[b].mean - published) for b, published in PUBLISHED_SHARES.items())


def recompute(size: Size) -> Report:
    chosen = Offline()
    shares = chosen.shares(size)
    lost = [chosen.lost(400, s) for s in range(size.seeds)]
    tokens, per_preemption = (
        interval([n for _, n, _ in lost]),
        interval([n / p for _, n, p in lost]),
    )
    gated = replace(chosen, whole_prompt=True).shares(size)
    few = Size(size.requests, min(size.seeds, 3))
    around = [
        Offline(seqs, budget, output, spread)
        for seqs, budget, output, spread in product(
            (32, 44, 64, 90, 128), (128, 192, 256, 512, 2048), (150, 200, 250, 300), (0.3, 0.9)
        )
    ]
    if size.cheap:
        around = [replace(chosen, budget=b) for b in (256, 2048)]
    near = [o for o in around if _off(o.shares(few)) <= 0.1]
    best_gated = max(
        replace(o, whole_prompt=True).shares(few)[400].mean for o in (around if size.cheap else around[::5])
    )
    rows = [(b, f"{p:.1%}", shares[b].share(1), gated[b].share(1)) for b, p in PUBLISHED_SHARES.items()]
    tables = (
        table(
            f"recomputed / all prefill tokens: {chosen}",
            ("blocks", "published", "ours", "ours, whole prompt must fit"),
            rows,
        ),
        f"  lost at 400 blocks: {tokens} tokens ({PUBLISHED_LOST:,}), {per_preemption} a preemption "
        f"({PUBLISHED_LOST_PER_PREEMPTION})",
        f"  {len(near)} of {len(around)} other settings stay within 10 points at all four: " + _ranges(near),
        f"  largest share at 400 blocks when the whole prompt must fit: {best_gated:.0%}",
    )
    settings = f"{chosen.max_num_seqs} sequences, a budget of {chosen.budget}, {chosen.output} output tokens"
    figure = (
        f"{' / '.join(f'{i.mean:.1%}' for i in shares.values())}, {tokens.mean:,.0f} tokens lost at 400 (published "
        f"{PUBLISHED_LOST:,}), with {settings}; {gated[400].mean:.0%} at 400 where the whole prompt must fit"
    )
    return Report(
        tables,
        (Answer("published-recompute", "depends" if _off(shares) <= 0.05 else "contradicted", figure),),
        (_recompute_picture(shares, gated),),
    )


def _ranges(near: Sequence[Offline]) -> str:
    if not near:
        return "none"
    parts = {name: sorted({getattr(o, name) for o in near}) for name in ("max_num_seqs", "budget", "output", "spread")}
    return ", ".join(f"{name} {values}" for name, values in parts.items())


def _recompute_picture(shares: dict[int, Interval], gated: dict[int, Interval]) -> Picture:
    x = tuple(sorted(PUBLISHED_SHARES))
    return Picture(
        "recompute",
        "Work thrown away as the KV cache shrinks",
        "KV blocks",
        "recomputed share of prefill (%)",
        tuple(float(b) for b in x),
        (
            ("published (vLLM issue 54644)", tuple(100 * PUBLISHED_SHARES[b] for b in x), ()),
            (
                "ours, admission by the chunk",
                tuple(100 * shares[b].mean for b in x),
                tuple(100 * shares[b].half for b in x),
            ),
            (
                "ours, whole prompt must fit (vLLM today)",
                tuple(100 * gated[b].mean for b in x),
                tuple(100 * gated[b].half for b in x),
            ),
        ),
    )


# --- the cliff --------------------------------------------------------------------------------------------------------
#: preemptions per request, TTFT p99 and E2E p99 in ms: means of three seeds
PUBLISHED_CLIFF = {
    5000: (0.0, 460.6, 3610.9),
    2200: (0.0, 460.6, 3610.9),
    2100: (0.1117, 2174.6, 6193.3),
    2000: (0.51, 3048.0, 7194.8),
}
INSTANCES, CLIFF_REQUESTS, CLIFF_RATE = 4, 200, 2000.0


@dataclass(frozen=True)
class Tail:
    """Preemptions per request; p99 in ms over the requests of all instances."""

    preempted: float
    ttft: float
    e2e: float


def _cliff_load(seed: int) -> tuple[F64, F64, F64]:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / CLIFF_RATE, CLIFF_REQUESTS))
    prompt = np.clip(np.rint(rng.normal(512, 50, CLIFF_REQUESTS)), 256, 768)
    return arrival, prompt, np.clip(np.rint(rng.normal(256, 50, CLIFF_REQUESTS)), 128, 512)


def _tail(ttft: Sequence[F64], e2e: Sequence[F64], preemptions: int) -> Tail:
    p99 = (1000 * float(np.percentile(np.concatenate(values), 99)) for values in (ttft, e2e))
    return Tail(preemptions / CLIFF_REQUESTS, *p99)


def cliff_by_blis(seed: int, blocks: int) -> Tail:
    columns = _cliff_load(seed)
    served = []
    for k in range(INSTANCES):
        arrival, prompt, output = (c[k::INSTANCES] for c in columns)
        served.append(blis.serve(arrival, prompt, output, blocks))
    return _tail([s.ttft for s in served], [s.e2e for s in served], sum(s.preemptions for s in served))


def cliff_by_vllm(seed: int, blocks: int) -> Tail:
    """The same load and step times under vLLM's rules (one more block: vLLM's null block)."""
    columns = _cliff_load(seed)
    config = EngineConfig(blocks + 1, blis.MAX_NUM_SEQS, blis.BUDGET, enable_prefix_caching=False)
    outcomes = []
    for k in range(INSTANCES):
        arrival, prompt, output = (c[k::INSTANCES] for c in columns)
        waits = blis.BEFORE_QUEUE_SECONDS + blis.BEFORE_QUEUE_SECONDS_PER_TOKEN * prompt
        load = Workload.of(arrival + waits, prompt.astype(np.int32), output.astype(np.int32))
        outcomes.append(simulate(load, config, blis.STEP))
    return _tail([o.ttft for o in outcomes], [o.e2e for o in outcomes], sum(o.counters.preemptions for o in outcomes))


def cliff(size: Size) -> Report:
    seeds = range(4 if size.cheap else 20)
    counts = (5000, 2100) if size.cheap else (5000, 2200, 2150, 2100, 2050, 2000)
    ours = {b: [cliff_by_blis(s, b) for s in seeds] for b in counts}
    real = {b: [cliff_by_vllm(s, b) for s in seeds] for b in (*counts, 1500)}
    rows = []
    for b in real:
        for name, tails in (("BLIS", ours.get(b)), ("vLLM", real[b])):
            if tails is not None:
                figures = (interval(getattr(t, f) for t in tails) for f in ("preempted", "ttft", "e2e"))
                rows.append((b, name, *figures, PUBLISHED_CLIFF.get(b, "") if name == "BLIS" else ""))

    def times(tails: dict[int, list[Tail]], blocks: int, name: str = "ttft") -> float:
        return (
            interval(getattr(t, name) for t in tails[blocks]).mean
            / interval(getattr(t, name) for t in tails[5000]).mean
        )

    blis_times, vllm_times = times(ours, 2100), times(real, 2100)
    head = ("blocks", "rules", "preemptions/request", "TTFT p99 (ms)", "E2E p99 (ms)", "published")
    return Report(
        (table(f"200 requests at 2,000/s on 4 instances, {len(seeds)} seeds", head, rows),),
        (
            Answer(
                "published-cliff",
                "contradicted" if vllm_times < 1.1 < 2 < blis_times else "depends",
                f"at 2100 blocks x {blis_times:.1f} by the rules of the simulator that it comes from, x "
                f"{vllm_times:.2f} by "
                f"vLLM's (latency p99 x {times(real, 2100, 'e2e'):.2f}); by vLLM's x {times(real, 1500):.1f} at 1500",
            ),
        ),
    )


# --- watermark --------------------------------------------------------------------------------------------------------
#: watermark: preemptions, output tokens/s
PUBLISHED_WATERMARK = {
    0.0: (1065, 11582),
    0.02: (400, 12134),
    0.05: (187, 12167),
    0.10: (168, 11835),
    0.15: (168, 11635),
}
#: its config.json, as far as it decides sizes
QWEN_7B_CONFIG: Json = {
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18_944,
    "vocab_size": 152_064,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 32_768,
}
#: the fixed part is fitted to the throughput without watermark, the rest is the roofline's
GB200 = replace(modelled(QWEN_7B_CONFIG, "GB200"), fixed=0.0031, per_decode_seq=0.0)
WATERMARK_REQUESTS, CONCURRENCY, WATERMARK_BLOCKS = 450, 128, 299_584 // 16


def _watermark_run(seed: int, watermark: float) -> tuple[float, float]:
    """(preemptions, tokens/s). 128 clients that send the next request when one is answered are the same as all requests
    waiting at the start with 128 sequences.
    """
    rng = np.random.default_rng(seed)
    prompt, output = (
        rng.integers(low, high, WATERMARK_REQUESTS, dtype=np.int32, endpoint=True)
        for low, high in ((800, 1200), (4000, 6000))
    )
    config = EngineConfig(
        WATERMARK_BLOCKS, CONCURRENCY, 16_384, max_model_len=8192, enable_prefix_caching=False, watermark=watermark
    )
    c = simulate(Workload.of(np.zeros(WATERMARK_REQUESTS), prompt, output), config, GB200).counters
    return float(c.preemptions), c.generation_tokens / c.end_seconds


def watermark(size: Size) -> Report:
    seeds = range(2 if size.cheap else size.seeds)
    marks = (0.0, 0.02) if size.cheap else tuple(PUBLISHED_WATERMARK)
    runs = {w: [_watermark_run(s, w) for s in seeds] for w in marks}
    preemptions = {w: interval([p for p, _ in r]) for w, r in runs.items()}
    speed = {w: interval([t for _, t in r]) for w, r in runs.items()}
    rows = [
        (f"{w:g}", PUBLISHED_WATERMARK[w][0], preemptions[w], f"{PUBLISHED_WATERMARK[w][1]:,}", speed[w]) for w in marks
    ]
    error = max(abs(preemptions[w].mean / PUBLISHED_WATERMARK[w][0] - 1) for w in marks)
    gain = {w: speed[w].mean / speed[0.0].mean - 1 for w in marks}
    figure = (
        " / ".join(f"{preemptions[w].mean:.0f}" for w in marks) + f" preemptions; {gain[0.02]:+.1%} tokens/s at 0.02"
    )
    return Report(
        (table("450 requests, 128 at a time", ("watermark", "preemptions", "ours", "tokens/s", "ours"), rows),),
        (Answer("published-watermark", "holds" if error <= 0.25 and 0.02 < gain[0.02] < 0.08 else "depends", figure),),
    )
