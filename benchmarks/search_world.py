"""What each configuration of a target really gives, simulated once per target and world and kept outside the tree.

A world is the target with other step times (each coefficient off by some 15%) and other draws of its load than the
model's. Files are keyed by everything that goes in, the simulator's own code included.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from search_targets import SPACE, Target, with_errors

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.search.predict import Simulated
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.measure import headroom, latency_gain, log_goodput, measure
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64

T = TypeVar("T")
#: as the judge scores a trial
LATENCY_WEIGHTS: Final = (0.1, 0.1)
#: loads that a truth is the mean of, and requests of each
LOADS: Final = 2
_SECONDS: Final = (60.0, 250.0)
#: of metrics that the search is shown
_OBSERVED_SECONDS: Final = 300.0
#: of histograms, finer than vLLM's
_EDGES: Final = tuple(np.geomspace(0.001, 1000.0, 121).tolist())


@dataclass(frozen=True)
class Truth:
    """`score`: log, against the target's baseline; `attainment`: share of requests within the SLO; p99 in seconds;
    `room`: log of what goodput could still gain."""

    score: float
    attainment: float
    ttft_p99: float
    tpot_p99: float
    room: float


@dataclass(frozen=True)
class World:
    """`truth`: by key of the configuration; None: does not start. `later`: after the drift, from the same baseline.
    `seed`: of the target's own step times and loads."""

    target: Target
    truth: Mapping[str, Truth | None]
    later: World | None = None
    seed: int = 0
    _seen: dict[str, Observation] = field(default_factory=dict, compare=False, repr=False)

    def observe(self, configuration: Configuration) -> Observation:
        """What the target's metrics say while `configuration` runs."""
        key = configuration.key()
        if key not in self._seen:
            self._seen[key] = _observation(self.target, self.seed, configuration)
        return self._seen[key]

    @property
    def best(self) -> float:
        return max(t.score for t in self.truth.values() if t is not None)

    def score(self, configuration: Configuration) -> float:
        found = self.truth[configuration.key()]
        assert found is not None  # what runs has started
        return found.score

    @property
    def flat(self) -> bool:
        """Nothing is worth a restart: the best is less than 3% above what was found."""
        return self.best < np.log1p(0.03) and self.later is None


def world(target: Target, seed: int, requests: int) -> World:
    """From the cache, or simulated now. No guardrail watches a latency that users do not limit (they would have set
    guardrails.maxLatencyRatio to its most): its p99 counts as 0."""
    truth = cached(("truth", target, seed, requests, LOADS), lambda: _truth(target, seed, requests))
    watched = {n: math.isfinite(getattr(target.limits, f"{n}_seconds")) for n in ("ttft", "tpot")}
    truth = {
        k: replace(t, **{f"{n}_p99": 0.0 for n, limited in watched.items() if not limited}) for k, t in truth.items()
    }
    later = None if target.later is None else world(target.drifted(), seed, requests)
    crashed = {c.key() for c in SPACE.all(target.baseline) if target.crashes(c)}
    return World(target, {k: None if k in crashed else t for k, t in truth.items()}, later, seed)


def _observation(target: Target, seed: int, configuration: Configuration) -> Observation:
    real = with_errors(target.profile, seed)
    load = real.load(_OBSERVED_SECONDS, 1000 + 10 * seed)
    outcome = simulate(load, _engine(real, configuration), real.times)
    seconds, ok = outcome.counters.end_seconds, outcome.ok
    queued, latest = (outcome.scheduled - load.arrival)[ok], float(load.arrival[-1])
    busy = np.minimum(outcome.end, latest) - np.minimum(outcome.scheduled, latest)
    waits = np.minimum(outcome.scheduled, latest) - load.arrival
    engine, model = real.engine, real.workload
    return Observation(
        1, seconds, requests=float(len(load)), finished=float(ok.sum()),
        prefix_queries=float(load.prompt.sum()) if configuration.get("enable_prefix_caching") is not False else 0.0,
        preemptions=float(outcome.counters.preemptions), useful_tokens=float(outcome.tokens[ok].sum()),
        running=float(np.nansum(busy) / latest), waiting=float(np.nansum(waits) / latest),
        kv_capacity_tokens=float(engine.usable_blocks * engine.block_size),
        ttft_seconds=histogram(outcome.ttft[ok], target.limits.ttft_seconds),
        tpot_seconds=histogram(outcome.tpot[ok], target.limits.tpot_seconds), queue_seconds=histogram(queued),
        prompt_length=_drawn(model.prompt_tokens), output_length=_drawn(model.output_tokens),
    )  # fmt: skip


def histogram(values: F64, limit: float = math.inf) -> Histogram:
    known = np.sort(values[~np.isnan(values)])
    edges = sorted({*_EDGES, limit, math.inf})
    counts = np.searchsorted(known, edges, side="right").astype(float)
    return Histogram(tuple(edges), tuple(counts.tolist()), float(known.sum()))


def _drawn(lengths: Lengths) -> Histogram:
    shares = np.linspace(0.05, 1.0, 20)
    bounds = [lengths.quantile(q) for q in shares]
    return Histogram((*bounds, math.inf), (*(100 * shares), 100.0), 100 * lengths.mean)


def _truth(target: Target, seed: int, requests: int) -> dict[str, Truth]:
    real = with_errors(target.profile, seed)
    seconds = float(np.clip(requests / real.workload.requests_per_second, *_SECONDS))
    loads = [real.load(seconds, 1000 + 10 * seed + i) for i in range(LOADS)]
    baseline = target.baseline
    every = [baseline, *(c for c in SPACE.all(baseline) if c != baseline)]
    found = [[measure(simulate(load, _engine(real, c), real.times), target.limits) for load in loads] for c in every]
    out = {}
    for c, ours in zip(every, found, strict=True):
        pairs = list(zip(ours, found[0], strict=True))
        score = float(np.mean([log_goodput(a, b) + latency_gain(a, b, LATENCY_WEIGHTS) for a, b in pairs]))
        means = (float(np.nanmean([getattr(m, n) for m in ours])) for n in ("attainment", "ttft_p99", "tpot_p99"))
        out[c.key()] = Truth(score, *means, float(np.mean([headroom(m) for m in ours])))
    return out


def _engine(profile: Any, c: Configuration) -> Any:
    return profile.config(**{n: c[n] for n in ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")})


def model(target: Target, requests: int) -> Simulated:
    """The simulator that the search asks: the profile as calibrated, not the world. All predictions are in it."""
    made = Simulated(
        target.profile, target.limits, latency_weights=LATENCY_WEIGHTS, requests=requests, least_seconds=_SECONDS[0]
    )
    every = list(dict.fromkeys([target.baseline, *SPACE.all(target.baseline), Configuration.of()]))
    found = cached(("predictions", target, requests, made.pairs), lambda: made.predict(every))
    made.known.update({(c, made.pairs): p for c, p in zip(every, found, strict=True)})
    return made


def cached(key: object, make: Callable[[], T]) -> T:
    """`make()`, or what it gave before for an equal `key` and the same simulator."""
    name = hashlib.sha256(f"{key!r} {_code()}".encode()).hexdigest()[:24]
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    path = base / "trimtab" / "benchmarks-search" / f"{name}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]  # written by this function only
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(found))
    part.replace(path)
    return found


@cache
def _code() -> str:
    """Of everything that decides a simulation."""
    texts = sorted((p.name, p.read_text()) for p in map(Path, map(str, files("trimtab.simulate").iterdir()))
                   if p.suffix == ".py")  # fmt: skip
    return hashlib.sha256(repr(texts).encode()).hexdigest()
