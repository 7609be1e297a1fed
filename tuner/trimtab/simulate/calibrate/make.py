"""A `Profile` from metrics or from a request log: settings checked against what was measured, fit, held-out part.

Settings that no metric shows (max_num_seqs, max_num_batched_tokens, ...) are the caller's; what the metrics contradict
is refused. The block count is the engine's own, never derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trimtab.errors import InputError
from trimtab.observe.observation import Observation
from trimtab.observe.samples import Samples
from trimtab.simulate.calibrate import held_out
from trimtab.simulate.calibrate.logs import Log
from trimtab.simulate.calibrate.metrics_fit import SEEDS, MetricsRun, fit_metrics, replayed
from trimtab.simulate.calibrate.period import SEGMENT_REQUESTS, Period, read_period
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.fit import WEAK, Fitted, Prior, RequestLog, Run, fit_step_times
from trimtab.simulate.lengths import Lengths, next_edge
from trimtab.simulate.profile import HeldOut, LoadModel, Profile, Trace
from trimtab.simulate.simulator import simulate

#: share of the segments that is fitted; the rest, later in time, is held out
FITTED_SHARE: Final = 2 / 3
MINIMUM_SEGMENTS: Final = 3
_BLOCKS_FIX: Final = (
    "Give --blocks: the engine logs num_gpu_blocks at its start; cache_config_info has it since vLLM 0.9."
)


def from_metrics(
    samples: Samples, pod: str, start: float, end: float, settings: Mapping[str, Any], prior: Prior = WEAK
) -> Profile:
    """Of what `pod` did in [start, end] (unix seconds). InputError: too little, or contradictory, and what to do."""
    period = read_period(samples, pod, start, end)
    config = engine_of(period, settings)
    fitted = int(np.ceil(len(period.segments) * FITTED_SHARE))
    if len(period.segments) < MINIMUM_SEGMENTS or fitted == len(period.segments):
        problem = f"{period.whole.finished:.0f} finished requests and the scrapes make {len(period.segments)} segments"
        least = MINIMUM_SEGMENTS * SEGMENT_REQUESTS
        fix = f"At least {MINIMUM_SEGMENTS} are needed: {least} finished requests and {MINIMUM_SEGMENTS + 1} scrapes."
        raise InputError("range", problem, fix)
    run = MetricsRun(period, config, fitted)
    found = fit_metrics([run], prior)
    outcomes = [simulate(replayed(period, seed), config, found.times) for seed in range(SEEDS)]
    api = api_seconds(period.whole)
    heldout = held_out.of_metrics(run, outcomes, api)
    source = (
        f"metrics of {pod}: {period.whole.finished:.0f} finished requests in {period.edges[-1]:.0f} s, the first "
        f"{fitted} of {len(period.segments)} segments fitted"
    )
    return _profile(config, replace(found, api_seconds=api), period.load, heldout, source)


def from_log(log: Log, settings: Mapping[str, Any], prior: Prior = WEAK) -> Profile:
    """Fitted on the first half of the requests by arrival, held out: the second."""
    if "num_gpu_blocks" not in settings:
        raise InputError("--blocks", "a request log does not say the engine's block count", _BLOCKS_FIX)
    config = EngineConfig(**settings)
    requests = log.requests
    n = len(requests.load)
    half = np.arange(n) < n // 2
    client = bool(np.isnan(requests.scheduled).any())
    found = fit_step_times([Run(requests, config, half & log.whole)], prior, api=client)
    outcome = simulate(requests.load, config, found.times)
    rest = ~half & log.whole & outcome.ok
    gaps = np.maximum(requests.load.output - 1, 1)
    measured = {
        "ttft": requests.first - requests.load.arrival,
        "tpot": np.where(requests.load.output > 1, (requests.last - requests.first) / gaps, np.nan),
        "e2e": requests.last - requests.load.arrival,
    }
    api = found.api_seconds
    predicted = {"ttft": outcome.ttft + api, "tpot": outcome.tpot, "e2e": outcome.e2e + api}
    heldout = held_out.of_log({k: v[rest] for k, v in measured.items()}, {k: v[rest] for k, v in predicted.items()})
    return _profile(config, found, load_of(requests), heldout, f"request log of {n} requests, the first half fitted")


def api_seconds(whole: Observation) -> float:
    """vLLM's TTFT begins in the API server, queue and prefill time in the engine: what lies between, on average."""
    parts = (whole.ttft_seconds, whole.queue_seconds, whole.prefill_seconds)
    ttft, queue, prefill = (part.mean if part else None for part in parts)
    return max(0.0, ttft - queue - prefill) if ttft and queue is not None and prefill is not None else 0.0


