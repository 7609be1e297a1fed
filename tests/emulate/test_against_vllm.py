"""The emulator against a real vLLM 0.32 (CPU, tiny model) with the same flags under the same load.

Metric names and label sets are the same, what does not depend on time is counted equally, and after calibration on one
load the latencies of another are, within 10% and what the engine's two runs of it differ.
"""

from __future__ import annotations

import os
import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulate.twins import FLAGS, Asked, Labels, Seen, Twin, emulated, real
from trimtab.emulate.flags import parse_flags
from trimtab.simulate.config import StepTimes
from trimtab.simulate.fit import RequestLog, Run, fit_step_times
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.profile import LoadModel, Profile, save_profile
from trimtab.simulate.workload import Workload

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
VOCABULARY = 250
#: end tokens for answers that end by themselves: one draw in some 20 of the tiny model's
STOPS = list(range(0, 256, 16))
#: of a quantile, beside what the engine differs from itself in two runs of one load; beyond NOISE nothing can be said
LATENCY_ERROR, NOISE = 0.10, 0.25
SECONDS, RATE = 8.0, 9.0
#: what a figure of time would be; their counts are compared
TIMED = ("_seconds_bucket", "_seconds_sum", "_bytes_sum", "_bytes_total", "highr_seconds")
#: gauges of what the emulator has no part of
UNMODELLED = ("vllm:estimated_", "vllm:cache_config_info")
#: vLLM counts by engine step: which tokens share one depends on the moment
BY_STEP = ("vllm:iteration_tokens_total_bucket", "vllm:iteration_tokens_total_count")


@pytest.fixture(scope="module")
def engine(vllm: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    with real(vllm, tmp_path_factory.mktemp("real")) as twin:
        yield twin


def ids(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1, VOCABULARY) for _ in range(count)]


def scripted() -> list[Asked]:
    """One after the other, so that each finds the cache that those before it left."""
    shared = ids(1, 200)
    return [
        Asked(0, ids(2, 40), 5),
        Asked(0, shared + ids(3, 30), 7),
        Asked(0, shared + ids(4, 90), 1),  # six whole blocks are cached
        Asked(0, shared, 12),
        Asked(0, shared[:192], 3),  # all its blocks are cached, the last one is computed again
        Asked(0, ids(2, 40), 5, {"stream": False, "stream_options": None}),
        Asked(0, ids(5, 64), 400, {"min_tokens": 3, "stop_token_ids": STOPS}),
        Asked(0, ids(6, 33), 400, {"stop_token_ids": STOPS, "temperature": 1.0}),
        Asked(0, ids(7, 1), 20),
        Asked(0, ids(8, 1100), 5),  # longer than max_model_len: a 400
        Asked(0, ids(9, 10), 5, {"model": "other"}),  # a 404
        Asked(0, ids(10, 1000), 100),  # cut at max_model_len
    ]


def one_by_one(twin: Twin, load: Sequence[Asked]) -> list[Seen]:
    return [twin.play([one])[0] for one in load]


def test_names_labels_and_counts_are_the_same(engine: Twin, tmp_path: Path, compiled_scheduler: None) -> None:
    before = engine.samples()
    seen = one_by_one(engine, scripted())
    after = engine.samples()
    with emulated(tmp_path, EMULATE_SPEEDUP="20") as twin:
        # the emulator is told where the real model stopped by itself
        load = [
            replace(one, body={**one.body, "ignore_eos": False, "vllm_xargs": {"emulated_output_tokens": s.tokens}})
            if s.ended == "stop"
            else one
            for one, s in zip(scripted(), seen, strict=True)
        ]
        start = twin.samples()
        assert [(s.tokens, s.ended) for s in one_by_one(twin, load)] == [(s.tokens, s.ended) for s in seen]
        shown = twin.samples()
        assert twin.described() == engine.described()
    assert {"stop", "length", "400", "404"} <= {s.ended for s in seen}
    assert without_values(shown) == without_values(after)
    grown, wanted = growth(start, shown), growth(before, after)
    different = {k: (v, grown.get(k)) for k, v in wanted.items() if grown.get(k) != v}
    assert not different
    assert wanted["vllm:prefix_cache_hits_total", ()] > 500


def without_values(samples: dict[tuple[str, Labels], float]) -> set[tuple[str, Labels]]:
    """Names and label sets. Of the configuration only the labels' names and what the emulator models."""
    modelled = {"num_gpu_blocks", "block_size", "enable_prefix_caching", "kv_cache_size_tokens", "engine"}
    return {
        (name, frozenset((k, v if k in modelled else "") for k, v in labels))
        if name == "vllm:cache_config_info"
        else (name, labels)
        for name, labels in samples
    }


def growth(
    before: dict[tuple[str, Labels], float], after: dict[tuple[str, Labels], float]
) -> Counter[tuple[str, tuple[tuple[str, str], ...]]]:
    """What was counted meanwhile and does not depend on time, by name and labels other than the model's."""
    found: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    for (name, labels), value in after.items():
        counted = name.endswith(("_total", "_bucket", "_sum", "_count"))
        if not counted or name.endswith(TIMED) or name.startswith(UNMODELLED) or name in BY_STEP:
            continue
        if "highr" in name or (name.startswith("http_") and "bytes" in name):
            continue
        key = name, tuple(sorted(pair for pair in labels if pair[0] not in ("model_name", "engine")))
        found[key] += int(value - before.get((name, labels), 0.0))
    return found


