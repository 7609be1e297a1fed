"""Trials and files that a report is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Phase, TrialRecord
from trimtab.tune.state import record_json

Json = dict[str, Any]
NOW = 1_790_000_000.0
BASE = Configuration.of(max_num_seqs=256, enable_prefix_caching=False)


def verdict(kind: Kind, gain: float | None, **over: Any) -> Verdict:
    """With numbers of both arms, as the judge gives them."""
    arms = {"canary_goodput": 100 * (1 + (gain or 0)), "control_goodput": 100.0, "canary_ttft_p50_seconds": 0.4,
            "control_ttft_p50_seconds": 0.8, "canary_ttft_p99_seconds": 1.2, "control_ttft_p99_seconds": 4.8,
            "canary_tpot_p50_seconds": 0.03, "control_tpot_p50_seconds": 0.04, "canary_tpot_p99_seconds": 0.05,
            "control_tpot_p99_seconds": 0.14, "windows": 8.0}  # fmt: skip
    reason = {Kind.BETTER: "GoodputBetter", Kind.WORSE: "GoodputWorse"}.get(kind, "WithinNoise")
    low, high = (None, None) if gain is None else (gain - 0.1, gain + 0.1)
    values: Json = {"reason": reason, "message": f"{kind.value} it is.", "gain": gain, "gain_low": low,
                    "gain_high": high, "score": gain, "numbers": arms}  # fmt: skip
    return Verdict(kind, **{**values, **over})


def trial(number: int = 1, phase: Phase = Phase.PROMOTED, found: Verdict | None = None, **over: Any) -> TrialRecord:
    start = NOW + 300 * number
    made = TrialRecord(
        name=f"trial-{number}", number=number, baseline=BASE, phase=phase, phase_since=start + 240, started_at=start,
        configuration=Configuration.of(max_num_seqs=32, enable_prefix_caching=True), replicas=2, restarts=2,
        origin="fits the blocks", measure_from=start + 60, finished_at=start + 240, verdict=found, message="done",
    )  # fmt: skip
    return replace(made, **over)


def result(*trials: TrialRecord, **over: Any) -> Json:
    """What `trimtab tune --json` writes."""
    figures = {"goodput_tokens_per_second": 100.0, "useful_tokens_per_second": 150.0, "waiting": 7.0,
               "generated_tokens_per_second": 200.0, "slo_attainment": 0.66, "ttft_p50_seconds": 0.8,
               "ttft_p99_seconds": 4.8, "tpot_p50_seconds": 0.04, "tpot_p99_seconds": 0.14,
               "error_ratio": 0.0}  # fmt: skip
    after = {**figures, "goodput_tokens_per_second": 220.0, "useful_tokens_per_second": 180.0, "ttft_p99_seconds": 1.2}
    return {
        "done": True, "command": "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 32", "replicas": 2,
        "given": "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 256", "before": figures, "after": after,
        "trials": [record_json(t) for t in trials], "load": None, **over,
    }  # fmt: skip
