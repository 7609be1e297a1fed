"""CancellationDominates and CancellationHidden: many requests end because the client left.

Above 10% no batch or cache setting mends the cause. vLLM counts no disconnect, so a rate is an estimate. Behind a
proxy that keeps the upstream open (litellm#30244, #37140) an abort rate of 0 proves nothing. The engine is rarely the
one that aborts (vllm#2484): look for round ages, which are time-outs.
"""

from __future__ import annotations

from typing import Final

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_DOMINATES = 0.10
_MIN_REQUESTS = 20
#: time-outs that clients, libraries and proxies come with, in seconds
_ROUND: Final = (5, 10, 15, 20, 30, 45, 60, 90, 100, 120, 180, 240, 300, 600, 900)
#: tokens slower than people read, and answers later than they wait
_SLOW_TPOT_SECONDS, _SLOW_TTFT_SECONDS = 0.15, 5.0
_AVOID = "Do not tune batch or cache for this: they cannot fix the cause."


def dominates(case: Case) -> Finding | None:
    rate, said = case.now("abort_rate"), case.fact("cancel", "timeout", "retry")
    counted = rate is not None and rate > _DOMINATES
    if not counted:
        rate = case.facts.share_leaving if rate is None else None
    few = case.requests_seen is not None and case.requests_seen < _MIN_REQUESTS
    if rate is None or rate <= _DOMINATES or few:
        return None
    why, advice = _reasons(case)
    if case.fact("proxy"):
        advice.append("Make the proxy pass cancels on.")
    return Finding(
        "CancellationDominates", Severity.WARNING, min(0.97, (0.8 if counted else 0.65) + 0.05 * len(why)),
        f"About {rate:.0%} of the requests end because the client left{'; ' + '; '.join(why) if why else ''}.",
        " ".join([*advice, "At the gateway: cap the queue and refuse early, limit retries with back-off, set one "
        "time-out for "
                  "client, proxy and engine, cut the output length there."]),
        evidence(abort_rate=rate, tpot_mean_seconds=case.now("tpot_mean_seconds"),
                 ttft_p50_seconds=case.now("ttft_p50_seconds"), e2e_p99_seconds=case.now("e2e_p99_seconds"),
                 timeout_seconds=timeout(case), requests_per_second=case.now("requests_per_second"),
                 wasted_token_ratio=case.now("wasted_token_ratio"), useful_token_ratio=case.now("useful_token_ratio")),
        avoid=_AVOID, said=said,
    )  # fmt: skip


def answers_slow(finding: Finding) -> bool:
    """Whether the answers are slower than people wait: then they may leave for what a setting can mend."""
    tpot, ttft = (finding.evidence.get(n) for n in ("tpot_mean_seconds", "ttft_p50_seconds"))
    return _slow(tpot, ttft)


def _slow(tpot: float | None, ttft: float | None) -> bool:
    return (tpot or 0.0) > _SLOW_TPOT_SECONDS or (ttft or 0.0) > _SLOW_TTFT_SECONDS


def timeout(case: Case) -> float | None:
    """The round age at which requests end, where there is one."""
    for name in ("e2e_p99_seconds", "ttft_p99_seconds", "e2e_p50_seconds"):
        value = case.now(name)
        if value is not None and (found := next((r for r in _ROUND if abs(value - r) <= 0.02 * r), None)):
            return float(found)
    return None


def _reasons(case: Case) -> tuple[list[str], list[str]]:
    """What tells the kind of cancellation, and what each asks for."""
    why, advice = [], []
    age, retries = timeout(case), case.fact("retry")
    if age is not None:
        why.append(f"ends cluster at {age:.0f} s, a time-out")
        advice.append(f"Find who gives up after {age:.0f} s: client library, proxy or router.")
    elif case.fact("timeout"):
        advice.append("Find the time-out: client library, proxy or router.")
    tpot, ttft = case.now("tpot_mean_seconds") or case.now("tpot_p50_seconds"), case.now("ttft_p50_seconds")
    rises = (case.change("abort_rate") or 0.0) >= 1.3
    slower = max(case.change("tpot_mean_seconds") or 0.0, case.change("ttft_p50_seconds") or 0.0) >= 1.3
    if _slow(tpot, ttft) or (rises and slower):
        why.append("answers are slow, so clients leave")
        advice.append("Take load off (fewer admitted, more replicas): people leave because answers are slow.")
    offered, served = case.change("requests_per_second"), case.change("generation_tokens_per_second")
    if retries or ((offered or 0.0) >= 1.3 and served is not None and served <= 1.05):
        why.append("retries add load")
        advice.append("Stop retry storms: back-off, a retry budget.")
    return why, advice


def hidden(case: Case) -> Finding | None:
    """Clients give up and the engine does not hear of it."""
    rate, clients = case.now("abort_rate"), case.now("client_in_flight")
    if rate is not None and rate > 0.02:
        return None
    proxy, leaves, retries = case.fact("proxy"), case.fact("cancel", "timeout"), case.fact("retry")
    inside = (case.now("running") or 0.0) + (case.now("waiting") or 0.0)
    orphans = clients is not None and inside >= 1.5 * clients + 5
    if not (orphans or (proxy and leaves and rate is not None)):
        return None
    confidence = 0.7 + 0.1 * bool(orphans) + 0.05 * bool(retries) + 0.05 * bool(proxy and orphans)
    seen = (
        f"the engine works on {inside:.0f}, clients wait for {clients:.0f}"
        if orphans
        else "clients are said to give up"
    )
    return Finding(
        "CancellationHidden", Severity.WARNING, confidence,
        f"The engine counts no aborts, yet {seen}: something in between keeps dead requests alive.",
        "Make the proxy close its upstream when its client leaves (streaming helps), and count aborts at the gateway. "
        "Limit retries; give requests a deadline.",
        evidence(abort_rate=rate, client_in_flight=clients, in_engine=inside, timeout_seconds=timeout(case)),
        avoid=f"{_AVOID} An abort rate of 0 proves nothing behind a proxy.", said=(*proxy, *leaves, *retries)[:4],
    )  # fmt: skip
