"""What vLLM's /metrics would show of a simulated run: the truth behind these numbers is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trimtab.observe.exposition import parse
from trimtab.observe.samples import Samples
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.state import F64, I32

#: vLLM 0.32, v1/metrics/loggers.py
TTFT = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1., 2.5, 5., 7.5, 10., 20., 40., 80., 160.)  # fmt: skip
E2E = (.3, .5, .8, 1., 1.5, 2., 2.5, 5., 10., 15., 20., 30., 40., 50., 60., 120., 240., 480., 960.)  # fmt: skip
TPOT = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1., 2.5, 5.)  # fmt: skip
LENGTHS = (1., 2., 5., 10., 20., 50., 100., 200., 500., 1000., 2000., 5000.)  # fmt: skip
LABELS = 'engine="0",model_name="m"'
BEGIN = 1_700_000_000.0


def scrapes(
    outcome: Outcome, config: EngineConfig, every_seconds: float, until: float | None = None
) -> Iterator[tuple[float, str]]:
    """(unix time, text) from the start to the end of the run. `outcome` needs its marks."""
    end = float(np.nanmax(outcome.end)) + every_seconds if until is None else until
    for at in np.arange(0.0, end, every_seconds):
        yield BEGIN + float(at), text_at(outcome, config, float(at))


def as_samples(texts: Iterator[tuple[float, str]], pod: str = "pod") -> Samples:
    series: dict[object, list[tuple[float, float]]] = {}
    for at, text in texts:
        for key, value in parse(text).values.items():
            series.setdefault(key, []).append((at, value))
    return Samples({pod: {key: tuple(points) for key, points in series.items()}})  # type: ignore[misc]


def text_at(outcome: Outcome, config: EngineConfig, at: float) -> str:
    load, ended = outcome.load, outcome.ok & (outcome.end <= at)
    started = outcome.first <= at
    running = ((outcome.scheduled <= at) & ~(outcome.end <= at)).sum()
    waiting = ((load.arrival <= at) & ~(outcome.scheduled <= at) & ~(outcome.end <= at)).sum()
    share = np.clip((at - outcome.first) / np.maximum(outcome.last - outcome.first, 1e-9), 0, 1)
    generated = np.floor(np.where(started, 1 + share * (outcome.tokens - 1), 0)).sum()
    tpot = outcome.tpot[ended & (outcome.tokens > 1)]
    left = np.isin(outcome.ending, (3, 4)) & (outcome.end <= at)
    hits = outcome.cached[outcome.scheduled <= at].sum()
    lines = [
        f"process_start_time_seconds {BEGIN - 100}",
        f'vllm:cache_config_info{{block_size="{config.block_size}",num_gpu_blocks="{config.num_gpu_blocks}",'
        f'enable_prefix_caching="{config.enable_prefix_caching}",engine="0"}} 1.0',
        f"vllm:num_requests_running{{{LABELS}}} {running}",
        f"vllm:num_requests_waiting{{{LABELS}}} {waiting}",
        f"vllm:generation_tokens_total{{{LABELS}}} {generated}",
        f"vllm:prompt_tokens_total{{{LABELS}}} {load.prompt[started].sum()}",
        f"vllm:prefix_cache_hits_total{{{LABELS}}} {hits}",
        f"vllm:prefix_cache_queries_total{{{LABELS}}} {load.prompt[outcome.scheduled <= at].sum()}",
        f"vllm:num_preemptions_total{{{LABELS}}} {outcome.preemptions[ended].sum()}",
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}} {ended.sum()}',
        f'http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {ended.sum() + left.sum()}',
        f"vllm:iteration_tokens_total_count{{{LABELS}}} {_steps(outcome, at)}",
        *_histogram("time_to_first_token_seconds", TTFT, outcome.ttft[started]),
        *_histogram("e2e_request_latency_seconds", E2E, outcome.e2e[ended]),
        *_histogram("request_time_per_output_token_seconds", TPOT, tpot),
        *_histogram("request_queue_time_seconds", E2E, (outcome.scheduled - load.arrival)[ended]),
        *_histogram("request_prefill_time_seconds", E2E, (outcome.first - outcome.scheduled)[ended]),
        *_histogram("request_decode_time_seconds", E2E, (outcome.last - outcome.first)[ended]),
        *_histogram("request_prompt_tokens", LENGTHS, load.prompt[ended]),
        *_histogram("request_generation_tokens", LENGTHS, outcome.tokens[ended]),
        *_histogram("request_params_max_tokens", LENGTHS, load.max_tokens[ended]),
    ]
    return "\n".join(lines) + "\n"


def _steps(outcome: Outcome, at: float) -> float:
    """Steps computed so far: the largest mark up to now."""
    times = np.concatenate((outcome.scheduled, outcome.first, outcome.last))
    steps = outcome.marks[:, :, 0].T.reshape(-1)
    return float(np.max(steps[times <= at], initial=0.0))


def _histogram(name: str, bounds: tuple[float, ...], values: F64 | I32) -> list[str]:
    counts = [(str(b), (values <= b).sum()) for b in bounds] + [("+Inf", len(values))]
    return [
        *(f'vllm:{name}_bucket{{{LABELS},le="{b}"}} {count}' for b, count in counts),
        f"vllm:{name}_count{{{LABELS}}} {len(values)}",
        f"vllm:{name}_sum{{{LABELS}}} {float(values.sum())!r}",
    ]
