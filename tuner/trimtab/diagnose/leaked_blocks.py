"""LeakedBlocks: KV blocks are held that no running request needs: leaked, or pinned by a KV connector.

vLLM's KV use counts referenced blocks only, so held blocks without running requests are a fault. SGLang may count
evictable ones (sglang#6778): there it is a suspicion. Connectors pin aborted prefills until their time-out
(vllm#29906). A few long requests that fill the cache are no leak: the number of tokens per running request tells.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, Point, evidence
from trimtab.diagnose.finding import Finding, Severity

_HELD = 0.1
_FULL = 0.85


def rule(case: Case) -> Finding | None:
    confidence, text = max((_idle(case), _impossible(case), _few(case)), key=lambda found: found[0])
    if confidence <= 0:
        return None
    connector = pinned(case)
    if case.engine.kind == "sglang":
        confidence = min(confidence, 0.55)
        check = "First see whether new requests get in, or flush the cache: SGLang may count evictable blocks. "
    else:
        check = ""
    advice = (
        "Blocks wait for the KV connector: align its time-out with the router's, look at aborted transfers."
        if connector else "Alarm: keep the log, drain and restart this engine, and report it with the version."
    )  # fmt: skip
    return Finding(
        "LeakedBlocks", Severity.CRITICAL if confidence >= 0.7 else Severity.WARNING, confidence, text, check + advice,
        evidence(kv_usage=case.last("kv_usage"), running=case.last("running"), waiting=case.last("waiting"),
                 kv_usage_early=case.early("kv_usage"), running_early=case.early("running"),
                 ttft_p50_seconds=case.now("ttft_p50_seconds"), ttft_p50_early_seconds=case.early("ttft_p50_seconds"),
                 abort_rate=case.now("abort_rate")),
        avoid="Do not raise max_num_seqs or gpu_memory_utilization: the blocks would be held as well.",
        said=case.fact("disaggregated", "evictable"),
    )  # fmt: skip


def pinned(case: Case) -> bool:
    return case.engine.has("kv-transfer-config", "kv-connector", "disaggregation-mode") or bool(
        case.fact("disaggregated")
    )


def _idle(case: Case) -> tuple[float, str]:
    """Nothing runs and KV is held."""
    held = case.tail(_holds)
    if not held:
        return 0.0, ""
    waiting = held[-1].get("waiting") or 0.0
    kv = held[-1].get("kv_usage") or 0.0
    falls = len(held) > 1 and kv < 0.8 * (held[0].get("kv_usage") or 0.0)
    behind = f" and {waiting:.0f} wait" if waiting >= 0.5 else ""
    # a single moment says much here: nothing but a request holds blocks
    sure = max(case.certainty(held), 0.75 if kv >= 0.5 and case.seconds(held) is None else 0.0)
    return sure * (0.6 if falls else 1.0), f"{kv:.0%} of the KV cache is held while nothing runs{behind}."


def _holds(point: Point) -> bool:
    running, kv = point.get("running"), point.get("kv_usage")
    return running is not None and kv is not None and running <= 0.01 and kv > _HELD


def _impossible(case: Case) -> tuple[float, str]:
    """More tokens are held than the running requests could have at their longest."""
    pool, longest = case.now("kv_capacity_tokens") or case.facts.pool_tokens, case.engine.number("longest")
    running, kv = case.last("running"), case.last("kv_usage")
    if pool is None or longest is None or running is None or kv is None or running <= 0.01:
        return 0.0, ""
    most = running * longest / pool
    if kv <= 1.1 * most + 0.02:
        return 0.0, ""
    return 0.9, f"{kv:.0%} of the KV cache is held; {running:.0f} running requests can hold {most:.0%} at most."


def _few(case: Case) -> tuple[float, str]:
    """The share of KV for one running request has multiplied: use stays or rises while running falls."""
    pairs = [(r, k) for r, k in case.pairs("running", "kv_usage") if r >= 0.5]
    if len(pairs) < 3:
        return _pinned_now(case)
    third = max(1, len(pairs) // 3)
    early = sum(k for _, k in pairs[:third]) / sum(r for r, _ in pairs[:third])
    late = sum(k for _, k in pairs[-third:]) / sum(r for r, _ in pairs[-third:])
    fewer = sum(r for r, _ in pairs[-third:]) <= 0.7 * sum(r for r, _ in pairs[:third])
    slower = (case.change("ttft_p50_seconds") or case.change("ttft_p99_seconds") or 0.0) >= 2
    late_kv = pairs[-1][1]
    if early <= 0 or late < 2 * early or late_kv < 0.5 or pairs[-1][1] < pairs[0][1] - 0.05:
        return _pinned_now(case)
    if not (fewer or slower):
        return 0.0, ""
    confidence = 0.55 + 0.15 * fewer + 0.15 * slower + 0.1 * ((case.now("waiting") or 0.0) >= 1)
    return confidence, (
        f"KV use for one running request grew {late / early:.1f} times to {late:.1%}, and does not come back."
    )


def _pinned_now(case: Case) -> tuple[float, str]:
    """A connector, a full cache and nearly empty slots."""
    share, kv, waiting = case.slot_share(), case.now("kv_usage"), case.now("waiting") or 0.0
    running = case.now("running")
    few = share <= 0.15 if share is not None else running is not None and running <= 4
    if not pinned(case) or kv is None or kv < _FULL or not few or waiting < 1:
        return 0.0, ""
    aborts = (case.now("abort_rate") or 0.0) > 0.02 or bool(case.fact("timeout", "cancel"))
    return 0.7 + 0.1 * aborts, f"The KV cache is {kv:.0%} full with {running or 0:.0f} running: blocks are freed late."
