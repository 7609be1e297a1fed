"""Trials of the judge in miniature: pods with a bias of their own, noise that they share, autocorrelated own noise.

What is drawn: per window of each pod its tokens, its requests' TTFT and TPOT, as histograms with vLLM's edges. Two
regimes: saturated (the engine's speed decides how many tokens) and not (arrivals decide; speed shows as latency).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from trimtab.judge.windows import Pair, join
from trimtab.observe.observation import Histogram, Observation, combine

F64 = npt.NDArray[np.float64]
INF = float("inf")
TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    INF,
)  # fmt: skip
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, INF)
#: output length: median and log-normal spread
_TOKENS, _TOKENS_SIGMA = 150.0, 0.5


@dataclass(frozen=True)
class World:
    """effect: what the canary's configuration does to tokens (saturated) or to the share of requests inside a TTFT of
    1 s (not saturated). own_noise, shared_noise: standard deviation per window of log speed; rho: lag-1 autocorrelation
    of the pod's own. pod_bias: between pods, kept through a restart; start_bias: new with each start of a process.
    """

    effect: float = 1.0
    saturated: bool = True
    windows: int = 30
    before: int = 30
    seconds: float = 30.0
    rate: float = 2.0
    controls: int = 2
    own_noise: float = 0.05
    shared_noise: float = 0.1
    rho: float = 0.3
    pod_bias: float = 0.03
    start_bias: float = 0.01
    aborted: float = 0.02
    attained: float = 0.85


@dataclass(frozen=True)
class Trial:
    """biases: of each pod for good, the canary's place first."""

    pairs: list[Pair]
    before: list[Pair]
    biases: tuple[float, ...] = ()

    def totals(self, n: int) -> tuple[Observation, Observation]:
        """Canary and control over the first n windows."""
        canary, control = self.pairs[0].canary, self.pairs[0].control
        for pair in self.pairs[1:n]:
            canary, control = join(canary, pair.canary), join(control, pair.control)
        return canary, control


def draw(world: World, seed: int, biases: Sequence[float] = (), *, moved: bool = False) -> Trial:
    """biases: of the pods, where they were drawn before (another start of the same target). moved: the canary is a pod
    in a new place, so what is `before` belongs to another one."""
    rng = np.random.default_rng(seed)
    found: list[float] = []
    total = world.before + world.windows
    shared = _autocorrelated(rng, total, world.shared_noise, 0.7)
    pods = []
    for number in range(1 + world.controls):
        speed = shared + _autocorrelated(rng, total, world.own_noise, world.rho)
        drawn = float(rng.normal(0, world.pod_bias))
        found.append(biases[number] if biases else drawn)
        speed += found[-1]
        speed += rng.normal(0, world.start_bias)  # the start in which it was before the trial
        effect = np.ones(total)
        if number == 0:
            speed[world.before :] += rng.normal(0, world.start_bias)
            effect[world.before :] = world.effect
            if moved:
                speed[world.before :] += np.random.default_rng([seed, 1]).normal(0, world.pod_bias) - found[0]
        pods.append(_pod(rng, world, speed, effect))
    pairs = []
    for i in range(total):
        controls = tuple(p[i] for p in pods[1:])
        control = combine(controls)
        assert control is not None
        pairs.append(Pair(i * world.seconds, (i + 1) * world.seconds, pods[0][i], control, controls))
    return Trial(pairs[world.before :], pairs[: world.before], tuple(found))


def _autocorrelated(rng: np.random.Generator, n: int, sd: float, rho: float) -> F64:
    out, state = np.empty(n), rng.normal(0, sd)
    steps = rng.normal(0, sd * math.sqrt(1 - rho * rho), n)
    for i in range(n):
        out[i] = state
        state = rho * state + steps[i]
    return out


def _pod(rng: np.random.Generator, world: World, speed: F64, effect: F64) -> list[Observation]:
    out = []
    mean = _TOKENS * math.exp(_TOKENS_SIGMA**2 / 2)
    left = 0.0  # generated tokens of requests that have not ended yet, beyond the usual
    for moment, factor in zip(speed, effect, strict=True):
        due = world.rate * world.seconds
        if world.saturated:
            generated = due * mean * math.exp(moment) * factor
            n = max(0, round((generated + left) / mean + rng.normal(0, 0.3 * math.sqrt(due))))
        else:
            n = int(rng.poisson(due))
            generated = 0.0
        tokens = float((_TOKENS * np.exp(rng.normal(0, _TOKENS_SIGMA, n))).sum())
        wasted = float(mean / 2 * rng.binomial(n, world.aborted))
        generated = generated if world.saturated else tokens + wasted
        left += generated - tokens - wasted
        first, per = _latencies(rng, world, n, float(moment), float(factor))
        out.append(
            Observation(
                pods=1, window_seconds=world.seconds, requests=float(n), finished=float(n), useful_tokens=tokens,
                generated_tokens=generated, reserved_tokens=2 * tokens, preemptions=0.0, http_errors=0.0, running=8.0,
                waiting=4.0 if world.saturated else 0.0,
                ttft_seconds=_histogram(first, TTFT), tpot_seconds=_histogram(per, TPOT),
            )
        )  # fmt: skip
    return out


def _latencies(rng: np.random.Generator, world: World, n: int, speed: float, effect: float) -> tuple[F64, F64]:
    """TTFT so that the share `attained` (times the effect, if not saturated) is below 1 s at usual speed."""
    share = world.attained if world.saturated else min(0.9999, world.attained * effect)
    spread = 0.8
    middle = -spread * NormalDist().inv_cdf(share) - speed
    per = np.exp(rng.normal(math.log(0.03) - speed, 0.3, n))
    return np.exp(rng.normal(middle, spread, n)), per


def _histogram(values: F64, edges: tuple[float, ...]) -> Histogram:
    counts = np.searchsorted(np.sort(values), np.array(edges), side="right")
    return Histogram(edges, tuple(counts.astype(float).tolist()), float(values.sum()))
