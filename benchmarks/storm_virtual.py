"""The storm in virtual time: the middleware's own gate before vLLM's block rules, no engine, no noise of the machine.

    python benchmarks/storm_virtual.py PREDICTOR [--rounds 5]

Same requests and variants as `storm.py` (PREDICTOR is the file that it trains). It answers what a busy machine cannot:
whether admission gains depends on what a recomputed token costs. A step takes STEP_MS + ROW_MS x sequences + the
prefilled tokens x their cost, with three costs, each told as tokens per STEP_MS: cheap, middling, dear.
Prefix caching is off: a preempted sequence prefills its prompt
and what it had generated. Numbers are medians over the rounds, useful tokens/s relative to `default`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from storm import variants
from storm_engine import BLOCK_TOKENS, BLOCKS
from storm_traffic import CLIENTS, KINDS, MAX_TOKENS, SIGMA, Asked, at, body_of, requests

from trimtab.middleware.admission import Gate, Ticket
from trimtab.middleware.features import row_of
from trimtab.middleware.policy_file import Admission
from trimtab.middleware.quantile_model import QuantileModel, load, moments
from trimtab.middleware.wire import understand

#: round figures, near the tiny model's 3.6 to 5 ms at 8 to 13 sequences on a busy machine
#: (results are relative, so what counts is their ratio to the cost of the prefill)
STEP_MS, ROW_MS = 2.2, 0.09
#: tokens that are prefilled in the time of one step
PREFILL_TOKENS_PER_STEP = (550, 110, 22)
#: vLLM's own limit of a step on CPU
BATCHED_TOKENS = 2048

Estimate = Callable[[Asked], tuple[float, float]]


@dataclass
class Running:
    """One request in the engine."""

    asked: Asked
    sent_ms: float
    prompt: int
    ticket: Ticket
    done: int = 0
    blocks: int = 0

    def needs(self) -> int:
        return math.ceil((self.prompt + self.done + 1) / BLOCK_TOKENS) - self.blocks


@dataclass
class World:
    """A closed loop of clients, the gate, and an engine with `slots` sequences."""

    gate: Gate
    estimate: Estimate
    waiting: list[Asked]
    slots: int
    prefill_ms: float
    now_ms: float = 0.0
    queue: deque[Running] = field(default_factory=deque)
    engine_queue: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    preemptions: int = 0
    tokens: int = 0
    kv_used: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)

    def send(self) -> None:
        """A client's next request."""
        if not self.waiting:
            return
        asked = self.waiting.pop()
        mean, variance = self.estimate(asked)
        ticket = Ticket(1, len(asked.prompt), min(mean, MAX_TOKENS), variance, MAX_TOKENS)
        one = Running(asked, self.now_ms, len(asked.prompt), ticket)
        ticket.generated = lambda: one.done
        self.queue.append(one)

    def free(self) -> int:
        return BLOCKS - sum(r.blocks for r in self.running)

    def grow(self) -> bool:
        """Blocks for each running sequence's next token; the last admitted is preempted where none is left."""
        before = self.preemptions
        for one in list(self.running):
            while one in self.running and one.needs() > self.free():
                victim = self.running.pop()
                victim.blocks = 0
                self.preemptions += 1
                self.engine_queue.appendleft(victim)
            if one in self.running:
                one.blocks += one.needs()
        return self.preemptions > before

    def admit(self) -> int:
        """Tokens that are prefilled: the engine's queue in order while whole sequences fit."""
        tokens = 0
        while self.engine_queue and len(self.running) < self.slots and tokens < BATCHED_TOKENS:
            if self.engine_queue[0].needs() > self.free():
                break
            one = self.engine_queue.popleft()
            one.blocks += one.needs()
            self.running.append(one)
            tokens += one.prompt + one.done
        return tokens

    def step(self) -> None:
        while self.queue and self.gate.fits(self.queue[0].ticket):
            self.gate.take(self.queue[0].ticket)
            self.engine_queue.append(self.queue.popleft())
        tokens = 0 if self.grow() else self.admit()
        self.now_ms += STEP_MS + ROW_MS * len(self.running) + self.prefill_ms * tokens
        if self.waiting:
            self.kv_used.append(1 - self.free() / BLOCKS)
        for one in list(self.running):
            one.done += 1
            self.tokens += 1
            if one.done >= one.asked.true_tokens:
                self.running.remove(one)
                self.gate.release(one.ticket)
                self.whole_ms.append(self.now_ms - one.sent_ms)
                self.send()


def played(admission: dict[str, Any], estimate: Estimate, slots: int, seed: int, prefill_tokens: int) -> World:
    """A whole storm."""
    gate = Gate()
    known = {k: v for k, v in admission.items() if k in ("max_sequences", "kv_budget_tokens", "risk", "deviations")}
    gate.limits = Admission(**known)
    gate.block_tokens = BLOCK_TOKENS
    world = World(gate, estimate, requests(160, seed, 0)[::-1], slots, STEP_MS / prefill_tokens)
    for _ in range(CLIENTS):
        world.send()
    while world.queue or world.engine_queue or world.running:
        world.step()
    return world


def estimates(model: QuantileModel) -> dict[str, Estimate]:
    """By kind of variant: (mean, variance) of a request's output."""

    def predicted(asked: Asked) -> tuple[float, float]:
        request = understand("completions", body_of(asked))
        return moments(model.levels, model.quantiles(row_of(request))) if request is not None else (0.0, 0.0)

    means = [m * math.exp(SIGMA**2 / 2) for m in KINDS.values()]
    squares = [m * m * math.exp(2 * SIGMA**2) for m in KINDS.values()]
    mean = statistics.mean(means)
    overall = (mean, statistics.mean(squares) - mean**2)
    return {
        "true": lambda asked: (float(asked.true_tokens), 0.0),
        "predicted": predicted,
        "observed": lambda _: overall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictor", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    known = estimates(load(str(options.predictor)))
    table = Table(title="virtual time; useful tokens/s relative to default, E2E p99 in seconds", title_justify="left")
    for name in ("variant", "preemptions", "KV used", *(f"{n} a step{c}" for n in PREFILL_TOKENS_PER_STEP
                                                         for c in ("", " p99"))):  # fmt: skip
        table.add_column(name, justify="left" if name == "variant" else "right")
    base: dict[int, float] = {}
    for name, (engine, policy) in variants(options.predictor, (8, 16, 24)).items():
        kind = name.split("-")[1] if name.startswith("kv-") else "true"
        slots = int(engine.split("-")[1]) if engine.startswith("seqs-") else 128
        cells: list[str] = []
        for prefill in PREFILL_TOKENS_PER_STEP:
            worlds = [
                played(policy.get("admission", {}), known[kind], slots, 100 + n, prefill) for n in range(options.rounds)
            ]
            speed = statistics.median(w.tokens / w.now_ms for w in worlds)
            base.setdefault(prefill, speed)
            cells += [
                f"{speed / base[prefill]:.2f}",
                f"{statistics.median(at(w.whole_ms, 0.99) for w in worlds) / 1000:.1f}",
            ]
        used = statistics.median(statistics.mean(w.kv_used) for w in worlds)
        table.add_row(name, f"{statistics.median(w.preemptions for w in worlds):.0f}", f"{used:.2f}", *cells)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
