"""ComputeBound: more running requests bring no more tokens, only slower ones; KV cache is free and nothing is
preempted.

Seen in the series: running rises, tokens/s stay. GPU use alone says little: it counts time with any kernel.
"""

from __future__ import annotations

from statistics import mean

from trimtab.diagnose.case import Case, Point, evidence
from trimtab.diagnose.finding import Finding, Severity

#: prompt tokens for one generated, above which prefill and not decode is what fills the steps
_PREFILL = 6.0
#: so much more prefill explains by itself why more run
_MORE_PREFILL = 1.6


def rule(case: Case) -> Finding | None:
    if case.preempting() or (case.now("kv_usage") or 0.0) > 0.95:
        return None
    saturated, gpu = saturation(case), case.now("gpu_utilization")
    busy = (gpu is not None and gpu >= 0.95) or bool(case.fact("gpu_busy"))
    limit, tpot = case.limits.tpot_seconds, case.now("tpot_mean_seconds") or case.now("tpot_p50_seconds")
    late = limit is not None and tpot is not None and tpot > limit and (case.now("waiting") or 0.0) < 1
    if saturated is None and not late and not (busy and (case.change("tpot_mean_seconds") or 0.0) >= 1.3):
        return None
    confidence = (0.7 if saturated else 0.5) + 0.1 * busy + 0.1 * ((case.change("tpot_mean_seconds") or 0.0) >= 1.2)
    text = (
        f"From {saturated[0]:.0f} to {saturated[1]:.0f} running requests tokens/s changed by {saturated[2] - 1:+.0%}: "
        f"the GPU "
        "is saturated." if saturated else "Every token takes too long though nothing waits and KV is free: the GPU is "
        "busy."
    )  # fmt: skip
    return Finding(
        "ComputeBound", Severity.WARNING, min(0.95, confidence), text,
        "Add GPUs or replicas, use quantized weights or a smaller model. Fewer running requests trade queueing for "
        "faster tokens where TPOT is the limit.",
        evidence(running=case.now("running"), tpot_mean_seconds=tpot, tpot_limit_seconds=limit, gpu_utilization=gpu,
                 generation_tokens_per_second=case.tokens_per_second(), kv_usage=case.now("kv_usage"),
                 tokens_ratio=saturated[2] if saturated else None),
        avoid="Do not raise max_num_seqs: throughput is at its end, TPOT would only rise.", said=case.fact("gpu_busy"),
    )  # fmt: skip


def saturation(case: Case) -> tuple[float, float, float] | None:
    """(running low, running high, tokens/s high / low) where running grew by 1.3 and tokens stayed within 10%."""
    pairs = sorted(found for p in case.points if (found := _decoding(p)) is not None)
    if len(pairs) < 3:
        return None
    high = pairs[-max(1, len(pairs) // 3) :]
    most = mean(r for r, _, _ in high)
    # far fewer would compare with an engine that had little to do
    low = [found for found in pairs if max(2.0, most / 4) <= found[0] <= most / 1.3]
    if (
        len(low) < (2 if len(pairs) >= 5 else 1)
        or mean(p for _, _, p in high) > _MORE_PREFILL * mean(p for _, _, p in low) + 1.0
    ):
        return None
    change = mean(t for _, t, _ in high) / mean(t for _, t, _ in low)
    return (mean(r for r, _, _ in low), most, change) if 0.85 <= change <= 1.1 else None


def _decoding(point: Point) -> tuple[float, float, float] | None:
    """(running, tokens/s, prompt tokens/s) of a point in which prompts do not fill the steps."""
    running, tokens = point.get("running"), point.get("generation_tokens_per_second")
    prompts = point.get("prompt_tokens_per_second") or 0.0
    if running is None or not tokens or prompts > _PREFILL * tokens:
        return None
    return running, tokens, prompts
