"""What screening by simulation saves: trials, restarts and harm until the best setting runs, beside random search.

    python benchmarks/search_screen.py [--seeds 32] [--worlds 4] [--requests 600] [--json FILE]

The live target is the simulator with other step times (each coefficient off by 15%, drawn anew per world), another
load of the same shape, measurement noise, and starts that fail beyond a memory limit which the model knows nothing of.
Every method tunes the same worlds with the same noise. Two replicas: a trial that is rolled back restarts one pod
twice, one that is promoted each pod once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from search_landscapes import SPACE, Landscape, landscapes, with_errors

from trimtab.diagnose.finding import Finding
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.search.candidate import Outcome
from trimtab.search.predict import Simulated
from trimtab.search.priors import candidates
from trimtab.search.refuse import refusal
from trimtab.search.screen import Screen
from trimtab.search.study import Study
from trimtab.simulate.lengths import Lengths

#: a trial's log score is off by so much: two canary arms of some hundred requests, as judged live
NOISE = 0.04
#: log score from which a trial is promoted: the least gain, and beyond doubt
PROMOTED = max(np.log1p(0.03), 1.96 * NOISE)
#: as objective.minGainPercent
LEAST_GAIN = 0.03
TRIALS = 24
#: below this log score a trial harmed the users that met it
HARM = -0.1
REACHED = 0.03


@dataclass(frozen=True)
class World:
    """True log scores by configuration; None: does not start."""

    landscape: Landscape
    truth: Mapping[str, float | None]

    @property
    def best(self) -> float:
        return max(v for v in self.truth.values() if v is not None)


@dataclass(frozen=True)
class Run:
    """`regret`: after each trial, best true score less that of what runs then (log scale), index 0 before any trial."""

    method: str
    landscape: str
    regret: tuple[float, ...]
    trials: int
    restarts: int
    crashes: int
    harm: int

    @property
    def to_reach(self) -> int | None:
        """Trials until what runs is within 3% of the best, for good; None: never."""
        bad = [i for i, r in enumerate(self.regret) if r > REACHED]
        last = bad[-1] + 1 if bad else 0
        return last if last < len(self.regret) else None


Propose = Callable[[Sequence[Outcome], Configuration], Configuration | None]


def world(landscape: Landscape, seed: int, requests: int) -> World:
    """Simulated once for all methods; seeds of its load are not the model's."""
    real = with_errors(landscape.profile, seed)
    live = Simulated(
        real,
        landscape.limits,
        latency_weights=(0.1, 0.1),
        requests=requests,
        seed=1000 + 10 * seed,
        workers=os.cpu_count() or 1,
    )
    known = list(SPACE.all(landscape.baseline))
    scores = [p.scores[0] for p in live.predict(known, 1)]
    truth: dict[str, float | None] = {}
    for c, score in zip(known, scores, strict=True):
        truth[c.key()] = None if int(c["max_num_batched_tokens"]) > landscape.crash_tokens else score
    truth.setdefault(landscape.baseline.key(), 0.0)
    return World(landscape, truth)


def tune(method: str, propose: Propose, w: World, seed: int) -> Run:
    """Trials until nothing is proposed or the budget is spent."""
    rng = random.Random(f"{w.landscape.name}:{seed}")
    runs = w.landscape.baseline
    history: list[Outcome] = []
    regret = [w.best - (w.truth[runs.key()] or 0.0)]
    restarts = crashes = harm = 0
    for i in range(TRIALS):
        tried = propose(history, runs)
        if tried is None:
            break
        value, now = w.truth[tried.key()], w.truth[runs.key()] or 0.0
        noise = rng.gauss(0.0, NOISE)
        score = None if value is None else max(-4.6, value - now) + noise
        history.append(Outcome(f"t{i}", tried, score, value is None, control=runs))
        crashes += value is None
        harm += score is not None and value is not None and value - now < HARM
        restarts += 2
        if score is not None and score > PROMOTED:
            runs = tried
        regret.append(w.best - (w.truth[runs.key()] or 0.0))
    return Run(method, w.landscape.name, tuple(regret), len(history), restarts, crashes, harm)


def random_search(w: World, seed: int) -> Propose:
    """A strong control: no repeats, nothing above a crash, over the same lattice."""
    order = list(SPACE.all(w.landscape.baseline))
    random.Random(seed).shuffle(order)

    def propose(history: Sequence[Outcome], baseline: Configuration) -> Configuration | None:
        return next((c for c in order if refusal(c, history, baseline, SPACE) is None), None)

    return propose


