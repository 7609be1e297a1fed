"""Reserving against allocating on demand, the three ways to bound output, limits by the spread of lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from claims_base import (
    A100,
    LLAMA_8B,
    MAX_MODEL_LEN,
    RTX4090,
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
    Answer,
    Card,
    Interval,
    Lengths,
    Picture,
    Report,
    Size,
    Traffic,
    Verdict,
    change,
    interval,
    per_seed,
    table,
    useful_rate,
)

from trimtab.policy.lengths import estimate, from_tokens
from trimtab.policy.percentile import KvRoom, Rules, percentile
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64, I32

MIB = 2**20
#: answers of at most 512 tokens, so that no limit from 512 on cuts any
SHORT = Traffic(output=replace(SHAREGPT_OUTPUT, most=512))


def arithmetic(size: Size) -> Report:
    """No simulation: blocks x bytes."""
    del size
    reserved, used = LLAMA_8B.bytes_for(512), LLAMA_8B.bytes_for(80)
    per_block = LLAMA_8B.bytes_per_block
    holds = (per_block, reserved // MIB, used // MIB) == (2_097_152, 64, 10)
    figure = (
        f"{per_block:,} bytes a block; {reserved // MIB} MiB reserved, {used // MIB} used, "
        f"{(reserved - used) // MIB} for nothing"
    )
    return Report((), (Answer("kv-arithmetic", "holds" if holds else "contradicted", figure),))


# --- reserve against on-demand ----------------------------------------------------------------------------------------
def _run(card: Card, traffic: Traffic, size: Size, seed: int, max_tokens: int | None, **settings: object) -> Outcome:
    """`max_tokens` for all; None: each request's own length."""
    columns = {} if max_tokens is None else {"max_tokens": lambda output: np.full(len(output), max_tokens)}
    return simulate(traffic.load(seed, size.requests, **columns), card.config(**settings), card.times)


def reserve(size: Size) -> Report:
    rows, gains, unused = [], {}, {}
    for card in (RTX4090, A100):
        free = [_run(card, SHORT, size, s, None) for s in range(size.seeds)]
        for limit in (512, 1024, 2048):
            held = [_run(card, SHORT, size, s, limit, admission="reserve") for s in range(size.seeds)]
            gain = change([useful_rate(o) for o in free], [useful_rate(o) for o in held])
            waste = interval(o.counters.mean_unused_share for o in held)
            gains[card.name, limit], unused[card.name, limit] = gain, waste
            preempted = interval(o.counters.preemptions / size.requests for o in free)
            running = (interval(o.counters.mean_running for o in side) for side in (held, free))
            rows.append((card.name, limit, waste.share(), *running, gain.signed(), preempted))
    head = (
        "card",
        "max_tokens",
        "KV held unused",
        "running: reserve",
        "on demand",
        "on demand: tokens/s",
        "preemptions/request",
    )
    seqs, blocks = _what_helps(size)
    tight, roomy = gains["RTX 4090", 2048], gains["A100 80GB", 512]
    waste = unused["RTX 4090", 2048]
    small = [
        _run(RTX4090, Traffic(), size, s, limit, admission="reserve").counters.preemptions
        for s in range(size.seeds)
        for limit in (64, 256)
    ]
    shorter = change(
        *(
            [float(_run(RTX4090, Traffic(), size, s, limit).counters.preemptions) for s in range(size.seeds)]
            for limit in (128, 2048)
        )
    )
    return Report(
        (table("All requests waiting; answers up to 512 tokens", head, rows),),
        (
            Answer(
                "reserve-waste",
                "depends",
                f"max_tokens 2048: {waste.share()} of the cache held for nothing; on demand {tight.signed()} "
                "tokens/s on an "
                f"RTX 4090, {roomy.signed()} on an A100 at 512",
            ),
            Answer(
                "reserve-settings",
                "depends" if abs(seqs.mean) < 0.02 < blocks.low else "contradicted",
                f"max_num_seqs 64 -> 512: {seqs.signed(1)} tokens/s; 10% more blocks: {blocks.signed(1)}",
            ),
            Answer(
                "reserve-chains",
                "contradicted" if not any(small) and shorter.high < 0 else "depends",
                f"{sum(small)} preemptions at 64 and 256 under reservation; on demand, 128 for 2048: "
                f"{shorter.signed()} preemptions",
            ),
        ),
    )


