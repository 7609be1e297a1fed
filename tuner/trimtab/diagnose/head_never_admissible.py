"""HeadNeverAdmissible: the first request in the queue needs more KV than the whole pool has, and all wait behind it.

vLLM admits in order and only when blocks for the whole prompt are free (vllm#39734: pool 76,640 tokens, max_model_len
262,144). It ends when that client leaves.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity
from trimtab.diagnose.scheduler_deadlock import standstill


def rule(case: Case) -> Finding | None:
    pool = case.now("kv_capacity_tokens") or case.facts.pool_tokens or case.engine.number("pool")
    longest, asked = case.engine.number("longest"), longest_prompt(case)
    if pool is None or not ((longest or 0.0) > pool or (asked or 0.0) > pool):
        return None
    waiting, running, kv = case.now("waiting"), case.now("running"), case.now("kv_usage")
    stuck = case.tail(standstill)
    draining = (case.change("running") or 1.0) < 0.5 and (case.change("waiting") or 0.0) > 1.5
    if waiting is None or waiting < 0.5 or (kv or 0.0) > 0.6 or not (stuck or draining or (asked or 0.0) > pool):
        return None
    known = (asked or 0.0) > pool
    confidence = (0.95 if known else 0.85) * (0.85 + 0.15 * case.certainty(stuck) if stuck else 0.8)
    need = f"a prompt of {asked:.0f} tokens" if known else f"max_model_len {longest:.0f}"
    return Finding(
        "HeadNeverAdmissible", Severity.CRITICAL, min(0.97, confidence),
        f"{waiting:.0f} requests wait with {running or 0:.0f} running: {need} is above the KV pool of {pool:.0f} "
        "tokens, so the head of the queue can never be admitted.",
        "Lower max_model_len to what the pool holds, or refuse such prompts at the gateway; cancel the one at the "
        "head now. To serve it: more KV memory (GPUs, quantized KV).",
        evidence(kv_pool_tokens=pool, max_model_len=longest, longest_prompt_tokens=asked, waiting=waiting,
                 running=running, kv_usage=kv),
        avoid="Do not raise max_num_seqs or restart and hope: the next long prompt blocks it again.",
        said=case.fact("long_prompt"),
    )  # fmt: skip


def longest_prompt(case: Case) -> float | None:
    found = [v for v in (case.facts.longest_prompt_tokens, case.highest("prompt_tokens_p99")) if v is not None]
    return max(found, default=None)