def load_of(requests: RequestLog) -> LoadModel:
    """The log's own requests as a trace."""
    load = requests.load
    span = float(load.arrival[-1] - load.arrival[0])
    return LoadModel(
        requests_per_second=(len(load) - 1) / span if span > 0 else float(len(load)),
        arrivals="trace",
        prompt_tokens=Lengths.of(load.prompt),
        output_tokens=Lengths.of(load.output),
        cancel_share=float((load.cancel_tokens > 0).mean()),
        trace=Trace(
            arrival_seconds=tuple((load.arrival - load.arrival[0]).tolist()),
            prompt_tokens=tuple(load.prompt.tolist()),
            output_tokens=tuple(load.output.tolist()),
            max_tokens=tuple(load.max_tokens.tolist()),
            cancel_after_tokens=tuple(load.cancel_tokens.tolist()),
        ),
    )


def engine_of(period: Period, settings: Mapping[str, Any]) -> EngineConfig:
    """The settings with what the metrics show; InputError where they contradict each other."""
    shown = _shown(period.whole)
    for name, value in shown.items():
        if name in settings and settings[name] != value:
            problem = f"{name} is given as {settings[name]}, but the engine reports {value}"
            raise InputError(name, problem, "Leave it out, or check that this is the right target.")
    if "num_gpu_blocks" not in {**settings, **shown}:
        raise InputError("num_gpu_blocks", "the metrics do not show it, or it changed in the range", _BLOCKS_FIX)
    edge, beyond = _length_edges(period.whole)
    config = EngineConfig(**{"max_model_len": beyond - 1, **settings, **shown})
    if period.most_running > config.active_limit:
        problem = f"{period.most_running:.0f} requests ran at once, more than max_num_seqs {config.active_limit} allows"
        raise InputError("max_num_seqs", problem, "Give the engine's real value with --set max_num_seqs=N.")
    if not edge <= config.max_model_len < beyond:
        problem = f"it is {config.max_model_len}, but the length buckets of an engine with that do not end at {edge}"
        raise InputError("max_model_len", problem, "Give the engine's real value with --set max_model_len=N.")
    return config


def _length_edges(whole: Observation) -> tuple[int, int]:
    """The last edge of the length buckets, which is at most max_model_len, and the next one, which is above it.

    Source: vLLM, v1/metrics/loggers.py, build_1_2_5_buckets.
    """
    edges = [b for b in (whole.prompt_length.bounds if whole.prompt_length else ()) if b < float("inf")]
    last = max(edges, default=1.0)
    return int(last), int(next_edge(last))


def _shown(whole: Observation) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if whole.num_gpu_blocks is not None:
        shown["num_gpu_blocks"] = int(whole.num_gpu_blocks)
    if whole.block_size_tokens is not None:
        shown["block_size"] = int(whole.block_size_tokens)
    if whole.prefix_caching is not None:
        shown["enable_prefix_caching"] = whole.prefix_caching
    return shown


def _profile(config: EngineConfig, found: Fitted, load: LoadModel, heldout: dict[str, HeldOut], source: str) -> Profile:
    held_out.require_plausible(heldout)
    return Profile(
        engine=config,
        times=found.times,
        times_stderr=dict(found.stderr),
        times_draws=found.draws,
        api_seconds=found.api_seconds,
        workload=load,
        heldout=heldout,
        source=source,
    )