def study(w: World, seed: int, screen: Screen | None, informed: bool) -> Propose:
    s = Study(None, "benchmark", SPACE, seed)
    seen = observation(w.landscape) if informed else None

    def propose(history: Sequence[Outcome], baseline: Configuration) -> Configuration | None:
        findings: list[Finding] = []
        guesses = candidates(baseline, seen, findings, SPACE) if seen is not None else []
        found = s.propose(history, baseline, guesses, screen)
        return found.configuration if found is not None else None

    return propose


def observation(landscape: Landscape) -> Observation:
    """What the target's metrics would say about lengths and KV capacity."""
    load, engine = landscape.profile.workload, landscape.profile.engine
    return Observation(
        1, 300.0, kv_capacity_tokens=float(engine.usable_blocks * engine.block_size), prefix_queries=0.0,
        prompt_length=_histogram(load.prompt_tokens), output_length=_histogram(load.output_tokens),
    )  # fmt: skip


def _histogram(lengths: Lengths) -> Histogram:
    bounds = [lengths.quantile(q) for q in np.linspace(0.05, 1.0, 20)]
    return Histogram((*bounds, float("inf")), (*(100 * np.linspace(0.05, 1.0, 20)), 100.0), 100 * lengths.mean)


def simulated(landscape: Landscape, requests: int) -> Simulated:
    """The model that the screen asks: the profile as calibrated, not the world."""
    return Simulated(
        landscape.profile, landscape.limits, latency_weights=(0.1, 0.1), requests=requests, workers=os.cpu_count() or 1
    )


def compare(chosen: Sequence[Landscape], seeds: int, worlds: int, requests: int, methods: str) -> list[Run]:
    out: list[Run] = []
    for landscape in chosen:
        print(landscape.name, file=sys.stderr, flush=True)
        model = simulated(landscape, requests)
        found = [world(landscape, seed, requests) for seed in range(worlds)]
        makers: dict[str, Callable[[World, int], Propose]] = {
            "screened": lambda w, seed, model=model: study(w, seed, Screen(model, SPACE, LEAST_GAIN), False),  # type: ignore[misc]
            "diagnosis and sampler": lambda w, seed: study(w, seed, None, True),
            "sampler": lambda w, seed: study(w, seed, None, False),
            "random": random_search,
        }
        for seed in range(seeds):
            w = found[seed % worlds]
            out += [tune(name, make(w, seed), w, seed) for name, make in makers.items() if name in methods]
    return out


def report(runs: Sequence[Run]) -> None:
    methods = list(dict.fromkeys(r.method for r in runs))
    print(f"{'':32}{'':24}  within 3% after trials   regret after 2, 4, 8, all   trials restarts crashes harmful")
    print(f"{'landscape':32}{'method':24}  {'p50':>5} {'p90':>5} {'never':>6}")
    for name in [*dict.fromkeys(r.landscape for r in runs), "all"]:
        for method in methods:
            of = [r for r in runs if r.method == method and name in (r.landscape, "all")]
            reach = np.array([r.to_reach if r.to_reach is not None else np.inf for r in of])
            p50, p90 = (float(np.quantile(reach, q, method="higher")) for q in (0.5, 0.9))
            curve = [np.mean([r.regret[min(k, len(r.regret) - 1)] for r in of]) for k in (2, 4, 8, TRIALS)]
            means = [np.mean([getattr(r, n) for r in of]) for n in ("trials", "restarts", "crashes", "harm")]
            print(
                f"{name:32}{method:24}  {p50:5.0f} {p90:5.0f} {np.mean(np.isinf(reach)):6.0%}   "
                + " ".join(f"{100 * v:6.1f}%" for v in curve) + "   "
                + " ".join(f"{v:7.1f}" for v in means)
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--worlds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--landscape", default="")
    parser.add_argument("--methods", default="screened, diagnosis and sampler, sampler, random")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.process_time()
    chosen = [one for one in landscapes() if options.landscape in one.name]
    runs = compare(chosen, options.seeds, options.worlds, options.requests, options.methods)
    report(runs)
    print(f"{time.process_time() - start:.0f} processor seconds")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in runs]))


if __name__ == "__main__":
    main()
