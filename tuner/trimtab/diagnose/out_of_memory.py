"""OutOfMemory: it started, and died under load. Ready is not feasible (vllm#21410); KV arithmetic knows no activations
(TGI#832); sampler warm-up grows with max_num_seqs (vllm#15105). Known from the report's words only."""

from __future__ import annotations

from trimtab.diagnose.case import Case, evidence
from trimtab.diagnose.finding import Finding, Severity


def rule(case: Case) -> Finding | None:
    said = case.fact("oom")
    if not said:
        return None
    host = bool(case.fact("host_oom")) and not any("cuda" in line.lower() for line in said)
    seen = evidence(restarts=case.last("restarts"), running=case.highest("running"), kv_usage=case.highest("kv_usage"),
                    gpu_memory_utilization=case.engine.number("memory"), max_num_seqs=case.engine.slots,
                    max_num_batched_tokens=case.engine.number("step_budget"))  # fmt: skip
    if host:
        return Finding(
            "OutOfMemory", Severity.CRITICAL, 0.75, "The pod ran out of host memory.",
            "Raise the pod's memory limit, or find what grows (CPU offload, swap space, log buffers).", seen,
            avoid="Do not change engine flags for GPU memory: it is the host's memory that ended.", said=said,
        )  # fmt: skip
    return Finding(
        "OutOfMemory", Severity.CRITICAL, 0.8, "The GPU ran out of memory: activations and sampling need what KV took.",
        f"Lower {' or '.join(case.engine.levers('memory', 'slots', 'step_budget'))} in small steps and test under full "
        "load; that it starts proves nothing.",
        seen, avoid="Do not raise memory utilisation or slots; do not compute the batch size from KV tokens alone.",
        tunable=True, settings=case.engine.levers("memory", "slots", "step_budget"), said=said,
    )  # fmt: skip
