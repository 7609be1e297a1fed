"""A load of any length through the compiled loop: it comes in parts, and memory follows what is live.

The same bits as `simulate` of the whole. Quantiles come from histograms of `WIDTH` relative width, so they are within
half of that of a value between the two samples around the rank; all else is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.layout import Room, Store
from trimtab.simulate.simulator import drive, endings, request_moments, request_rows, timers, totals
from trimtab.simulate.state import F64, I32, I64
from trimtab.simulate.summary import Figures, Limits, Quantiles
from trimtab.simulate.window import Contents, drop_ended, ended, make_room, set_events
from trimtab.simulate.workload import Shared, Workload, blocks_of_chunks

#: relative width of a bucket, and the seconds that the buckets span; what is beyond counts as at the edge
WIDTH: Final = 0.005
_LEAST, _MOST = 1e-6, 1e7
_STEP: Final = float(np.log1p(WIDTH))
_BUCKETS: Final = int(np.log(_MOST / _LEAST) / _STEP) + 1


def simulate_stream(
    loads: Iterable[Workload], config: EngineConfig, times: StepTimes | None = None, limits: Limits | None = None
) -> Figures:
    """Serve the parts of a load, each later than the one before, to their end.

    Parts of some ten thousand requests cost least. Equal `chunk_names` in two parts are equal prefixes. InputError for
    a part that begins before the last arrival of the one before it.
    """
    run = _Run(config, times or StepTimes(), _Tally(limits or Limits()))
    for load in loads:
        if len(load):
            run.serve(load)
    return run.finish()


class _Histogram:
    def __init__(self) -> None:
        self.counts, self.total = np.zeros(_BUCKETS, np.int64), 0.0

    def add(self, seconds: F64) -> None:
        if len(seconds):
            place = (np.log(np.maximum(seconds, _LEAST) / _LEAST) / _STEP).astype(np.int64)
            self.counts += np.bincount(np.minimum(place, _BUCKETS - 1), minlength=_BUCKETS)
            self.total += float(seconds.sum())

    def quantiles(self) -> Quantiles:
        n = int(self.counts.sum())
        if not n:
            return Quantiles(None, None, None, None)
        upto = np.cumsum(self.counts)
        at = [int(np.searchsorted(upto, q * (n - 1), side="right")) for q in (0.5, 0.9, 0.99)]
        return Quantiles(self.total / n, *(_LEAST * float(np.exp((k + 0.5) * _STEP)) for k in at))


@dataclass
class _Tally:
    """What `Figures` needs of requests that ended."""

    limits: Limits
    endings: I64 = field(default_factory=lambda: np.zeros(len(st.ENDINGS), np.int64))
    useful: int = 0
    reserved: int = 0
    good: int = 0
    good_tokens: int = 0
    latencies: tuple[_Histogram, _Histogram, _Histogram] = field(
        default_factory=lambda: (_Histogram(), _Histogram(), _Histogram())
    )

    def add(self, rows: I32, moments: F64) -> None:
        """(n, RQ), (n, TQ)."""
        ending = endings(rows)
        self.endings += np.bincount(ending, minlength=len(st.ENDINGS))
        ok = np.isin(ending, (st.STOP, st.LENGTH))
        tokens, when = rows[ok, st.TOKENS].astype(np.int64), moments[ok]
        ttft = when[:, st.FIRST] - when[:, st.ARRIVAL]
        gaps = (when[:, st.LAST] - when[:, st.FIRST]) / np.maximum(tokens - 1, 1)
        good = (ttft <= self.limits.ttft_seconds) & ((tokens < 2) | (gaps <= self.limits.tpot_seconds))
        self.useful += int(tokens.sum())
        self.good += int(good.sum())
        self.good_tokens += int(tokens[good].sum())
        for histogram, values in zip(
            self.latencies, (ttft, gaps[tokens > 1], when[:, st.END] - when[:, st.ARRIVAL]), strict=True
        ):
            histogram.add(values)

    def figures(self, store: Store, begin: float) -> Figures:
        counters = totals(store)
        stayed = int(self.endings.sum() - self.endings[st.CANCELLED])
        seconds = counters.end_seconds - begin
        ttft, tpot, e2e = self.latencies
        return Figures(
            store.config,
            {name: int(count) for name, count in zip(st.ENDINGS, self.endings, strict=True) if count},
            self.good_tokens / seconds if seconds > 0 else 0.0,
            self.good / stayed if stayed else None,
            self.useful / self.reserved if self.reserved else None,
            counters.generation_tokens - self.useful,
            ttft.quantiles(),
            tpot.quantiles(),
            e2e.quantiles(),
            counters,
        )


class _Run:
    def __init__(self, config: EngineConfig, times: StepTimes, tally: _Tally) -> None:
        blocks = config.usable_blocks if config.enable_prefix_caching else 1
        room = Room(
            0,
            rows=2 * config.active_limit if config.enable_prefix_caching else 1,
            width=min(blocks, config.max_model_len // config.block_size + 2),
        )
        self.config, self.tally = config, tally
        self.store, self.contents = Store(config, times, room), Contents()
        self.begin: float | None = None
        self.stopped = False

    def serve(self, load: Workload) -> None:
        """As far as arrivals are known."""
        clocks = self.store.floats(st.CLOCKS_AT)
        if self.begin is None:
            self.begin = clocks[st.NOW] = load.arrival[0]
        elif load.arrival[0] < clocks[st.HORIZON]:
            problem = f"a part begins at {load.arrival[0]}, before {clocks[st.HORIZON]}, the end of the one before it"
            raise InputError("arrival", problem, "Give the parts in order.")
        self.tally.reserved += int(load.max_tokens.sum(dtype=np.int64))
        if self.stopped:
            self.tally.endings[st.STUCK] += len(load)
            return
        self._harvest()
        self._append(load)
        self.store.floats(st.CLOCKS_AT)[st.HORIZON] = load.arrival[-1]
        self.stopped = drive(self.store) == st.FINISHED

    def finish(self) -> Figures:
        self.store.floats(st.CLOCKS_AT)[st.HORIZON] = np.inf
        if not self.stopped:
            drive(self.store)
        n = int(self.store.state.c[st.N_REQUESTS])
        self.tally.add(self.store.requests[:n], self.store.moments[:n])
        return self.tally.figures(self.store, self.begin or 0.0)

    def _harvest(self) -> None:
        over = np.flatnonzero(ended(self.store))
        self.tally.add(self.store.requests[over], self.store.moments[over])
        drop_ended(self.store)

    def _append(self, load: Workload) -> None:
        store, config = self.store, self.config
        rows = request_rows(load, config)
        c, first = store.state.c, int(store.state.c[st.N_PREFIX_IDS])
        if config.enable_prefix_caching:
            shared = Shared(load, config.block_size)
            lengths = blocks_of_chunks(load, config.block_size)
            base = self.contents.number(store, load.chunk_names.tolist(), lengths.tolist())
            make_room(store, 0, shared.total)
            shared.write(base, store.ints(st.PREFIX_IDS_AT)[first:])
            rows[:, st.PREFIX_START], rows[:, st.PREFIX_COUNT] = first + shared.start, shared.count
            c[st.N_PREFIX_IDS] = first + shared.total
        make_room(store, len(load), 0)
        known = int(c[st.N_REQUESTS])
        store.requests[known : known + len(load)] = rows
        store.moments[known : known + len(load)] = request_moments(load)
        c[st.N_REQUESTS] = known + len(load)
        at, of = timers(load)
        ahead = slice(int(c[st.NEXT_EVENT]), int(c[st.N_EVENTS]))
        at = np.concatenate((store.floats(st.EVENT_TIMES_AT)[ahead], at))
        of = np.concatenate((store.ints(st.EVENTS_AT)[ahead], of + 2 * known))
        order = np.lexsort((of >> 1, of & 1, at))
        set_events(store, at[order], of[order])
