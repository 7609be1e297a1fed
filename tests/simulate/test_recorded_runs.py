"""Twelve recorded runs of a real vLLM 0.32 (`benchmarks/vllm_cpu.py`): what three of them predict of the others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import vllm_cpu
from benchmarks.vllm_cpu import CALIBRATE, FIGURES, Calibrated, Recorded

DATA = Path(__file__).parent / "data" / "vllm-0.32-runs.json.gz"
THREE = CALIBRATE.split(",")


@pytest.fixture(scope="module")
def runs() -> dict[str, Recorded]:
    found = json.loads(gzip.decompress(DATA.read_bytes()))
    return {name: vllm_cpu.recorded_from(name, run) for name, run in found.items()}


@pytest.fixture(scope="module")
def by(runs: dict[str, Recorded]) -> Calibrated:
    return vllm_cpu.calibrate([runs[name] for name in THREE])


def test_every_token_found_in_the_prefix_cache_is_predicted(runs: dict[str, Recorded], by: Calibrated) -> None:
    found = {n: vllm_cpu.predicted(r, by.times, by.overhead)[1].counters.prefix_cache_hits for n, r in runs.items()}
    assert found == {n: r.prefix_hits for n, r in runs.items()}
    assert max(found.values()) > 17_000


def test_steps_and_preemptions_follow_once_the_machines_speed_is_known(
    runs: dict[str, Recorded], by: Calibrated
) -> None:
    for name, run in runs.items():
        times = vllm_cpu.slower(by.times, vllm_cpu.slowness(run, by.times))
        counters = vllm_cpu.predicted(run, times, by.overhead)[1].counters
        assert counters.steps == pytest.approx(run.steps, rel=0.12), name
        assert counters.preemptions == pytest.approx(run.preemptions, rel=0.2), name


def test_the_first_fifth_of_a_runs_requests_ranks_the_rest(runs: dict[str, Recorded], by: Calibrated) -> None:
    real, ours = {}, {}
    for name, run in runs.items():
        if name not in THREE:
            early = np.arange(len(run.load)) < vllm_cpu.EARLY * len(run.load)
            times = vllm_cpu.slower(by.times, vllm_cpu.slowness(run, by.times, early))
            real[name] = vllm_cpu.measured(run, ~early)
            ours[name] = vllm_cpu.predicted(run, times, by.overhead, ~early)[0]
    found = dict(zip(FIGURES, vllm_cpu.ranks(real, real, ours), strict=True))
    assert min(found[f] for f in ("throughput", "TTFT mean", "TTFT p90", "E2E mean")) > 0.85, found
