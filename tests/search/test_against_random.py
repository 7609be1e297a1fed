"""The search against random search: a surface with a crash cliff, 5% noise, 8 trials; the share of the best gain that
is reached.

Random search here is a strong control: without repeats, over the same lattice. The winner is the best measured one,
so noise misleads both.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.search.candidate import Outcome, Proposal
from trimtab.search.priors import candidates
from trimtab.search.refuse import refusal
from trimtab.search.space import Space
from trimtab.search.study import Study

SPACE = Space({"max_num_seqs": (4, 512), "max_num_batched_tokens": (1024, 8192)})
BASE = Configuration.of(max_num_seqs=256, max_num_batched_tokens=2048, enable_prefix_caching=False)
TRIALS, SEEDS, NOISE = 8, 20, 0.05
INF = float("inf")


@dataclass(frozen=True)
class Surface:
    """Log goodput; best at `best` sequences, 4096 tokens, caching on; crashes where steps and slots take too much
    memory."""

    best: float
    cliff: float

    def __call__(self, c: Configuration) -> float | None:
        seqs, tokens = int(c["max_num_seqs"]), int(c["max_num_batched_tokens"])
        if seqs * 8 + tokens > self.cliff:
            return None
        return (
            -0.12 * math.log2(seqs / self.best) ** 2
            - 0.04 * math.log2(tokens / 4096) ** 2
            + 0.15 * bool(c["enable_prefix_caching"])
        )


def surface(rng: random.Random) -> Surface:
    return Surface(rng.choice([16, 24, 32, 48, 64, 96]), rng.choice([4800, 6400, 9000]))


def arithmetic(truth: Surface, rng: random.Random) -> list[Proposal]:
    """Priors from a KV capacity that misses the true optimum by up to a factor of 1.6 either way."""
    fits = truth.best * 2 ** rng.uniform(-0.7, 0.7)
    lengths = Histogram((1000.0, INF), (90.0, 100.0), 5e4)
    seen = Observation(1, 300.0, kv_capacity_tokens=1000 * fits, prompt_length=lengths, output_length=lengths)
    return candidates(BASE, seen, [], SPACE)


def share(truth: Surface, tried: Sequence[tuple[Configuration, float | None]]) -> float:
    """True gain of the one that measured best (or of staying), as a share of the best possible gain."""
    start = truth(BASE) or 0.0
    possible = max(v for c in SPACE.all(BASE) if (v := truth(c)) is not None) - start
    measured = [(m, c) for c, m in tried if m is not None]
    seen, winner = max(measured, key=lambda p: p[0], default=(0.0, BASE))
    value = truth(winner)
    return (value - start) / possible if seen > 0 and value is not None else 0.0


def measure(truth: Surface, c: Configuration, rng: random.Random) -> float | None:
    value = truth(c)
    return None if value is None else value - (truth(BASE) or 0.0) + rng.gauss(0, NOISE)


def searched(seed: int, *, informed: bool) -> tuple[float, int]:
    rng = random.Random(seed)
    truth = surface(rng)
    seeds = arithmetic(truth, rng) if informed else []
    study, history = Study(None, "s", SPACE, seed), list[Outcome]()
    for i in range(TRIALS):
        proposal = study.propose(history, BASE, seeds)
        assert proposal is not None
        assert refusal(proposal.configuration, history, BASE, SPACE) is None, "never again what crashed, nor above it"
        score = measure(truth, proposal.configuration, rng)
        history.append(Outcome(f"t{i}", proposal.configuration, score, score is None, control=BASE))
    return share(truth, [(o.configuration, o.score) for o in history]), sum(o.infeasible for o in history)


def drawn(seed: int) -> tuple[float, int]:
    rng = random.Random(seed)
    truth = surface(rng)
    points = [c for c in SPACE.all(BASE) if c != BASE]
    tried = [(c, measure(truth, c, rng)) for c in random.Random(seed + 1000).sample(points, TRIALS)]
    return share(truth, tried), sum(v is None for _, v in tried)


def test_the_search_beats_random_search_within_eight_trials() -> None:
    informed = [searched(s, informed=True) for s in range(SEEDS)]
    blind = [searched(s, informed=False) for s in range(SEEDS)]
    control = [drawn(s) for s in range(SEEDS)]
    gains = {n: statistics.mean(g for g, _ in r) for n, r in (("i", informed), ("b", blind), ("c", control))}
    crashes = {n: statistics.mean(c for _, c in r) for n, r in (("i", informed), ("b", blind), ("c", control))}
    print("share of the best gain and crashes, informed / sampler only / random:", gains, crashes)
    assert gains["i"] > gains["c"] + 0.05
    assert gains["b"] > gains["c"] - 0.02
    assert crashes["i"] < crashes["c"]
