"""KvBound: requests wait and the KV cache is full. High KV use with nothing waiting is a well used cache (vllm#18115).

Judge by the fuller pool where there are two (sglang#26248). A large step budget costs blocks: 50,000 batched tokens
left 758 blocks, 20,480 left 4,485 (vllm#2509).
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_FULL = 0.9
#: where slots are free, memory is what requests wait for
_FULL_BUT_SLOTS = 0.82
_HIGH_MEMORY_SHARE = 0.94
_LARGE_STEP_TOKENS = 16384


def rule(case: Case) -> Finding | None:
    waiting, kv = case.now("waiting"), case.now("kv_usage")
    if waiting is None or kv is None or waiting < 1 or not (kv >= _full(case) or _touches_full(case)):
        return None
    settings, advice = _levers(case)
    return Finding(
        "KvBound", Severity.WARNING, 0.85 if kv >= 0.95 else 0.75,
        f"{waiting:.1f} requests wait per pod and the KV cache is {kv:.0%} full.",
        " ".join([*advice, "Else: shorter outputs or prompts, a quantized KV cache, more replicas or GPUs."]),
        evidence(waiting=waiting, kv_usage=kv, running=case.now("running"), max_num_seqs=case.engine.slots,
                 gpu_memory_utilization=case.engine.number("memory"), kv_capacity_tokens=case.now("kv_capacity_tokens"),
                 max_num_batched_tokens=case.engine.number("step_budget"),
                 preemptions_per_second=case.now("preemptions_per_second")),
        avoid="More slots will not help: there are no blocks for them.", tunable=bool(settings), settings=settings,
    )  # fmt: skip


def _full(case: Case) -> float:
    """From which use on the cache is full: a prompt is admitted as a whole, so long ones leave some of it free."""
    share, prompt, pool = case.slot_share(), case.now("prompt_tokens_mean"), case.now("kv_capacity_tokens")
    if prompt is not None and pool:
        return min(_FULL, 0.97 - prompt / pool)
    return _FULL_BUT_SLOTS if share is not None and share < 0.85 else _FULL


def _touches_full(case: Case) -> bool:
    return (case.now("kv_usage_max") or 0.0) >= 0.98 and (case.now("kv_usage") or 0.0) >= 0.8


def _levers(case: Case) -> tuple[tuple[str, ...], list[str]]:
    """Flags that leave more blocks, as far as they are in sight."""
    settings: tuple[str, ...] = ()
    advice = []
    share, step = case.engine.number("memory"), case.engine.number("step_budget")
    if step is not None and step > _LARGE_STEP_TOKENS:
        settings += case.engine.lever("step_budget")
        advice.append(
            f"Lower {case.engine.lever('step_budget')[0]} ({step:.0f}): activations of big steps take KV memory."
        )
    if share is None or share < _HIGH_MEMORY_SHARE:
        settings += case.engine.lever("memory")
        advice.append(
            f"Raise {' '.join(case.engine.lever('memory')) or 'the memory share'} in small steps, tested under load."
        )
    if case.engine.prefix_caching is False and case.engine.lever("prefix"):
        settings += case.engine.lever("prefix")
        advice.append("Switch prefix caching on: shared prefixes are then held once.")
    return settings, advice