def _what_helps(size: Size) -> tuple[Interval, Interval]:
    """On a reserving RTX 4090 at max_tokens 1024: tokens/s with 512 for 64 sequences, and with 10% more blocks."""

    def rates(card: Card, seqs: int) -> list[float]:
        settings = {"max_num_seqs": seqs, "admission": "reserve"}
        return per_seed(size, lambda s: useful_rate(_run(card, SHORT, size, s, 1024, **settings)))

    larger = replace(RTX4090, blocks=RTX4090.blocks * 11 // 10)
    return change(rates(RTX4090, 512), rates(RTX4090, 64)), change(rates(larger, 256), rates(RTX4090, 256))


# --- three ways to bound output ---------------------------------------------------------------------------------------
CAP = 512


@dataclass(frozen=True)
class Way:
    """`rate`: tokens/s that clients are given. `kv`: block-seconds per token given. `unused`: share of the cache."""

    rate: float
    kv: float
    unused: float
    preempted: float


def _way(how: str, admission: str, size: Size, seed: int) -> Way:
    traffic = Traffic(output=replace(SHAREGPT_OUTPUT, mean=500))
    limit = CAP if how == "cap" else MAX_MODEL_LEN
    out = _run(RTX4090, traffic, size, seed, limit, admission=admission)
    given = out.tokens.astype(np.float64) if how == "EOS" else np.minimum(out.tokens, CAP).astype(np.float64)
    c = out.counters
    kv = c.mean_kv_usage * (RTX4090.blocks - 1) * c.busy_seconds / float(given[out.ok].sum())
    return Way(useful_rate(out, given), kv, c.mean_unused_share, c.preemptions / size.requests)


def bound(size: Size) -> Report:
    ways = {
        (how, admission): [_way(how, admission, size, s) for s in range(size.seeds)]
        for admission in ("on-demand", "reserve")
        for how in ("cap", "EOS", "afterwards")
    }

    def of(how: str, admission: str, name: str) -> list[float]:
        return [getattr(w, name) for w in ways[how, admission]]

    rows = [
        (
            admission,
            how,
            *(interval(of(how, admission, n)) for n in ("rate", "kv")),
            interval(of(how, admission, "unused")).share(),
            interval(of(how, admission, "preempted")),
        )
        for how, admission in ways
    ]
    lengths = replace(SHAREGPT_OUTPUT, mean=500).draw(np.random.default_rng(0), 100_000)
    cut = float((lengths > CAP).mean())
    after = change(of("afterwards", "on-demand", "kv"), of("cap", "on-demand", "kv"))
    over = {h: interval(of(h, "reserve", "unused")) for h in ("cap", "EOS")}
    preempted = {h: interval(of(h, "on-demand", "preempted")) for h in ("cap", "EOS", "afterwards")}
    head = ("admission", "way", "tokens given/s", "KV block-seconds/token", "cache held unused", "preemptions/request")
    return Report(
        (
            table(
                f"RTX 4090, all waiting, natural lengths of mean 500 and CV 1; limit {CAP}, which {cut:.0%} exceed",
                head,
                rows,
            ),
        ),
        (
            Answer(
                "bound-cap",
                "depends",
                f"reserving: {over['cap'].share()} of the cache unused; on demand none, {preempted['cap']} "
                "preemptions a request "
                f"for {preempted['EOS']} without cap; cuts {cut:.0%}",
            ),
            Answer(
                "bound-eos",
                "depends",
                f"reserving max_model_len: {over['EOS'].share()} unused, "
                f"{change(of('EOS', 'reserve', 'rate'), of('EOS', 'on-demand', 'rate')).signed()} tokens/s",
            ),
            Answer(
                "bound-afterwards",
                "contradicted" if preempted["afterwards"].low > preempted["cap"].high else "holds",
                f"{after.signed()} KV time per token given; {preempted['afterwards']} preemptions a request for "
                f"{preempted['cap']} with the cap",
            ),
        ),
    )


# --- limits by the spread of lengths ----------------------------------------------------------------------------------
CVS = (0.2, 0.3, 0.6, 1.0, 1.5, 2.5)
MEAN = 400
FEWER, BY_MEAN = "policy, fewer sequences", "policy, sequences by the mean"


def _limit(lengths: I32) -> tuple[int, float, int, int]:
    """What the percentile policy says of these lengths: limit, share cut; then max_num_seqs by KV tokens / p90s of
    prompt and output, and by their means, which is the policy's hint for CV > 1.
    """
    prompts = SHAREGPT_PROMPT.draw(np.random.default_rng(1), 10_000)
    room = KvRoom(RTX4090.blocks * LLAMA_8B.block_size, float(prompts.mean()))
    seen = estimate(from_tokens(lengths.tolist()))
    decided = percentile(seen, rules=Rules(max_truncated_share=None), room=room)
    p90 = seen.quantile(0.9)
    assert decided.max_new_tokens is not None and decided.truncated is not None and p90 is not None
    by_p90 = int(room.capacity_tokens / (float(np.percentile(prompts, 90)) + p90))
    by_mean = int(room.capacity_tokens / (room.prompt_mean_tokens + float(lengths.mean())))
    assert all(abs((h.value or 0) - by_mean) <= 1 for h in decided.hints if h.setting == "max_num_seqs")
    return decided.max_new_tokens, decided.truncated.estimate, by_p90, by_mean


@dataclass(frozen=True)
class Side:
    """One way to set limits, one seed."""

    rate: float
    preempted: float
    unused: float
    tpot_p99: float
    queued_p50: float


def _side(traffic: Traffic, size: Size, seed: int, limits: int | Callable[[I32], I32], **settings: object) -> Side:
    given = limits if callable(limits) else lambda output: np.full(len(output), limits)
    out = simulate(traffic.load(seed, size.requests, max_tokens=given), RTX4090.config(**settings), RTX4090.times)
    waited: F64 = out.scheduled - out.load.arrival
    return Side(
        useful_rate(out),
        out.counters.preemptions / size.requests,
        out.counters.mean_unused_share,
        float(np.nanpercentile(out.tpot, 99)),
        float(np.nanmedian(waited)),
    )


@dataclass(frozen=True)
class Spread:
    """One spread of lengths: what the policy says of it and what came of it, by way."""

    limit: int
    cut: float
    seqs: int
    by_mean: int
    sides: dict[str, list[Side]]

    def of(self, way: str, name: str) -> list[float]:
        return [getattr(side, name) for side in self.sides[way]]

    def against(self, way: str, other: str, name: str = "rate") -> Interval:
        return change(self.of(way, name), self.of(other, name))


def _spread(cv: float, size: Size) -> Spread:
    traffic = Traffic(output=Lengths(MEAN, cv))
    limit, cut, seqs, by_mean = _limit(traffic.output.draw(np.random.default_rng(99), 5000))

    def sides(limits: int | Callable[[I32], I32], **settings: object) -> list[Side]:
        return [_side(traffic, size, s, limits, **settings) for s in range(size.seeds)]

    return Spread(
        limit,
        cut,
        seqs,
        by_mean,
        {
            "no limit": sides(MAX_MODEL_LEN),
            "policy": sides(limit),
            FEWER: sides(limit, max_num_seqs=seqs),
            BY_MEAN: sides(limit, max_num_seqs=by_mean),
            "reserve: policy": sides(limit, admission="reserve"),
            "reserve: true length": sides(lambda output: output, admission="reserve"),
        },
    )


def spread(size: Size) -> Report:
    found = {cv: _spread(cv, size) for cv in (CVS if not size.cheap else (0.3, 1.5))}
    rows = [
        (
            cv,
            way,
            s.limit,
            f"{s.cut:.1%}",
            *(interval(s.of(way, n)) for n in ("rate", "preempted", "unused", "tpot_p99")),
        )
        for cv, s in found.items()
        for way in s.sides
    ]
    head = ("CV", "way", "limit", "cuts", "tokens/s", "preemptions/request", "cache unused", "TPOT p99 (s)")
    narrow, wide = found[0.3], found[1.5]
    capped, free = (interval(narrow.of(way, "preempted")) for way in ("policy", "no limit"))
    before, fewer, by_mean = (interval(wide.of(way, "preempted")) for way in ("policy", FEWER, BY_MEAN))
    predicted = {cv: s.against("reserve: true length", "reserve: policy") for cv, s in found.items()}
    low, high = min(predicted), max(predicted)
    return Report(
        (table(f"RTX 4090, all waiting, answers of mean {MEAN}", head, rows),),
        (
            Answer(
                "cv-narrow",
                "contradicted" if capped.low > 0.02 and capped.low > 0.7 * free.mean else "holds",
                f"CV 0.3: limit {narrow.limit} cuts {narrow.cut:.1%}; {capped} preemptions a request, {free} "
                "without limit",
            ),
            Answer(
                "cv-wide",
                "depends" if fewer.high < 0.1 * before.low else "contradicted",
                f"CV 1.5: {before} -> {fewer} preemptions a request at {wide.seqs} sequences, TPOT p99 "
                f"{wide.against(FEWER, 'policy', 'tpot_p99').signed()}, but tokens/s "
                f"{wide.against(FEWER, 'policy').signed()}; at {wide.by_mean} (KV tokens / mean of prompt + output) "
                f"{by_mean}, {wide.against(BY_MEAN, 'policy', 'tpot_p99').signed()} and "
                f"{wide.against(BY_MEAN, 'policy').signed()}",
            ),
            Answer(
                "cv-predicted",
                "holds" if predicted[high].low > predicted[low].high else "contradicted",
                f"reserving, true length for the policy's limit: {predicted[low].signed()} tokens/s at CV {low}, "
                f"{predicted[high].signed()} at CV {high}",
            ),
        ),
        (_spread_picture(found),),
    )


def _spread_picture(found: dict[float, Spread]) -> Picture:
    seen = {
        way: [interval(s.of(way, "preempted")) for s in found.values()]
        for way in ("no limit", "policy", BY_MEAN, FEWER)
    }
    return Picture(
        "spread",
        "Limits do not stop preemption on vLLM; fewer sequences do",
        "CV of the output lengths",
        "preemptions per request",
        tuple(found),
        tuple((way, tuple(i.mean for i in x), tuple(i.half for i in x)) for way, x in seen.items()),
    )


# --- the metric -------------------------------------------------------------------------------------------------------
def _times(factor: int) -> Callable[[I32], I32]:
    def limits(output: I32) -> I32:
        return output * factor

    return limits


def ratio(size: Size) -> Report:
    rows = []
    at_half: list[Interval] = []
    for prompt in (20, 161, 1000):
        for factor in (1, 2, 4):
            traffic = Traffic(prompt=Lengths(prompt, 0.5), output=Lengths(256, 0.3, 512))
            side = [_side(traffic, size, s, _times(factor), admission="reserve") for s in range(size.seeds)]
            unused = interval(x.unused for x in side)
            rows.append((prompt, f"{1 / factor:.2f}", unused.share()))
            if factor == 2:
                at_half.append(unused)
    low, high = min(at_half, key=lambda i: i.mean), max(at_half, key=lambda i: i.mean)
    verdict: Verdict = "depends" if low.high < 0.5 < high.low else "holds"
    return Report(
        (
            table(
                "Reserving RTX 4090: useful_token_ratio and what of the cache is held unused",
                ("prompt tokens", "useful_token_ratio", "unused"),
                rows,
            ),
        ),
        (
            Answer(
                "ratio-half",
                verdict,
                f"at 0.5: {low.share()} unused with prompts of 1000 tokens, {high.share()} with prompts of 20",
            ),
        ),
    )
