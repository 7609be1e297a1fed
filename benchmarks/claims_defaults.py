"""Two of vLLM's defaults: chunked prefill and prefix caching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from claims_base import (
    A100,
    RTX4090,
    Answer,
    Card,
    Lengths,
    Report,
    Size,
    Traffic,
    capacity,
    change,
    interval,
    table,
    useful_rate,
)

from trimtab.simulate import state as st
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload


def _run(card: Card, load: Workload, *, trace: bool = False, **settings: Any) -> Outcome:
    return simulate(load, card.config(**settings), card.times, trace=trace)


# --- chunked prefill --------------------------------------------------------------------------------------------------
LONG_PROMPTS = Traffic(prompt=Lengths(2000, 1.0, 8000), output=Lengths(200, 0.7, 2000))
LONG_MODEL_LEN = 16_384


def _gap_p99(outcome: Outcome, card: Card) -> float:
    """Seconds between two tokens of an answer, of all gaps of all answers: the duration of a step counts once for each
    sequence that decodes in it. From the trace of a run without preemption.
    """
    assert outcome.counters.preemptions == 0
    rows = outcome.trace[outcome.trace[:, 0] == st.T_SCHEDULED].astype(np.int64)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 2]))]
    step, request, count = rows[:, 1], rows[:, 2], rows[:, 3]
    total = np.cumsum(count)
    first = np.flatnonzero(np.diff(request, prepend=-1))
    after = total - np.repeat(total[first] - count[first], np.diff(first, append=len(rows)))
    before = after - count
    prompt = before < outcome.load.prompt[request]
    work = {
        "per_prefill_token": prompt * count,
        "per_pair": prompt * count * (before + after),
        "per_decode_seq": ~prompt,
        "per_kv_token": ~prompt * after,
    }
    steps = int(step.max()) + 1
    seconds = np.full(steps, card.times.fixed)
    for name, amount in work.items():
        seconds += getattr(card.times, name) * np.bincount(step, amount, steps)
    seconds += card.times.per_prefill_step * (np.bincount(step, prompt, steps) > 0)
    return float(np.percentile(seconds[step[~prompt]], 99))


#: without preemption, so that a trace gives each step's work
ROOMY = replace(A100, blocks=10 * A100.blocks)
WAYS: dict[str, dict[str, Any]] = {
    "off": {"enable_chunked_prefill": False, "max_num_batched_tokens": LONG_MODEL_LEN},
    **{str(budget): {"max_num_batched_tokens": budget} for budget in (8192, 2048, 512)},
}


def chunked(size: Size) -> Report:
    def runs(rate: float, way: str) -> list[Outcome]:
        loads = (replace(LONG_PROMPTS, rate=rate).load(s, size.requests) for s in range(size.seeds))
        return [_run(ROOMY, load, trace=True, max_model_len=LONG_MODEL_LEN, **WAYS[way]) for load in loads]

    limit = capacity(ROOMY, LONG_PROMPTS, size, max_model_len=LONG_MODEL_LEN, **WAYS["2048"])
    loads = (0.7,) if size.cheap else (0.5, 0.7, 0.9)
    found = {(x, way): runs(x * limit, way) for x in loads for way in WAYS}
    gaps = {key: [_gap_p99(o, ROOMY) for o in outs] for key, outs in found.items()}
    ttft = {key: [[float(np.nanpercentile(o.ttft, q)) for o in outs] for q in (50, 99)] for key, outs in found.items()}
    rates = {way: [useful_rate(o) for o in runs(float("inf"), way)] for way in WAYS}
    same = change(*(_preemptions(size, **WAYS[way]) for way in ("2048", "off")))
    gap = change(gaps[0.7, "2048"], gaps[0.7, "off"])
    head = ("load", "budget", "gap between tokens p99 (s)", "TTFT p50 (s)", "TTFT p99 (s)")
    rows = [(*key, interval(gaps[key]), *(interval(t) for t in ttft[key])) for key in found]
    return Report(
        (
            table("A100 with KV for all, prompts of mean 2000 and CV 1", head, rows),
            table("all waiting", ("budget", "useful tokens/s"), [(w, interval(r)) for w, r in rates.items()]),
        ),
        (
            Answer(
                "chunked",
                "holds" if gap.high < 0 and abs(same.mean) < 0.15 else "depends",
                f"load 0.7: gap between tokens p99 {gap.signed()} with a budget of 2048, TTFT p99 "
                f"{change(ttft[0.7, '2048'][1], ttft[0.7, 'off'][1]).signed()}; tokens/s when full "
                f"{change(rates['2048'], rates['off']).signed()}; preemptions on the RTX 4090 {same.signed()}",
            ),
        ),
    )


def _preemptions(size: Size, **settings: Any) -> list[float]:
    loads = (Traffic().load(s, size.requests) for s in range(size.seeds))
    outs = (_run(RTX4090, load, max_model_len=LONG_MODEL_LEN, **settings) for load in loads)
    return [float(o.counters.preemptions) for o in outs]


# --- prefix caching ---------------------------------------------------------------------------------------------------
def prefix(size: Size) -> Report:
    rows, gains = [], {}
    outputs = (50, 400)
    for shared, groups in ((0, 1), (600, 1), (600, 20), (600, 400)):
        for output in outputs:
            pairs = []
            for s in range(size.seeds):
                rng = np.random.default_rng(s)
                n = size.requests
                prompt = shared + Lengths(800 - shared, 0.3, 2000).draw(rng, n)
                chunks = [(int(g),) for g in rng.integers(groups, size=n)] if shared else None
                load = Workload.of(
                    np.zeros(n),
                    prompt,
                    Lengths(output, 0.5, 2000).draw(rng, n),
                    chunks=chunks,
                    chunk_tokens=np.full(n, max(1, shared)),
                )
                pairs.append([_run(RTX4090, load, enable_prefix_caching=on) for on in (True, False)])
            gain = change(*([useful_rate(p[k]) for p in pairs] for k in (0, 1)))
            gains[shared, groups, output] = gain
            hits = interval(p[0].counters.prefix_cache_hits / p[0].counters.prefix_cache_queries for p in pairs)
            again = change(*([p[k].counters.recomputed_tokens + 1.0 for p in pairs] for k in (0, 1)))
            rows.append((shared, groups if shared else "", output, hits.share(), gain.signed(), again.signed()))
    head = ("shared tokens of 800", "groups", "output", "hits", "useful tokens/s", "recomputed tokens")
    one, many, none = (gains[k] for k in ((600, 1, 50), (600, 400, 50), (0, 1, 400)))
    return Report(
        (table("RTX 4090, all waiting", head, rows),),
        (
            Answer(
                "prefix",
                "depends",
                f"one shared beginning of 600 in 800 tokens: {one.signed()} (answers of 50 tokens), "
                f"{gains[600, 1, 400].signed()} (of 400); "
                f"400 beginnings, more than fit: {many.signed()}; nothing shared: {none.signed()}",
            ),
        ),
    )
