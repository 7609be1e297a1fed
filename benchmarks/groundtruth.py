"""How far fitted step times are off on runs of a real vLLM: LLMServingSim's bench/examples (docs/simulator.md).

    python benchmarks/simulate.py groundtruth FOLDER...   # each: requests.jsonl, meta.json, config.json, summary.txt

Per run predictions of the second half of the requests (by arrival): fitted on the first half with the roofline as
prior; fitted on the first two thirds of what /metrics would have shown every 5 s, without any request's own times; the
roofline alone; and the roofline corrected by what another run's first half showed. Errors of mean, p50, p90,
p99; in brackets those of the run's summary (LLMServingSim, all requests).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from shown_metrics import BEGIN, as_samples, scrapes
from shown_metrics import Run as Shown

from trimtab.simulate.calibrate.make import FITTED_SHARE
from trimtab.simulate.calibrate.metrics_fit import MetricsRun, fit_metrics
from trimtab.simulate.calibrate.period import read_period
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import Fitted, Prior, RequestLog, Run, coefficients_of, fit_step_times, times_of
from trimtab.simulate.roofline import gpu_named, roofline
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64
from trimtab.simulate.workload import Workload

#: where a run does not say its block count: far more than it can use
PLENTY_OF_BLOCKS = 100_000
SCRAPE_SECONDS = 5.0
#: the models' public config.json, as far as step times need it
MODELS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    },
    "Qwen/Qwen3-32B": {
        "model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "torch_dtype": "bfloat16",
    },
    "Qwen/Qwen3-30B-A3B-Instruct-2507": {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    name: str
    run: Run
    prior: Prior
    theirs: dict[str, float]


def read_case(folder: Path) -> Case:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda r: r["queued_ts"])
    meta = json.loads((folder / "meta.json").read_text())
    engine, cache = meta["engine_kwargs"], meta.get("kv_cache", {})
    begin = rows[0]["queued_ts"]
    column = {k: np.array([r[k] for r in rows]) for k in rows[0] if k != "request_id"}
    load = Workload.of(column["queued_ts"] - begin, column["input_toks"], column["output_toks"])
    log = RequestLog(load, *(column[k] - begin for k in ("scheduled_ts", "first_token_ts", "last_token_ts")))
    replicas, shards = engine["data_parallel_size"], engine["tensor_parallel_size"]
    config = EngineConfig(
        cache.get("num_gpu_blocks", PLENTY_OF_BLOCKS),
        engine["max_num_seqs"] * replicas,
        engine["max_num_batched_tokens"] * replicas,
        cache.get("block_size", 16),
        max_model_len=engine["max_model_len"] or 40_960,
    )
    hardware = json.loads((folder / "config.json").read_text())["nodes"][0]["instances"][0]["hardware"]
    prior = roofline(MODELS[meta["model"]], gpu_named(hardware), tensor_parallel=shards, data_parallel=replicas)
    first_half = np.arange(len(load)) < len(load) // 2
    return Case(folder.name, Run(log, config, first_half), prior, read_summary((folder / "summary.txt").read_text()))


def read_summary(text: str) -> dict[str, float]:
    """Their relative errors: 'TTFT mean' -> 0.006."""
    found = re.findall(r"^(TTFT|TPOT|Latency) (Mean|Median|P90|P99).* ([+-]?[\d.]+)%$", text, re.MULTILINE)
    names = {"Mean": "mean", "Median": "p50", "P90": "p90", "P99": "p99"}
    return {f"{figure} {names[which]}": float(percent) / 100 for figure, which, percent in found}


def groundtruth(folders: Sequence[Path]) -> None:
    cases = [read_case(folder) for folder in folders]
    fits: dict[str, Fitted] = {}
    for case in cases:
        begin = time.process_time()
        fits[case.name] = fit_step_times([case.run], case.prior)
        fitted = fits[case.name]
        print(f"{case.name}: fitted in {time.process_time() - begin:.1f} s, residual {fitted.residual:.1%}")
        for name, error in fitted.stderr.items():
            print(f"  {name:18} {getattr(fitted.times, name):.3g} +- {error:.1g} s")
        print("  fitted           ", line(case, fitted.times))
        print("  metrics alone    ", line(case, from_metrics_alone(case)))
        print("  roofline alone   ", line(case, times_of(case.prior.median)))
        print("  mixed batches off", line(case, without_prefill_step(case)))
    for case in cases:
        for other in cases:
            if other is not case:
                seen = coefficients_of(fits[other.name].times) / other.prior.median
                print(f"{case.name} from {other.name}:", line(case, times_of(case.prior.median * seen)))


def from_metrics_alone(case: Case) -> StepTimes:
    samples = as_samples(scrapes(Shown.of_log(case.run.log), case.run.config, SCRAPE_SECONDS))
    period = read_period(samples, "pod", BEGIN - 1, BEGIN + 1e4)
    fitted = math.ceil(len(period.segments) * FITTED_SHARE)
    return fit_metrics([MetricsRun(period, case.run.config, fitted)], case.prior).times


def without_prefill_step(case: Case) -> StepTimes:
    """The fit without that coefficient: what it is worth."""
    at = list(coefficients_of(StepTimes(per_prefill_step=1.0, fixed=0.0))).index(1.0)
    median, spread = case.prior.median.copy(), case.prior.spread.copy()
    median[at], spread[at] = 1e-12, 1e-3
    return replace(fit_step_times([case.run], Prior(median, spread)).times, per_prefill_step=0.0)


def line(case: Case, times: StepTimes) -> str:
    log, rest = case.run.log, ~case.run.use
    outcome = simulate(log.load, case.run.config, times)
    gaps = np.maximum(log.load.output - 1, 1)
    pairs = {
        "TTFT": (log.first - log.load.arrival, outcome.ttft),
        "TPOT": ((log.last - log.first) / gaps, outcome.tpot),
        "Latency": (log.last - log.load.arrival, outcome.e2e),
    }
    parts = []
    for name, (real, ours) in pairs.items():
        found, theirs = errors(real[rest], ours[rest]), case.theirs
        parts.append(name + " " + " ".join(f"{k} {e:+.1%} ({theirs[f'{name} {k}']:+.1%})" for k, e in found.items()))
    return "; ".join(parts)


def errors(real: F64, ours: F64) -> dict[str, float]:
    """Relative errors of mean and quantiles."""
    out = {"mean": float(np.nanmean(ours) / real.mean() - 1)}
    for q in (50, 90, 99):
        out[f"p{q}"] = float(np.nanpercentile(ours, q) / np.percentile(real, q) - 1)
    return out
