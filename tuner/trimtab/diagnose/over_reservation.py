"""OverReservation: requests ask for far more tokens than they use.

On an engine that reserves at admission (TGI, TensorRT-LLM GUARANTEED_NO_EVICT, Orca) a ratio of 0.5 means that half of
the KV cache is held for nothing, and that requests wait for it. vLLM reserves nothing: there it is information.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_HALF = 0.5


def rule(case: Case) -> Finding | None:
    share = used_share(case)
    if share is None or share > _HALF:
        return None
    seen = evidence(useful_token_ratio=share, waiting=case.now("waiting"), running=case.now("running"),
                    kv_usage=case.now("kv_usage"), max_tokens_mean=case.now("max_tokens_mean"),
                    output_tokens_mean=case.now("output_tokens_mean"))  # fmt: skip
    if not case.engine.reserves:
        return Finding(
            "OverReservation", Severity.INFO, 0.9,
            f"Requests use {share:.0%} of the tokens they ask for. {case.engine.shown} reserves no KV for the rest.",
            "A tighter token cap bounds the worst case only; engines that reserve at admission would gain memory.",
            seen,
            avoid="Do not lower max_tokens for memory's sake here: it frees nothing.",
        )  # fmt: skip
    waiting = case.now("waiting")
    pressed = waiting is not None and waiting >= 1
    confidence = 0.92 if pressed else 0.75 if waiting is None else 0.6
    return Finding(
        "OverReservation", Severity.WARNING if waiting is None or pressed else Severity.INFO, confidence,
        f"{case.engine.shown} reserves max_new_tokens at admission and requests use {share:.0%} of it: "
        f"{1 - share:.0%} of the reserved KV is held for "
        f"nothing{f' while {waiting:.0f} requests wait' if pressed else ''}.",
        "Lower max_new_tokens to 1.5-2 times the mean where lengths are alike, to p90 where they spread; set it for "
        "each kind of request. Or use an engine that admits on demand.",
        seen, avoid="Do not raise the batch size or memory share first: reserved blocks decide admission.",
        tunable=True, settings=("max_new_tokens", *case.engine.lever("pool")),
    )  # fmt: skip


def used_share(case: Case) -> float | None:
    """useful / reserved tokens, else what stands for it."""
    found = case.first_of("useful_token_ratio", "completion_ratio")
    if found is not None:
        return found[1]
    output, asked = case.now("output_tokens_mean"), case.now("max_tokens_mean")
    return output / asked if output is not None and asked else None
