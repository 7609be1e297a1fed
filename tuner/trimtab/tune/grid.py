"""Ranks configurations for one load on the emulator's scheduler in virtual time: minutes of traffic in about a second.

Deterministic: same scenario and seed, same figures, however many processes work. Goodput is exact, request by request
(the judge sees only histograms). One replica of N is simulated, which sees a random 1/N of the requests.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab.emulate.contract import Prompt, SchedulerLimits
from trimtab.emulate.cost import StepCost
from trimtab.emulate.virtual import ClientRequest, RequestRecord, VirtualRun, simulate
from trimtab.engine.settings import Configuration, Value
from trimtab.errors import InputError
from trimtab.load.records import Ending, Record
from trimtab.load.summary import Slo, Summary, summarise
from trimtab.load.trace import Request

#: share of the run that is left out of the figures: the engine fills up
WARMUP_SHARE = 0.2
_ENDINGS: Mapping[str, Ending] = {
    "stop": "ok", "length": "ok", "cancelled": "cancelled", "gave_up": "gave_up", "stuck": "unfinished",
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """The engine as found, and the load on one replica. `patience_seconds`: clients leave without a first token."""

    limits: SchedulerLimits
    cost: StepCost
    requests: tuple[ClientRequest, ...]
    duration_seconds: float
    slo: Slo
    #: from --override-generation-config; None: no cap
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class Result:
    """Figures of one replica over the measured part of the run. `problem`: why the engine would not start, else ""."""

    configuration: Configuration
    goodput_tokens_per_second: float = 0.0
    slo_attainment: float | None = None
    useful_token_ratio: float | None = None
    ttft_p50_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    tpot_p50_seconds: float | None = None
    tpot_p99_seconds: float | None = None
    preemptions: int = 0
    generated_tokens_per_second: float = 0.0
    peak_running: int = 0
    gave_up: int = 0
    problem: str = ""


def client_requests(
    requests: Sequence[Request], replicas: int = 1, *, patience_seconds: float | None = None, seed: int = 0
) -> tuple[ClientRequest, ...]:
    """What one of `replicas` sees of a load. Shared prefixes stay shared; the rest of each prompt is its own."""
    rng = random.Random(f"{seed}:replica")
    return tuple(
        ClientRequest(
            request_id=str(number),
            arrival_seconds=r.arrival_seconds,
            prompt=_prompt(r),
            output_tokens=r.output_tokens,
            max_tokens=r.max_tokens,
            cancel_after_tokens=r.cancel_after_tokens,
            patience_seconds=patience_seconds,
        )
        for number, r in enumerate(requests)
        if rng.randrange(replicas) == 0
    )


def _prompt(request: Request) -> Prompt:
    """Chunks name the shared part; a trace's block ids where it has them."""
    if request.prefix_blocks:
        return Prompt(request.prompt_tokens, request.prefix_blocks, request.block_tokens)
    if request.prefix_group is None or request.prefix_tokens < 1:
        return Prompt(request.prompt_tokens)
    return Prompt(request.prompt_tokens, (("group", request.prefix_group),), request.prefix_tokens)


def combinations(axes: Mapping[str, Sequence[Value]], base: Configuration) -> list[Configuration]:
    """Every combination of the axes over `base`, in order; duplicates once."""
    names = list(axes)
    found = (base.with_(dict(zip(names, values, strict=True))) for values in itertools.product(*axes.values()))
    return list(dict.fromkeys(found))


def evaluate(scenario: Scenario, configuration: Configuration) -> Result:
    """One configuration under the scenario's load. A configuration that no engine starts with has a `problem`."""
    names = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
    changes: dict[str, Any] = {n: configuration[n] for n in names if n in configuration}
    cap = configuration.integer("max_new_tokens") or scenario.max_new_tokens
    requests = [replace(r, max_tokens=min(r.max_tokens, cap)) if cap else r for r in scenario.requests]
    try:
        run = simulate(requests, replace(scenario.limits, **changes), scenario.cost)
    except InputError as error:
        return Result(configuration, problem=str(error))
    return _result(configuration, scenario, run)


def _result(configuration: Configuration, scenario: Scenario, run: VirtualRun) -> Result:
    window = (WARMUP_SHARE * scenario.duration_seconds, scenario.duration_seconds)
    s: Summary = summarise([_record(i, r) for i, r in enumerate(run.records)], window, scenario.slo)
    return Result(
        configuration,
        goodput_tokens_per_second=s.goodput_tokens_per_second,
        slo_attainment=s.slo_attainment,
        useful_token_ratio=s.useful_token_ratio,
        ttft_p50_seconds=s.ttft_seconds.p50,
        ttft_p99_seconds=s.ttft_seconds.p99,
        tpot_p50_seconds=s.tpot_seconds.p50,
        tpot_p99_seconds=s.tpot_seconds.p99,
        preemptions=run.counters.preemptions,
        generated_tokens_per_second=run.counters.generation_tokens / max(1e-9, run.counters.end_seconds),
        peak_running=run.counters.peak_running,
        gave_up=s.gave_up,
    )


def _record(number: int, seen: RequestRecord) -> Record:
    """A virtual request as the load client would have written it."""
    end = seen.end_seconds if seen.end_seconds is not None else float("inf")
    return Record(
        number=number,
        arrival_at=seen.arrival_seconds,
        sent_at=seen.arrival_seconds,
        first_token_at=seen.first_token_seconds,
        last_token_at=seen.last_token_seconds,
        ended_at=end,
        prompt_tokens=seen.prompt_tokens,
        planned_tokens=seen.max_tokens,
        max_tokens=seen.max_tokens,
        tokens=seen.tokens,
        ending=_ENDINGS[seen.ending],
    )


def run_grid(
    scenario: Scenario,
    configurations: Sequence[Configuration],
    *,
    processes: int = 1,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """All results, best first: by goodput, then by TTFT p99. `on_result` is called in the order of completion."""
    results: list[Result] = []
    for result in _results(scenario, configurations, processes):
        results.append(result)
        if on_result is not None:
            on_result(result)
    return sorted(results, key=_rank)


def _rank(result: Result) -> tuple[bool, float, float, tuple[tuple[str, Value], ...]]:
    """Equals in order of their settings, so that the smallest of many equal ones is first."""
    tail = result.ttft_p99_seconds if result.ttft_p99_seconds is not None else float("inf")
    return bool(result.problem), -result.goodput_tokens_per_second, tail, result.configuration.values_


def _results(scenario: Scenario, configurations: Sequence[Configuration], processes: int) -> Iterator[Result]:
    if processes <= 1 or len(configurations) < 2:
        yield from (evaluate(scenario, c) for c in configurations)
        return
    # spawn: a fork of a process with threads (progress bar) may hang
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(processes, len(configurations)), _remember, (scenario,)) as pool:
        yield from pool.imap_unordered(_evaluate_remembered, configurations)


_scenario: list[Scenario] = []


def _remember(scenario: Scenario) -> None:
    """In a worker: keep the load, which is sent once and not with every configuration."""
    _scenario[:] = [scenario]


def _evaluate_remembered(configuration: Configuration) -> Result:
    return evaluate(_scenario[0], configuration)