# --- latency ----------------------------------------------------------------------------------------------------------


def load_of(seed: int) -> list[Asked]:
    chance, at, load = random.Random(seed), 0.0, []
    shared = ids(1000 + seed, 96)
    while at < SECONDS:
        prompt = ids(chance.getrandbits(30), max(4, min(400, int(chance.lognormvariate(4.2, 0.7)))))
        if chance.random() < 0.3:
            prompt = shared + prompt
        load.append(Asked(at, prompt, max(2, min(60, int(chance.lognormvariate(2.3, 0.7))))))
        at += chance.expovariate(RATE)
    return load


def calibrated(runs: Sequence[tuple[Sequence[Asked], Sequence[Seen]]]) -> StepTimes:
    """From what the clients saw, as they would see it of any engine."""
    config = parse_flags(["m", *FLAGS]).limits
    logs = []
    for load, seen in runs:
        columns = Workload.of(
            [s.sent for s in seen],
            [len(a.prompt) for a in load],
            [a.output for a in load],
            chunks=[a.prompt for a in load],
        )
        first, last = np.array([s.first for s in seen]), np.array([s.last for s in seen])
        log = RequestLog(columns, np.full(len(load), np.nan), first[columns.order], last[columns.order])
        logs.append(Run(log, config, np.ones(len(load), dtype=np.bool_)))
    return fit_step_times(logs).times


def quantiles(seen: Sequence[Seen]) -> dict[str, float]:
    figures = {
        "ttft": [s.first - s.sent for s in seen],
        "tpot": [(s.last - s.first) / (s.tokens - 1) for s in seen],
        "e2e": [s.last - s.sent for s in seen],
    }
    return {f"{name} p{q}": float(np.percentile(values, q)) for name, values in figures.items() for q in (50, 90)}


def test_after_calibration_latency_quantiles_are_the_engines(
    engine: Twin, tmp_path: Path, compiled_scheduler: None
) -> None:
    engine.play(load_of(0)[:20])  # its first requests are slow
    times = calibrated([(learned, engine.play(learned)) for learned in (load_of(1), load_of(3))])
    print(times)
    load = load_of(2)
    twice = [quantiles(engine.play(load)) for _ in range(2)]
    with emulated(tmp_path, **variables(times, tmp_path)) as twin:
        twin.play(load[:20])
        emulated_quantiles = quantiles(twin.play(load))
    errors, noise = {}, {}
    for name, value in emulated_quantiles.items():
        one, two = (run[name] for run in twice)
        errors[name], noise[name] = 2 * value / (one + two) - 1, abs(one - two) / (one + two)
        print(f"{name}: engine {1000 * one:.1f} and {1000 * two:.1f} ms, emulator {1000 * value:.1f} ms, "
              f"error {errors[name]:+.1%}, engine's noise {noise[name]:.1%}")  # fmt: skip
    if max(noise.values()) > NOISE:
        pytest.skip(f"the machine is too busy: the engine differs from itself by {max(noise.values()):.0%}")
    assert not {n: e for n, e in errors.items() if abs(e) > LATENCY_ERROR + noise[n]}, (errors, noise, times)


def variables(times: StepTimes, folder: Path) -> dict[str, str]:
    """A profile of the engine, as a user of the emulator would bring it."""
    length = Lengths.fixed(10)
    load = LoadModel(requests_per_second=1.0, prompt_tokens=length, output_tokens=length)
    profile = Profile(engine=parse_flags(["m", *FLAGS]).limits, times=times, workload=load)
    save_profile(profile, folder / "profile.json")
    return {"EMULATE_PROFILE": str(folder / "profile.json")}


# --- death: the last test, for it kills the engine --------------------------------------------------------------------


def death(twin: Twin, kill: Callable[[], object]) -> dict[str, Any]:
    """What clients see of an engine core that dies under them, and how the process ends."""
    with ThreadPoolExecutor(2) as clients:
        streamed = clients.submit(twin.answer, {"max_tokens": 900, "stream": True})
        whole = clients.submit(twin.answer, {"max_tokens": 900})
        time.sleep(2)  # both are being served: 900 tokens take half a minute
        kill()
        (stream_status, events), (status, text) = streamed.result(), whole.result()
    code = twin.process.wait(60)
    last = [line for line in events.splitlines() if line][-2:]
    print(code, stream_status, last, status, text)
    return {"exit code": code, "stream": (stream_status, last), "whole": (status, text)}


def test_an_engine_core_that_dies_looks_the_same(engine: Twin, tmp_path: Path, compiled_scheduler: None) -> None:
    real_death = death(engine, lambda: os.kill(engine.engine_core(), signal.SIGKILL))
    with emulated(tmp_path, EMULATE_FAULT_API="1") as twin:
        order = urllib.request.Request(f"{twin.url}/emulate/faults", b'{"engine_dead": true}')
        emulated_death = death(twin, lambda: urllib.request.urlopen(order, timeout=10).close())
    assert emulated_death == real_death
