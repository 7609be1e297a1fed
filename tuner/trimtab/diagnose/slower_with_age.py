"""SlowerWithAge: the same load on the same flags gets slower with the process's age, or since some moment.

vllm#44175 (host memory grows, latency steps up after 7 h), speed that falls after idling until a restart. A fresh
canary then beats an old control with equal flags: measure A/A first.
"""

from __future__ import annotations

from statistics import median

from trimtab.diagnose.case import Case, Point, evidence
from trimtab.diagnose.finding import Finding, Severity

#: slower by so much at about the same number of running requests, which differ by at most so much
_SLOWER, _ALIKE = 1.25, 0.2


def rule(case: Case) -> Finding | None:
    slower, matched = _slower(case)
    if slower is None or slower < _SLOWER or case.preempting() or case.tokens_per_second() == 0:
        return None
    queue = case.change("waiting") or 0.0
    if _longer_contexts(case) or ((case.now("waiting") or 0.0) >= 1 and queue >= 2) or _longer_prompts(case):
        return None
    said, span = case.fact("aging"), case.seconds() or 0.0
    confidence = 0.6 + 0.15 * bool(said) + 0.1 * (matched >= 3) + 0.1 * (span >= 3600)
    return Finding(
        "SlowerWithAge", Severity.WARNING, min(0.9, confidence),
        f"With about the same number of running requests a token takes {slower:.1f} times as long as before.",
        "Restart one replica and compare it with an old one under the same load (A/A). Look at host memory, clocks and "
        "temperature, neighbours on the node. If the fresh one is fast, report it; restart on a schedule until mended.",
        evidence(slower=slower, tpot_mean_seconds=case.now("tpot_mean_seconds"), running=case.now("running"),
                 kv_usage=case.now("kv_usage"), seconds=case.seconds()),
        avoid="Do not read a restart's gain as the gain of a flag.", said=said,
    )  # fmt: skip


def _slower(case: Case) -> tuple[float | None, int]:
    """Seconds per token late over early, at like numbers of running requests; and how many late points had a match."""
    seen = [(r, t) for p in case.points if (r := p.get("running")) and (t := _seconds_per_token(p)) is not None]
    if len(seen) < 2:
        return None, 0
    half = len(seen) // 2
    early, late = seen[:half], seen[-max(1, len(seen) // 3) :]
    ratios = []
    for running, seconds in late:
        alike = [t for r, t in early if abs(r - running) <= _ALIKE * running]
        # or: as many run, and fewer tokens come than did
        beaten = [r / t for r, t in early if r <= running] if not alike else []
        if alike:
            ratios.append(seconds / median(alike))
        elif beaten and max(beaten) > running / seconds:
            ratios.append(max(beaten) / (running / seconds))
    return (median(ratios), len(ratios)) if ratios else (None, 0)


def _seconds_per_token(point: Point) -> float | None:
    tpot = point.get("tpot_mean_seconds") or point.get("tpot_p50_seconds")
    running, tokens = point.get("running"), point.get("generation_tokens_per_second")
    return tpot or (running / tokens if running and tokens else None)


def _longer_contexts(case: Case) -> bool:
    """KV held by one running request grew: attention has more to read."""
    shares = [k / r for r, k in case.pairs("running", "kv_usage") if r > 0 and k > 0]
    half = len(shares) // 2
    return half > 0 and median(shares[half:]) >= 1.5 * median(shares[:half])


def _longer_prompts(case: Case) -> bool:
    """More prefill for each generated token makes tokens slower too."""
    prompts, tokens = case.change("prompt_tokens_per_second"), case.change("generation_tokens_per_second")
    return prompts is not None and bool(tokens) and prompts >= 1.5 * (tokens or 1.0)
