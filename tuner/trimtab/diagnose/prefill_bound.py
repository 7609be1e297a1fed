"""PrefillBound: prompts come in faster than they can be computed: prompt tokens/s are flat, requests wait, KV and slots
are free.

A bigger step is not always faster: 8192 was slower than four steps of 2048 on gfx11 (ROCm/vllm#954).
"""

from __future__ import annotations

from statistics import mean, pstdev

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_KV_FREE = 0.85
#: prompt tokens for one generated: chat has 1 to 5, RAG and code 10 to 100
_MANY = 8.0
_LARGE_STEP_TOKENS = 16384


def rule(case: Case) -> Finding | None:
    prompt, tokens, kv = case.now("prompt_tokens_per_second"), case.tokens_per_second(), case.now("kv_usage")
    waits = (case.now("waiting") or 0.0) >= 1 or (case.now("queue_p50_seconds") or 0.0) >= 1
    slow = (case.now("ttft_p50_seconds") or 0.0) >= 2.0 or (case.change("ttft_p50_seconds") or 0.0) >= 2.0
    if not prompt or not (waits or slow) or (kv or 0.0) > _KV_FREE or case.preempting():
        return None
    flat, many = is_flat(case), tokens is not None and prompt >= _MANY * tokens
    full = case.slots_full()
    if not (flat or many) or (full and not (flat and many and prompt >= 3 * _MANY * (tokens or 0.0))):
        return None
    step, off = case.engine.number("step_budget"), case.engine.prefix_caching is False
    confidence = 0.5 + 0.2 * flat + 0.1 * many + 0.1 * (full is False) - 0.05 * (kv is None)
    settings = () if (step or 0.0) >= _LARGE_STEP_TOKENS else case.engine.lever("step_budget")
    settings += case.engine.lever("prefix") if off else ()
    return Finding(
        "PrefillBound", Severity.WARNING, confidence,
        f"{prompt:.0f} prompt tokens/s{' and no more' if flat else ''}, {case.now('waiting') or 0:.0f} requests wait, "
        f"{'KV use unknown' if kv is None else f'KV {kv:.0%} used'}: prompts wait to be computed.",
        ("Switch prefix caching on. " if off else "") + "Try a larger step budget "
        f"({' '.join(case.engine.lever('step_budget')) or 'prefill tokens of a step'}) and judge by TTFT and TPOT: "
        "bigger is not always faster. Then: shorter prompts, prefix reuse, separate prefill, more replicas.",
        evidence(prompt_tokens_per_second=prompt, generation_tokens_per_second=tokens, waiting=case.now("waiting"),
                 kv_usage=kv, running=case.now("running"), max_num_batched_tokens=step,
                 ttft_p50_seconds=case.now("ttft_p50_seconds"), prompt_rate_spread=spread(case)),
        avoid="More slots will not help: those that run wait for their prefill.",
        tunable=bool(settings), settings=settings,
    )  # fmt: skip


def spread(case: Case) -> float | None:
    """Standard deviation / mean of prompt tokens/s over the points in which requests wait."""
    rates = [r for r, w in case.pairs("prompt_tokens_per_second", "waiting") if w >= 1]
    return pstdev(rates) / mean(rates) if len(rates) >= 3 and mean(rates) > 0 else None


def is_flat(case: Case) -> bool:
    """The rate does not move while the queue or the arrivals grow."""
    found = spread(case)
    if found is None or found > 0.12:
        return False
    grows = max(case.change(n) or 0.0 for n in ("waiting", "requests_per_second", "ttft_p50_seconds"))
    return grows >= 1.15
