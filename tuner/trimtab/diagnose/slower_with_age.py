"""SlowerWithAge: the same load on the same flags gets slower with the process's age, or since some moment.

vllm#44175 (host memory grows, latency steps up after 7 h), speed that falls after idling until a restart. A fresh
canary then beats an old control with equal flags: measure A/A first.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity


def rule(case: Case) -> Finding | None:
    said = case.fact("aging")
    running, tokens = case.change("running"), case.change("generation_tokens_per_second")
    tpot = case.change("tpot_mean_seconds") or case.change("tpot_p50_seconds")
    slower = (tokens is not None and tokens <= 0.8) or (tpot is not None and tpot >= 1.25)
    alike = running is not None and 0.8 <= running <= 1.25
    kv, offered = case.change("kv_usage"), case.change("requests_per_second")
    other = (kv is not None and kv >= 1.5) or (offered is not None and not 0.75 <= offered <= 1.33)
    queued = (case.now("waiting") or 0.0) >= 1 and (case.change("waiting") or 0.0) >= 2
    if not slower or not alike or other or queued or case.preempting() or case.tokens_per_second() == 0:
        return None
    both = tokens is not None and tpot is not None and tokens <= 0.85 and tpot >= 1.2
    span = case.seconds() or 0.0
    confidence = 0.5 + 0.2 * bool(said) + 0.1 * both + 0.1 * (span >= 3600)
    return Finding(
        "SlowerWithAge", Severity.WARNING, min(0.9, confidence),
        "With the same number of running requests "
        + (f"tokens/s fell to {tokens:.0%}." if tokens is not None and tokens <= 0.8 else
           f"TPOT rose {tpot or 0:.1f} times."),
        "Restart one replica and compare it with an old one under the same load (A/A). Look at host memory, clocks and "
        "temperature, neighbours on the node. If the fresh one is fast, report it and restart on a schedule until "
        "mended.",
        evidence(tokens_ratio=tokens, tpot_ratio=tpot, running=case.now("running"), kv_usage=case.now("kv_usage"),
                 seconds=case.seconds()),
        avoid="Do not read a restart's gain as the gain of a flag.", said=said,
    )  # fmt: skip
