"""A target in virtual time for `benchmarks/diagnose.py`: the simulator's scheduler with clients, a proxy and faults.

What the simulator has (preemption, queues, reservation, head-of-line blocking, lost blocks) is its own doing; hangs,
parked requests, a slow frontend and ageing are put on top, at the place where they happen in a real server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import numpy as np

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.stepper import Stepper, StepResult

NEVER = float("inf")
_COUNTED = ("preemptions", "prompt_tokens", "generation_tokens", "requests", "finished", "steps")
Draw = Callable[[np.random.Generator], int]


def lengths(median: float, sigma: float, most: int) -> Draw:
    """Lognormal tokens, 1 to `most`."""
    return lambda rng: int(min(most, max(1, round(rng.lognormal(np.log(median), sigma)))))


@dataclass(frozen=True)
class Scene:
    """One incident's world. rate: requests/s at a time. Times in seconds; NEVER: it does not happen.

    patience: clients leave so long after their arrival. hidden: nobody tells the engine. retry: they come back at once.
    parked: share of requests that stay `deferred` for `parked_seconds` first. frontend: requests/s that the API server
    passes on. lost_blocks: leaked per second. slow: factor on step times at a time. stuck_at: the end of admission.
    """

    config: EngineConfig
    times: StepTimes
    rate: Callable[[float], float]
    prompt: Draw
    output: Draw
    max_tokens: Callable[[int], int] = lambda output: output
    patience: float = NEVER
    hidden: bool = False
    retry: bool = False
    parked: float = 0.0
    parked_seconds: float = 0.0
    frontend: float = NEVER
    lost_blocks: float = 0.0
    slow: Callable[[float], float] = lambda t: 1.0
    hangs_at: float = NEVER
    stuck_at: float = NEVER
    stops_arriving_at: float = NEVER
    seconds: float = 160.0
    window: float = 20.0


@dataclass
class _Request:
    arrival: float
    prompt: int
    output: int
    first: float = NEVER
    tokens: int = 0
    queued: float = NEVER
    gone: bool = False


@dataclass
class _Window:
    """Counts and samples since the last observation."""

    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*_COUNTED, "aborted"), 0.0))
    gauges: list[dict[str, float]] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    asked: float = 0.0
    useful: float = 0.0
    queried: float = 0.0
    hits: float = 0.0


class World:
    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.rng = scene, np.random.default_rng(seed)
        self.engine = Stepper(scene.config, scene.times)
        self.now = 0.0
        self.next_arrival = self._gap()
        self.front: deque[_Request] = deque()
        self.front_free = 0.0
        self.parked: list[tuple[float, _Request]] = []
        self.held: deque[_Request] = deque()
        self.live: dict[int, _Request] = {}
        self.orphans: set[int] = set()
        self.window = _Window()
        self.lost = 0.0

    def run(self) -> list[dict[str, Any]]:
        """Observations as a report has them, one for each window."""
        rows, scene = [], self.scene
        sample, end = scene.window / 8, scene.window
        next_sample = sample
        while self.now < scene.seconds:
            before = self.now
            self._arrive()
            self._leave()
            self.now += self._work()
            self._lose(self.now - before)
            while self.now >= next_sample:
                self.window.gauges.append(self._gauges())
                next_sample += sample
            if self.now >= end:
                rows.append(self._row(end))
                self.window = _Window()
                end += scene.window
        return rows

    def _gap(self) -> float:
        rate = self.scene.rate(self.now)
        return self.now + (float(self.rng.exponential(1 / rate)) if rate > 0 else 5.0)

    def _arrive(self) -> None:
        scene = self.scene
        while self.next_arrival <= self.now:
            if scene.rate(self.next_arrival) > 0 and self.next_arrival < scene.stops_arriving_at:
                self._enter(_Request(self.next_arrival, scene.prompt(self.rng), scene.output(self.rng)))
            gap = scene.rate(self.next_arrival)
            self.next_arrival += float(self.rng.exponential(1 / gap)) if gap > 0 else 5.0
        while self.front and self.front_free <= self.now:
            self.front_free = max(self.front_free, self.front[0].arrival) + 1 / scene.frontend
            self.held.append(self.front.popleft())
        for _, request in [p for p in self.parked if p[0] <= self.now]:
            self._add(request)
        self.parked = [p for p in self.parked if p[0] > self.now]
        while self.held and self._room():
            request = self.held.popleft()
            if self.scene.parked and self.rng.random() < self.scene.parked:
                self.parked.append((self.now + self.scene.parked_seconds, request))
            else:
                self._add(request)

    def _enter(self, request: _Request) -> None:
        self.window.counts["requests"] += 1
        if self.scene.frontend < NEVER:
            self.front.append(request)
        else:
            self.held.append(request)

    def _room(self) -> bool:
        if self.now >= self.scene.stuck_at:
            return False
        if not self.scene.parked:
            return True
        taken = self.engine.running_count + self.engine.waiting_count + len(self.parked)
        return taken < self.scene.config.max_num_seqs

    def _add(self, request: _Request) -> None:
        asked = self.scene.max_tokens(request.output)
        longest = self.scene.config.max_model_len - 1
        number = self.engine.add(min(request.prompt, longest), request.output, max(1, asked))
        self.window.asked += min(asked, self.scene.config.max_model_len - request.prompt)
        self.live[number] = request

    def _leave(self) -> None:
        scene = self.scene
        if scene.patience == NEVER:
            return
        for number, request in self.live.items():
            if request.gone or self.now - request.arrival < scene.patience:
                continue
            request.gone = True
            if scene.hidden:
                self.orphans.add(number)
            else:
                self.engine.abort(number)
                self.window.counts["aborted"] += 1
            if scene.retry:
                self._enter(_Request(self.now, request.prompt, request.output))

    def _work(self) -> float:
        """Seconds that passed."""
        if self.now >= self.scene.hangs_at:
            return 0.25
        result = self.engine.step()
        if result.idle:
            return max(0.02, min(self.next_arrival - self.now, 0.25))
        seconds = result.seconds * self.scene.slow(self.now)
        self._count(result, self.now + seconds)
        return seconds

    def _count(self, result: StepResult, at: float) -> None:
        w = self.window
        w.counts["steps"] += 1
        w.counts["preemptions"] += len(result.preempted)
        w.counts["prompt_tokens"] += result.prefill_tokens
        w.counts["generation_tokens"] += len(result.tokens)
        for number, cached, again in result.admitted:
            request = self.live.get(number)
            if request is None:
                continue
            w.queried += request.prompt
            w.hits += cached
            if not again:
                w.queue.append(at - request.arrival)
        for number in result.tokens:
            request = self.live.get(number)
            if request is None:
                continue
            request.tokens += 1
            if request.first == NEVER:
                request.first = at
                w.ttft.append(at - request.arrival)
        for number, _ in result.finished:
            self._done(number, at)
        for number in result.aborted:
            self.live.pop(number, None)

    def _done(self, number: int, at: float) -> None:
        request, w = self.live.pop(number), self.window
        w.counts["finished"] += 1
        self.orphans.discard(number)
        w.useful += request.tokens
        w.e2e.append(at - request.arrival)
        w.prompts.append(request.prompt)
        w.outputs.append(request.tokens)
        if request.tokens > 1:
            w.tpot.append((at - request.first) / (request.tokens - 1))

    def _lose(self, seconds: float) -> None:
        self.lost += self.scene.lost_blocks * seconds
        if self.lost >= 1:
            self.engine.lose_blocks(int(self.lost))
            self.lost -= int(self.lost)

    def _gauges(self) -> dict[str, float]:
        parked, held = len(self.parked), len(self.held)
        inside = self.engine.running_count + self.engine.waiting_count + parked + held
        return {
            "running": self.engine.running_count,
            "waiting": self.engine.waiting_count + parked + held,
            "waiting_deferred": parked,
            "kv_usage": self.engine.kv_usage,
            "client_in_flight": inside + len(self.front) - len(self.orphans),
        }

    def _row(self, at: float) -> dict[str, Any]:
        w, seconds = self.window, self.scene.window
        row: dict[str, Any] = {"t_seconds": at}
        for name in w.gauges[0] if w.gauges else ():
            row[name] = mean(g[name] for g in w.gauges)
        row["kv_usage_max"] = max((g["kv_usage"] for g in w.gauges), default=None)
        for name in _COUNTED:
            row[f"{name}_per_second"] = w.counts[name] / seconds
        ended = w.counts["finished"] + w.counts["aborted"]
        row["abort_rate"] = w.counts["aborted"] / ended if ended else None
        row["useful_token_ratio"] = min(1.0, w.useful / w.asked) if w.asked else None
        row["prefix_hit_ratio"] = w.hits / w.queried if w.queried else None
        for name, values in (("ttft", w.ttft), ("tpot", w.tpot), ("e2e", w.e2e), ("queue", w.queue)):
            if values:
                row |= {f"{name}_p50_seconds": float(np.quantile(values, 0.5)),
                        f"{name}_p99_seconds": float(np.quantile(values, 0.99))}  # fmt: skip
        row["tpot_mean_seconds"] = mean(w.tpot) if w.tpot else None
        for name, tokens in (("prompt_tokens", w.prompts), ("output_tokens", w.outputs)):
            if tokens:
                row |= {f"{name}_mean": mean(tokens), f"{name}_p50": float(np.quantile(tokens, 0.5)),
                        f"{name}_p99": float(np.quantile(tokens, 0.99))}  # fmt: skip
        return row
