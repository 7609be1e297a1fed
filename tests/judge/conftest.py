"""A target in miniature: windows of requests, noise that both arms share, noise of each arm, autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from trimtab.judge.windows import Pair, join
from trimtab.observe.observation import Histogram, Observation, combine

INF = float("inf")
#: vLLM's edges (seconds)
TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    INF,
)  # fmt: skip
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, INF)


@dataclass(frozen=True)
class Load:
    """`effect`: goodput ratio canary / control; `ttft`, `tpot`: latency ratios; `rho`: lag-1 autocorrelation."""

    windows: int = 10
    seconds: float = 30.0
    rate: float = 2.0
    effect: float = 1.0
    ttft: float = 1.0
    tpot: float = 1.0
    noise: float = 0.05
    rho: float = 0.0
    controls: int = 2


def histogram(values: np.ndarray, edges: tuple[float, ...]) -> Histogram:
    counts = np.searchsorted(np.sort(values), np.array(edges), side="right")
    return Histogram(edges, tuple(float(c) for c in counts), float(values.sum()))


def _noise(rng: np.random.Generator, n: int, sd: float, rho: float) -> np.ndarray:
    out, state = np.empty(n), rng.normal(0, sd)
    for i in range(n):
        out[i] = state
        state = rho * state + rng.normal(0, sd * math.sqrt(1 - rho * rho))
    return out


def _arm(
    rng: np.random.Generator, load: Load, shared: np.ndarray, effect: float, ttft: float, tpot: float
) -> list[Observation]:
    speed, lag = _noise(rng, load.windows, load.noise, load.rho), _noise(rng, load.windows, 3 * load.noise, load.rho)
    out = []
    for i in range(load.windows):
        n = int(rng.poisson(load.rate * load.seconds * math.exp(shared[i] + speed[i]) * effect))
        tokens = float(np.exp(rng.normal(5.0, 0.5, n)).sum())
        first = np.exp(rng.normal(math.log(0.3) + shared[i] + lag[i], 0.8, n)) * ttft
        per = np.exp(rng.normal(math.log(0.03) + 0.3 * shared[i] + speed[i], 0.3, n)) * tpot
        out.append(
            Observation(
                pods=1, window_seconds=load.seconds, requests=float(n), finished=float(n), useful_tokens=tokens,
                generated_tokens=tokens, reserved_tokens=2 * tokens, preemptions=0.0, http_errors=0.0, running=5.0,
                ttft_seconds=histogram(first, TTFT), tpot_seconds=histogram(per, TPOT),
            )
        )  # fmt: skip
    return out


def total(observations: list[Observation]) -> Observation:
    whole = observations[0]
    for o in observations[1:]:
        whole = join(whole, o)
    return whole


@dataclass(frozen=True)
class Experiment:
    pairs: list[Pair]
    canary: Observation
    control: Observation

    def first(self, n: int) -> Experiment:
        return of(self.pairs[:n])

    def swapped(self) -> Experiment:
        return of([Pair(p.start, p.end, p.control, p.canary) for p in self.pairs])


def of(pairs: list[Pair]) -> Experiment:
    return Experiment(pairs, total([p.canary for p in pairs]), total([p.control for p in pairs]))


def simulate(load: Load, seed: int) -> Experiment:
    rng = np.random.default_rng(seed)
    shared = _noise(rng, load.windows, 0.3, 0.7)
    canary = _arm(rng, load, shared, load.effect, load.ttft, load.tpot)
    pods = [_arm(rng, load, shared, 1.0, 1.0, 1.0) for _ in range(load.controls)]
    pairs = []
    for i, ours in enumerate(canary):
        control = combine([p[i] for p in pods])
        assert control is not None
        pairs.append(Pair(i * load.seconds, (i + 1) * load.seconds, ours, control))
    return of(pairs)


@pytest.fixture
def experiment() -> Callable[[Load, int], Experiment]:
    return simulate


@pytest.fixture
def load() -> type[Load]:
    return Load
