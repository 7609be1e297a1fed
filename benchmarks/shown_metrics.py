"""What vLLM's /metrics would have shown of a run whose every request is known, simulated or logged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trimtab.observe.exposition import parse
from trimtab.observe.samples import Samples
from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.fit import RequestLog
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Workload

#: vLLM 0.32, v1/metrics/loggers.py
TTFT = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1., 2.5, 5., 7.5, 10., 20., 40., 80., 160.)  # fmt: skip
E2E = (.3, .5, .8, 1., 1.5, 2., 2.5, 5., 10., 15., 20., 30., 40., 50., 60., 120., 240., 480., 960.)  # fmt: skip
TPOT = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1., 2.5, 5.)  # fmt: skip
LENGTHS = (1., 2., 5., 10., 20., 50., 100., 200., 500., 1000., 2000.)  # fmt: skip
LABELS = 'engine="0",model_name="m"'
BEGIN = 1_700_000_000.0


@dataclass(frozen=True)
class Run:
    """Per request: seconds (nan: never), tokens delivered, and whether its client left. `steps`: seconds and steps
    computed by then, None where that is not known.
    """

    load: Workload
    scheduled: F64
    first: F64
    last: F64
    end: F64
    tokens: I32
    left: I32
    preemptions: I32
    cached: I32
    steps: tuple[F64, F64] | None

    @classmethod
    def of_outcome(cls, o: Outcome) -> Run:
        """`o` needs its marks."""
        times = np.concatenate((o.scheduled, o.first, o.last))
        steps = times, o.marks[:, :, st.W_STEPS].T.reshape(-1)
        left = np.isin(o.ending, (st.CANCELLED, st.GAVE_UP)).astype(np.int32)
        return cls(o.load, o.scheduled, o.first, o.last, o.end, o.tokens, left, o.preemptions, o.cached, steps)

    @classmethod
    def of_log(cls, log: RequestLog) -> Run:
        none = np.zeros(len(log.load), np.int32)
        return cls(log.load, log.scheduled, log.first, log.last, log.last, log.load.output, none, none, none, None)


def scrapes(
    run: Run, config: EngineConfig, every_seconds: float, until: float | None = None
) -> Iterator[tuple[float, str]]:
    """(unix time, text) from the start to the end of the run."""
    end = float(np.nanmax(run.end)) + every_seconds if until is None else until
    for at in np.arange(0.0, end, every_seconds):
        yield BEGIN + float(at), text_at(run, config, float(at))


def as_samples(texts: Iterator[tuple[float, str]], pod: str = "pod") -> Samples:
    series: dict[object, list[tuple[float, float]]] = {}
    for at, text in texts:
        for key, value in parse(text).values.items():
            series.setdefault(key, []).append((at, value))
    return Samples({pod: {key: tuple(points) for key, points in series.items()}})  # type: ignore[misc]


def text_at(run: Run, config: EngineConfig, at: float) -> str:
    load = run.load
    gone, ended, started = run.end <= at, (run.end <= at) & (run.left == 0), run.first <= at
    running = ((run.scheduled <= at) & ~gone).sum()
    waiting = ((load.arrival <= at) & ~(run.scheduled <= at) & ~gone).sum()
    share = np.clip((at - run.first) / np.maximum(run.last - run.first, 1e-9), 0, 1)
    generated = np.floor(np.where(started, 1 + share * (run.tokens - 1), 0)).sum()
    several = ended & (run.tokens > 1)
    tpot = (run.last - run.first)[several] / (run.tokens[several] - 1)
    lines = [
        f"process_start_time_seconds {BEGIN - 100}",
        f'vllm:cache_config_info{{block_size="{config.block_size}",num_gpu_blocks="{config.num_gpu_blocks}",'
        f'enable_prefix_caching="{config.enable_prefix_caching}",engine="0"}} 1.0',
        f"vllm:num_requests_running{{{LABELS}}} {running}",
        f"vllm:num_requests_waiting{{{LABELS}}} {waiting}",
        f"vllm:generation_tokens_total{{{LABELS}}} {generated}",
        f"vllm:prompt_tokens_total{{{LABELS}}} {load.prompt[started].sum()}",
        f"vllm:prefix_cache_hits_total{{{LABELS}}} {run.cached[run.scheduled <= at].sum()}",
        f"vllm:prefix_cache_queries_total{{{LABELS}}} {load.prompt[run.scheduled <= at].sum()}",
        f"vllm:num_preemptions_total{{{LABELS}}} {run.preemptions[ended].sum()}",
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}} {ended.sum()}',
        f'http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {gone.sum()}',
        *_steps(run, at),
        *_histogram("time_to_first_token_seconds", TTFT, (run.first - load.arrival)[started]),
        *_histogram("e2e_request_latency_seconds", E2E, (run.end - load.arrival)[ended]),
        *_histogram("request_time_per_output_token_seconds", TPOT, tpot),
        *_histogram("request_queue_time_seconds", E2E, (run.scheduled - load.arrival)[ended]),
        *_histogram("request_prefill_time_seconds", E2E, (run.first - run.scheduled)[ended]),
        *_histogram("request_decode_time_seconds", E2E, (run.last - run.first)[ended]),
        *_histogram("request_prompt_tokens", LENGTHS, load.prompt[ended]),
        *_histogram("request_generation_tokens", LENGTHS, run.tokens[ended]),
        *_histogram("request_params_max_tokens", LENGTHS, load.max_tokens[ended]),
    ]
    return "\n".join(lines) + "\n"


def _steps(run: Run, at: float) -> list[str]:
    if run.steps is None:
        return []
    times, steps = run.steps
    return [f"vllm:iteration_tokens_total_count{{{LABELS}}} {float(np.max(steps[times <= at], initial=0.0))}"]


def _histogram(name: str, bounds: tuple[float, ...], values: F64 | I32) -> list[str]:
    counts = [(str(b), (values <= b).sum()) for b in bounds] + [("+Inf", len(values))]
    return [
        *(f'vllm:{name}_bucket{{{LABELS},le="{b}"}} {count}' for b, count in counts),
        f"vllm:{name}_count{{{LABELS}}} {len(values)}",
        f"vllm:{name}_sum{{{LABELS}}} {float(values.sum())!r}",
    ]
