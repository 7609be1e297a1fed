"""FrontendBound: the time is lost before or beside the engine: API server, tokenizer, CPU limit, a gateway's own
queue.

Clients hold far more requests than the engine has; or the CPU is at its limit with the GPU idle (vllm#9113, #13247:
TPOT bad from batch 20, torch had started threads for all cores of the node).
"""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity

_MANY = 8


def rule(case: Case) -> Finding | None:
    outside, by_count = _outside(case)
    cpu, by_cpu = _cpu(case)
    if max(by_count, by_cpu) <= 0 or case.preempting() or (case.now("kv_usage") or 0.0) > 0.9:
        return None
    confidence = max(by_count, by_cpu) + (0.1 if by_count and by_cpu else 0.0)
    return Finding(
        "FrontendBound", Severity.WARNING, min(0.95, confidence), " ".join(t for t in (outside, cpu) if t),
        "Give the pod more CPU and set OMP_NUM_THREADS to its CPU quota; add API server processes "
        "(--api-server-count); look at tokenization, logging and the gateway's connection limit.",
        evidence(client_in_flight=case.now("client_in_flight"), running=case.now("running"),
                 waiting=case.now("waiting"), kv_usage=case.now("kv_usage"),
                 cpu_utilization=case.now("cpu_utilization"), gpu_utilization=case.now("gpu_utilization"),
                 tpot_mean_seconds=case.now("tpot_mean_seconds")),
        avoid="Do not change max_num_seqs or the batch: the engine waits for work.", said=case.fact("cpu", "gpu_idle"),
    )  # fmt: skip


def _outside(case: Case) -> tuple[str, float]:
    clients, running, waiting = case.now("client_in_flight"), case.now("running"), case.now("waiting")
    if clients is None or running is None:
        return "", 0.0
    inside = running + (waiting or 0.0)
    everywhere = inside * (case.now("replicas") or 1.0)
    if clients < 2 * inside or clients - inside < _MANY or everywhere > 0.6 * clients:
        return "", 0.0
    if (waiting or 0.0) >= max(8.0, running):
        return "", 0.0  # the engine has a queue of its own
    return f"Clients hold {clients:.0f} requests; the engine has {inside:.0f} of them.", 0.8


def _cpu(case: Case) -> tuple[str, float]:
    used, gpu = case.now("cpu_utilization"), case.now("gpu_utilization")
    busy = used is not None and (0.9 <= used <= 1.05 or 90 <= used <= 105)
    said, idle = case.fact("cpu"), bool(case.fact("gpu_idle")) or (gpu is not None and gpu <= 0.6)
    if not (busy or said) or (gpu is not None and gpu > 0.9):
        return "", 0.0
    waits = (case.now("waiting") or 0.0) >= max(8.0, case.now("running") or 0.0)
    return "The CPU is at its limit" + (
        " while the GPU idles." if idle else "."
    ), 0.5 + 0.15 * busy + 0.2 * idle - 0.1 * waits
