"""Imbalance: one rank or pod queues while another has room. A router's matter.

vllm#52463: ties rotated between ranks.
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_TIMES_MEAN = 1.4
_FEW = 3.0


def rule(case: Case) -> Finding | None:
    loads = {name: load for name in case.parts if (load := _load(case, name)) is not None}
    if len(loads) >= 2:
        return _measured(case, loads)
    said = case.fact("uneven")
    if not said:
        return None
    return _finding(case, 0.6, "The report says that load is uneven.", {}, said)


def _load(case: Case, name: str) -> float | None:
    part = Case(case.parts[name])
    running, waiting = part.now("running"), part.now("waiting")
    return None if running is None and waiting is None else (running or 0.0) + (waiting or 0.0)


def _measured(case: Case, loads: dict[str, float]) -> Finding | None:
    mean = sum(loads.values()) / len(loads)
    top, bottom = max(loads, key=loads.__getitem__), min(loads, key=loads.__getitem__)
    if loads[top] < _TIMES_MEAN * mean or loads[top] - loads[bottom] < _FEW:
        return None
    busy, idle = Case(case.parts[top]), Case(case.parts[bottom])
    pressed = (busy.now("waiting") or 0.0) >= 1 or (busy.now("kv_usage") or 0.0) >= 0.9 or busy.preempting()
    room = (idle.now("waiting") or 0.0) < 1 and (idle.now("kv_usage") or 0.0) < 0.8
    text = f"{top} holds {loads[top]:.0f} requests, {bottom} {loads[bottom]:.0f}."
    seen = evidence(
        busiest=loads[top], idlest=loads[bottom], mean=mean, busiest_waiting=busy.now("waiting"),
        busiest_kv_usage=busy.now("kv_usage"), idlest_kv_usage=idle.now("kv_usage"),
        busiest_hit_ratio=busy.now("prefix_hit_ratio"), idlest_hit_ratio=idle.now("prefix_hit_ratio"),
    )  # fmt: skip
    confidence = 0.9 if pressed and room else 0.6 if pressed or loads[bottom] < 0.25 * mean else 0.4
    return _finding(case, confidence, text, seen, case.fact("ranks"))


def _finding(case: Case, confidence: float, text: str, seen: dict[str, float], said: tuple[str, ...]) -> Finding:
    return Finding(
        "Imbalance", Severity.WARNING, confidence, text,
        "Route by load (least requests, or KV use) instead of round robin or sticky sessions; keep prefix affinity "
        "only while the favoured one is not full.",
        seen, avoid="Do not tune the engines: the average of a full and an idle one looks fine and is not.", said=said,
    )  # fmt: skip
