"""Preemption and DeathSpiral: running requests are thrown out and computed again because the KV cache is full.

Counted by the preemptions, never inferred from KV use alone: 95.8% KV with nothing waiting ran at full speed
(vllm#18115). num_preemptions_total lags a little: it travels with the victim's next output. A few preemptions can be
cheaper than none. A spiral: each finished request was thrown out once on average, or preemptions grow and tokens do
not.
"""

from __future__ import annotations

import math
from statistics import median

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_FULL = 0.85
_AVOID = (
    "Do not raise max_num_seqs: more running requests preempt more. Do not judge by GPU use: recomputing keeps it busy."
)


def preemption(case: Case) -> Finding | None:
    if not case.preempting() or spiral(case) is not None:
        return None
    per_request = case.preemptions_per_request()
    rate, share = case.now("preemptions_per_second") or 0.0, share_of_gap(case)
    swapped = case.now("swapped") or 0.0
    shown = (
        f"{swapped:.0f} requests are swapped out" if swapped >= 1
        else f"{rate:.2g} preemptions/s" if per_request is None
        else f"{per_request:.2f} preemptions per finished request"
    )  # fmt: skip
    gap = "" if share is None else f" About {share:.0%} of the gap between p99 and p50 TPOT comes from it."
    return Finding(
        "Preemption", Severity.WARNING, _confidence(case),
        f"{shown}: work is thrown away or moved, and done again.{gap}",
        f"Try fewer running requests ({_names(case)}) and judge by goodput: a few preemptions can be cheaper than "
        "none. More KV memory or shorter outputs help as well.",
        _evidence(case), avoid=_AVOID, tunable=True, settings=case.engine.levers("slots", "watermark", "memory"),
    )  # fmt: skip


def spiral(case: Case) -> Finding | None:
    if not case.preempting():
        return None
    per_request, grows = case.preemptions_per_request(), case.change("preemptions_per_second")
    tokens = case.change("generation_tokens_per_second")
    flat = tokens is not None and tokens <= 1.05
    each = per_request is not None and per_request >= 1.0
    growing = flat and grows is not None and 1.3 <= grows < math.inf and (per_request is None or per_request >= 0.5)
    if not (each or growing):
        return None
    why = " and tokens/s do not grow" if flat else ""
    shown = "" if per_request is None else f": {per_request:.2g} for each finished request"
    return Finding(
        "DeathSpiral", Severity.CRITICAL, min(0.97, _confidence(case) + (0.05 if each and flat else 0.0)),
        f"Preempted requests come back, compete and are preempted again{shown}{why}.",
        f"Lower {_names(case)} (to about KV tokens / (mean prompt + mean output)), keep a watermark of 0.02-0.05, "
        "check that admission asks for the whole prompt. At the gateway: admit less until it drains.",
        _evidence(case), avoid=_AVOID, tunable=True, settings=case.engine.levers("slots", "watermark"),
    )  # fmt: skip


def _names(case: Case) -> str:
    return " or ".join(case.engine.levers("slots", "watermark")) or "the running limit"


def _confidence(case: Case) -> float:
    kv = case.highest("kv_usage_max") or case.highest("kv_usage")
    return 0.75 if kv is None else 0.95 if kv >= _FULL else 0.5


def _evidence(case: Case) -> dict[str, float]:
    p99, p50 = case.now("tpot_p99_seconds"), case.now("tpot_p50_seconds") or case.now("tpot_mean_seconds")
    kv = case.highest("kv_usage_max") or case.highest("kv_usage")
    return evidence(
        preemptions_per_request=case.preemptions_per_request(),
        preemptions_per_second=case.now("preemptions_per_second"),
        kv_usage=kv, running=case.now("running"), max_num_seqs=case.engine.slots,
        generation_tokens_per_second=case.tokens_per_second(), tpot_p99_over_p50=p99 / p50 if p99 and p50 else None,
        swapped=case.now("swapped"),
        share_of_tpot_gap=share_of_gap(case), generation_change=case.change("generation_tokens_per_second"),
    )  # fmt: skip


def share_of_gap(case: Case) -> float | None:
    """How much of p99 - p50 of TPOT preemption makes: the gap with it against the gap without, at the same target.

    Needs points of both kinds; None without them.
    """
    calm: list[float] = []
    pressed: list[float] = []
    for p in case.points:
        high, low = p.get("tpot_p99_seconds"), p.get("tpot_p50_seconds") or p.get("tpot_mean_seconds")
        rate = p.get("preemptions_per_second")
        if high is not None and low is not None and rate is not None:
            (pressed if rate > 0 else calm).append(high - low)
    if not calm or not pressed or median(pressed) <= 0:
        return None
    return max(0.0, 1.0 - median(calm) / median(pressed))
