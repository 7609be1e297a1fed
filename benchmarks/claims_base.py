"""What the claims share: engines, traffic, intervals over seeds, tables and the answer that each command gives.

Every figure is a mean over seeds with a 95% interval (Student's t); comparisons are paired: the same seed gives both
sides the same requests. Seconds are the step-time models' below; ratios within one run carry over, seconds do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from groundtruth import MODELS
from scipy import stats

from trimtab.engine.kv.blocks import KVShape
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import times_of
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.roofline import Json, gpu_named, roofline
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Workload

Verdict = Literal["holds", "contradicted", "depends"]
LLAMA_8B = KVShape(layers=32, kv_heads=8, head_size=128)
MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class Card:
    """Llama-3 8B on one GPU: its KV blocks and how long a step takes."""

    name: str
    blocks: int
    times: StepTimes

    def config(self, **settings: Any) -> EngineConfig:
        """vLLM's defaults for it, prefix caching off (no prompt repeats in most claims)."""
        given = {"num_gpu_blocks": self.blocks, "max_model_len": MAX_MODEL_LEN, "enable_prefix_caching": False}
        return EngineConfig(**{**given, **settings})


def modelled(config: Json, gpu: str) -> StepTimes:
    """By the roofline: nobody measured these."""
    return times_of(roofline(config, gpu_named(gpu)).median)


LLAMA_8B_CONFIG: Json = MODELS["meta-llama/Llama-3.1-8B"]
#: blocks: (0.9 x 80 GiB - 15 GiB of weights - 3 GiB for the rest) / 2 MiB
A100 = Card("A100 80GB", 27_600, modelled(LLAMA_8B_CONFIG, "A100"))
#: blocks as vLLM 0.19 reported them, times that `simulate.py groundtruth` fits to that run. Its KV cache is small
RTX4090 = Card(
    "RTX 4090",
    2588,
    StepTimes(0.0204, 8.28e-5, per_pair=1.54e-9, per_decode_seq=1.1e-5, per_kv_token=1.1e-7, per_prefill_step=1.4e-3),
)
CARDS = (A100, RTX4090)


@dataclass(frozen=True)
class Size:
    """How much is simulated: requests of one run, and runs."""

    requests: int
    seeds: int

    @property
    def cheap(self) -> bool:
        return self.requests < FULL.requests


FULL = Size(1600, 8)
CHEAP = Size(300, 3)


@dataclass(frozen=True)
class Lengths:
    """Lognormal token counts: mean, standard deviation / mean, and the longest."""

    mean: float
    cv: float
    most: int = MAX_MODEL_LEN // 2

    def draw(self, rng: np.random.Generator, n: int) -> I32:
        """Rounded; the tail beyond `most` is cut, so the mean of wide ones is a little lower."""
        sigma = np.sqrt(np.log1p(self.cv**2))
        values = rng.lognormal(np.log(self.mean) - sigma**2 / 2, sigma, n)
        return np.clip(np.rint(values), 1, self.most).astype(np.int32)


#: means of ShareGPT's turns (PagedAttention, SOSP'23, section 6.1); their spread is not given there, CV 1 is assumed
SHAREGPT_PROMPT, SHAREGPT_OUTPUT = Lengths(161, 1.0), Lengths(338, 1.0)


@dataclass(frozen=True)
class Traffic:
    """`rate` requests/s, Poisson; inf: all wait at the start."""

    rate: float = float("inf")
    prompt: Lengths = SHAREGPT_PROMPT
    output: Lengths = SHAREGPT_OUTPUT

    def load(self, seed: int, n: int, **columns: Any) -> Workload:
        """The same lengths for the same seed, whatever the rate. `columns`: of `Workload.of`; a callable one is given
        the outputs.
        """
        rng = np.random.default_rng(seed)
        prompt, output = self.prompt.draw(rng, n), self.output.draw(rng, n)
        gaps = rng.exponential(1.0, n)
        arrival = np.zeros(n) if np.isinf(self.rate) else np.cumsum(gaps) / self.rate
        given = {name: value(output) if callable(value) else value for name, value in columns.items()}
        return Workload.of(arrival, prompt, given.pop("output", output), **given)


# --- figures ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Interval:
    """Mean over seeds and half the width of its 95% interval."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def share(self, digits: int = 0) -> str:
        return f"{self.mean:.{digits}%} ± {self.half:.{max(1, digits)}%}".replace("%", "", 1)

    def signed(self, digits: int = 0) -> str:
        """Of a relative change."""
        return ("+" if self.mean >= 0 else "") + self.share(digits)

    def __str__(self) -> str:
        digits = 0 if abs(self.mean) >= 100 else 1 if abs(self.mean) >= 10 else 2
        return f"{self.mean:,.{digits}f} ± {self.half:,.{digits}f}"


def interval(values: Iterable[float]) -> Interval:
    seen = np.array(list(values), dtype=np.float64)
    if len(seen) < 2:
        return Interval(float(seen.mean()), 0.0)
    half = stats.t.ppf(0.975, len(seen) - 1) * seen.std(ddof=1) / np.sqrt(len(seen))
    return Interval(float(seen.mean()), float(half))


def change(after: Sequence[float], before: Sequence[float]) -> Interval:
    """Relative, pair by pair."""
    return interval(a / b - 1 for a, b in zip(after, before, strict=True))


def per_seed(size: Size, make: Callable[[int], float]) -> list[float]:
    return [make(seed) for seed in range(size.seeds)]


def useful_rate(outcome: Outcome, useful: F64 | None = None) -> float:
    """Tokens/s of requests that ended normally, while the middle half of all ended: the engine fills first, and the
    last long answers run alone. `useful`: tokens that count, per request (default: those its client read).
    """
    counted = outcome.tokens.astype(np.float64) if useful is None else useful
    begin, until = _middle(outcome)
    within = outcome.ok & (outcome.end > begin) & (outcome.end <= until)
    return float(counted[within].sum() / (until - begin))


def _middle(outcome: Outcome) -> tuple[float, float]:
    begin, until = np.nanquantile(outcome.end, (0.3, 0.8))
    return float(begin), float(until)


def capacity(card: Card, traffic: Traffic, size: Size, **settings: Any) -> float:
    """Requests/s that leave when all wait at the start: an offered load of 1 in the claims."""
    n = max(size.requests, 1000)
    outcome = simulate(replace(traffic, rate=float("inf")).load(10_000, n), card.config(**settings), card.times)
    begin, until = _middle(outcome)
    return n / 2 / (until - begin)


# --- answers ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Answer:
    """One row of the page's table: a key of `claims_texts.TEXTS` and what came out."""

    key: str
    verdict: Verdict
    figure: str


@dataclass(frozen=True)
class Picture:
    """Lines over x: (name, y values, half widths). `log`: the y axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    lines: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...]
    log: bool = False


@dataclass(frozen=True)
class Report:
    """What a command prints, answers and draws."""

    tables: tuple[str, ...]
    answers: tuple[Answer, ...]
    pictures: tuple[Picture, ...] = ()


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([title, *(f"  {line}" for line in lines)])
