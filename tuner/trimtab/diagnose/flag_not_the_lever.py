"""FlagNotTheLever: settings were changed and nothing moved, or a few requests in company collapse: look below the
engine.

Seen: interconnect (vllm#17568: 30 tok/s alone, 1.5 in company, batched tokens changed nothing), weights (4-bit gave
three times what 20 flag sets gave), speculation slower than none above 20 in flight (ArcticInference#185), repeated
prompts that a reply cache would answer. No gain in two trials: stop.
"""

from __future__ import annotations

from typing import Final

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

#: noise of one measurement of a minute or two is about 3%
_SAME = 0.10
#: topic -> what to look at instead
_INSTEAD: Final = {
    "interconnect": "the interconnect: fewer GPUs in one tensor-parallel group, NVLink instead of PCIe, NCCL settings",
    "speculative": "speculative decoding: switch it off at this concurrency",
    "quantized": "the weights: a smaller format of the model",
    "reply_repeat": "a reply cache: the prompts repeat",
    "cpu": "the CPU: OMP_NUM_THREADS and the pod's limit",
}


def rule(case: Case) -> Finding | None:
    trials, collapse, said = _trials(case), _collapse(case), case.fact("no_effect")
    flags_named = [
        line for line in said if any(w in line.lower() for w in ("--", "_", "flag", "setting", "batch", "seqs"))
    ]
    speculative = case.engine.has("speculative-config", "speculative-model", "num-speculative-tokens")
    aside = speculative and bool(case.fact("speculative"))
    if not (trials or collapse or flags_named or aside):
        return None
    look = [text for topic, text in _INSTEAD.items() if case.fact(topic)] or [
        "what is below the engine: interconnect, CPU limit, weights' format, the GPU's clock"
    ]
    confidence = min(0.95, max(0.85 * bool(trials), 0.65 * bool(collapse), 0.6 * bool(said), 0.55 * aside)
                     + 0.1 * (len(look) > 0 and bool(said or trials) and bool(case.fact(*_INSTEAD)))
                     + 0.1 * bool(said and (trials or collapse)))  # fmt: skip
    text = (
        f"{trials[0]} trials with other settings are within {trials[1]:.0%} of each other." if trials else
        f"Tokens/s fall to {collapse:.0%} as a few more requests run, with KV free and nothing preempted."
        if collapse else
        "Changed settings brought nothing." if said else "Speculation costs more than it gives in company."
    )  # fmt: skip
    return Finding(
        "FlagNotTheLever", Severity.WARNING, confidence, text, f"Look at {'; '.join(look)}.",
        evidence(trials=float(trials[0]) if trials else None, spread=trials[1] if trials else None,
                 tokens_ratio=collapse, running=case.now("running"), kv_usage=case.now("kv_usage"),
                 generation_tokens_per_second=case.tokens_per_second()),
        avoid="Stop trying flags: two trials without a gain are enough.", said=(*said, *case.fact(*_INSTEAD))[:4],
    )  # fmt: skip


def _trials(case: Case) -> tuple[int, float] | None:
    """(how many settings were tried, spread of tokens/s between them) where they make no difference."""
    by_setting: dict[tuple[tuple[str, float], ...], float] = {}
    for p in case.points:
        tokens = p.get("generation_tokens_per_second")
        if p.settings and tokens is not None:
            by_setting[tuple(sorted(p.settings.items()))] = tokens
    if len(by_setting) < 2 or min(by_setting.values()) <= 0:
        return None
    spread = max(by_setting.values()) / min(by_setting.values()) - 1
    return (len(by_setting), spread) if spread <= _SAME else None


def _collapse(case: Case) -> float | None:
    """Total tokens/s with more running / with fewer, where batching makes things worse without any pressure."""
    pairs = sorted(case.pairs("running", "generation_tokens_per_second"))
    if len(pairs) < 2 or case.preempting() or (case.highest("kv_usage") or 0.0) > 0.8:
        return None
    (few, alone), (more, company) = pairs[0], pairs[-1]
    prompts = case.now("prompt_tokens_per_second") or 0.0
    if few < 0.5 or more < 1.5 * few or alone <= 0 or prompts > 5 * max(alone, company):
        return None
    return company / alone if company < 0.7 * alone else None
