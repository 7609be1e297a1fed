"""One engine in virtual time: the scheduler's model, and the metrics that vLLM would show of it.

The caller's clock says how far it is; a step that ends beyond is finished, so the engine may be one step ahead.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry

from trimtab.emulate.flags import ServerFlags
from trimtab.emulate.ledger import Ledger
from trimtab.emulate.live import LiveRequest
from trimtab.emulate.metrics import EngineMetrics
from trimtab.errors import InputError
from trimtab.observe.metrics import WANTED, own_labels
from trimtab.observe.samples import SeriesKey
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.stepper import Stepper
from trimtab.simulate.workload import Workload

MODEL: Final = "simulated"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request at `at` (seconds of the caller's clock). chunks, chunk_tokens: its shared beginning, as in Workload.
    cancel_tokens 0: the client stays; patience inf: it waits."""

    at: float
    prompt: int
    output: int
    max_tokens: int
    cancel_tokens: int
    patience: float
    chunks: tuple[int, ...]
    chunk_tokens: int


def arrivals(load: Workload, offset: float) -> list[Arrival]:
    """`offset` is added to the load's times."""
    out = []
    for i in range(len(load)):
        chunks = load.chunk_ids[load.chunk_start[i] : load.chunk_start[i + 1]]
        names = tuple(int(load.chunk_names[c]) for c in chunks)
        out.append(
            Arrival(
                offset + float(load.arrival[i]), int(load.prompt[i]), int(load.output[i]), int(load.max_tokens[i]),
                int(load.cancel_tokens[i]), float(load.patience[i]), names, int(load.chunk_tokens[i]),
            )
        )  # fmt: skip
    return out


class VirtualEngine:
    """`cap`: the longest answer that the configuration allows. Requests come in order of time."""

    def __init__(self, config: EngineConfig, times: StepTimes, began: float, cap: int | None = None) -> None:
        flags = ServerFlags(MODEL, (MODEL,), "127.0.0.1", 0, config)
        self.config, self.clock, self._cap = config, began, cap
        self._registry = CollectorRegistry()
        self._metrics = EngineMetrics(self._registry, flags)
        self._stepper = Stepper(config, times)
        self._ledger = Ledger(self._stepper, self._metrics, self._gone)
        self._inbox: deque[Arrival] = deque()
        self._asked: dict[int, Arrival] = {}
        self._patience: list[tuple[float, int]] = []
        self._keys: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey] = {}

    @property
    def unfinished(self) -> int:
        return len(self._ledger.live) + len(self._inbox)

    def offer(self, request: Arrival) -> None:
        self._inbox.append(request)

    def run(self, until: float) -> None:
        while self.clock < until:
            self._take()
            step = self._stepper.step()
            if step.idle:
                self._metrics.set_gauges(self._stepper)
                self.clock = min(until, self._inbox[0].at) if self._inbox else until
                continue
            self._ledger.started(step, self.clock)
            self.clock += step.seconds
            self._leave(self._ledger.ended(step, self.clock))

    def end_all(self) -> None:
        """SIGTERM without grace: what is in flight is aborted."""
        self._inbox.clear()
        self._ledger.end_all("abort", self.clock)

    def scrape(self) -> dict[SeriesKey, float]:
        """As a scrape would find it."""
        out: dict[SeriesKey, float] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name in WANTED:
                    known = sample.name, tuple(sample.labels.items())
                    if known not in self._keys:
                        self._keys[known] = (sample.name, own_labels(sample.name, sample.labels))
                    out[self._keys[known]] = float(sample.value)
        return out

    # --- requests -----------------------------------------------------------------------------------------------------
    def _take(self) -> None:
        while self._inbox and self._inbox[0].at <= self.clock:
            request = self._inbox.popleft()
            limit = request.max_tokens if self._cap is None else min(self._cap, request.max_tokens)
            try:
                number = self._stepper.add(request.prompt, request.output, limit, prefix=self._prefix(request))
            except InputError:  # longer than the engine takes: refused, as vLLM does with a 400
                continue
            self._ledger.live[number] = LiveRequest(number, request.prompt, limit, request.at)
            self._asked[number] = request
            if request.patience < float("inf"):
                heapq.heappush(self._patience, (request.at + request.patience, number))
        while self._patience and self._patience[0][0] <= self.clock:
            live = self._ledger.live.get(heapq.heappop(self._patience)[1])
            if live is not None and live.first_token_at is None:
                self._ledger.abandon(live)

    def _leave(self, receivers: list[LiveRequest]) -> None:
        for live in receivers:
            asked = self._asked.get(live.number)
            if asked is not None and 0 < asked.cancel_tokens <= live.tokens:
                self._ledger.abandon(live)

    def _prefix(self, request: Arrival) -> list[int]:
        """A name for each full block of the shared beginning: equal where all chunks up to its end are equal."""
        size, tokens = self.config.block_size, request.chunk_tokens
        blocks = len(request.chunks) * tokens // size
        return [hash((k, *request.chunks[: ((k + 1) * size - 1) // tokens + 1])) for k in range(blocks)]

    def _gone(self, live: LiveRequest) -> None:
        self._asked.pop(live.number, None)
