"""The load as flat arrays. Requests are sorted by arrival; results keep that order (`order` maps back)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trimtab.errors import InputError
from trimtab.simulate.contents import fill_contents
from trimtab.simulate.state import F64, I32, I64

NEVER = float("inf")


class RequestLike(Protocol):
    """What `trimtab.load.trace.Request` has; see there."""

    @property
    def arrival_seconds(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def prefix_group(self) -> int | None: ...
    @property
    def prefix_tokens(self) -> int: ...
    @property
    def cancel_after_tokens(self) -> int | None: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def prefix_blocks(self) -> tuple[int, ...]: ...
    @property
    def block_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """n requests, ascending `arrival` (seconds). `output` is where the model stops by itself, `max_tokens` the cap.

    `cancel_tokens`: the client leaves after reading them (0: never). `cancel_at`: it leaves at that time; `patience`:
    that many seconds after arrival without a first token (inf: never). Chunks name the shared beginning of a prompt:
    request i has chunks `chunk_ids[chunk_start[i] : chunk_start[i + 1]]` of `chunk_tokens[i]` tokens each, numbered
    from 0; equal numbers mean equal tokens after an equal past. `chunk_names[number]` is what the caller called it,
    the same in every load of a stream.
    """

    arrival: F64
    prompt: I32
    output: I32
    max_tokens: I32
    cancel_tokens: I32
    cancel_at: F64
    patience: F64
    priority: I32
    chunk_start: I64
    chunk_ids: I32
    chunk_tokens: I32
    order: I64
    chunk_names: I64

    def __len__(self) -> int:
        return len(self.arrival)

    @classmethod
    def of(
        cls,
        arrival: Sequence[float] | F64,
        prompt: Sequence[int] | I32,
        output: Sequence[int] | I32,
        *,
        max_tokens: Sequence[int] | I32 | None = None,
        cancel_tokens: Sequence[int] | I32 | None = None,
        cancel_at: Sequence[float] | F64 | None = None,
        patience: Sequence[float] | F64 | None = None,
        priority: Sequence[int] | I32 | None = None,
        chunks: Sequence[Sequence[int]] | None = None,
        chunk_tokens: Sequence[int] | I32 | None = None,
    ) -> Workload:
        """From columns in any order of arrival. InputError names the column that makes no sense."""
        n = len(arrival)
        at = np.asarray(arrival, dtype=np.float64)
        if n and not np.isfinite(at).all():
            raise InputError("arrival", "holds something that is no time", "Give seconds.")
        order = np.argsort(at, kind="stable")
        leave = _times("cancel_at", cancel_at, order)
        if (leave < at[order]).any():
            raise InputError("cancel_at", "a client leaves before it comes", "Give times from its arrival on.")
        ids, start, names = _numbered(chunks if chunks is not None else [()] * n, order)
        return cls(
            at[order],
            _whole("prompt", prompt, order, 1),
            _whole("output", output, order, 1),
            _whole("max_tokens", max_tokens if max_tokens is not None else output, order, 1),
            _whole("cancel_tokens", cancel_tokens if cancel_tokens is not None else np.zeros(n, np.int32), order, 0),
            leave,
            _times("patience", patience, order),
            _whole("priority", priority if priority is not None else np.zeros(n, np.int32), order, -(2**31)),
            start,
            ids,
            _whole("chunk_tokens", chunk_tokens if chunk_tokens is not None else np.ones(n, np.int32), order, 1),
            order,
            names,
        )

    def part(self, begin: int, end: int) -> Workload:
        """Requests `begin` to `end`, in order of arrival."""
        columns = {
            name: getattr(self, name)[begin:end]
            for name in (
                "arrival", "prompt", "output", "max_tokens", "cancel_tokens", "cancel_at", "patience", "priority",
                "chunk_tokens", "order",
            )
        }  # fmt: skip
        start = self.chunk_start[begin : end + 1]
        used, ids = np.unique(self.chunk_ids[start[0] : start[-1]], return_inverse=True)
        return Workload(
            **columns, chunk_start=start - start[0], chunk_ids=ids.astype(np.int32), chunk_names=self.chunk_names[used]
        )

    @classmethod
    def from_requests(cls, requests: Sequence[RequestLike], *, patience_seconds: float | None = None) -> Workload:
        """From the requests of a trace or a generated load."""
        chunks: list[Sequence[int]] = []
        sizes = []
        for r in requests:
            group = r.prefix_group
            # a group is one chunk; negative numbers keep groups and a trace's block ids apart
            chunks.append(r.prefix_blocks or ((-1 - group,) if group is not None and r.prefix_tokens > 0 else ()))
            sizes.append(r.block_tokens if r.prefix_blocks else max(1, r.prefix_tokens))
        return cls.of(
            [r.arrival_seconds for r in requests],
            [r.prompt_tokens for r in requests],
            [r.output_tokens for r in requests],
            max_tokens=[r.max_tokens for r in requests],
            cancel_tokens=[r.cancel_after_tokens or 0 for r in requests],
            patience=None if patience_seconds is None else [patience_seconds] * len(requests),
            chunks=chunks,
            chunk_tokens=sizes,
        )


def blocks_of_chunks(load: Workload, block_size: int) -> I64:
    """How many numbers of contents each chunk needs."""
    longest = np.zeros(len(load.chunk_names), np.int64)
    np.maximum.at(longest, load.chunk_ids, np.repeat(load.chunk_tokens, np.diff(load.chunk_start)))
    return longest // block_size + 2


class Shared:
    """Each request's full KV blocks within its chunks: it has `count` of them, from place `start` of a list of all."""

    def __init__(self, load: Workload, block_size: int) -> None:
        self.load, self.block_size = load, block_size
        covered = np.minimum(load.prompt.astype(np.int64), np.diff(load.chunk_start) * load.chunk_tokens)
        self.count: I64 = covered // block_size
        ends = np.cumsum(self.count)
        self.start: I64 = ends - self.count
        self.total = int(ends[-1]) if len(load) else 0

    def write(self, base: I64, out: I32) -> None:
        """Their contents as numbers to `out`, (total,). `base`: each chunk's first, see `blocks_of_chunks`."""
        load = self.load
        if self.total:
            fill_contents(
                self.start, self.count, load.chunk_start, load.chunk_ids, load.chunk_tokens, base, self.block_size, out
            )


def _numbered(chunks: Sequence[Sequence[int]], order: I64) -> tuple[I32, I64, I64]:
    flat = [chunk for i in order for chunk in chunks[i]]
    counts = np.array([len(chunks[i]) for i in order], dtype=np.int64)
    names, ids = np.unique(np.array(flat, dtype=np.int64), return_inverse=True)
    return ids.astype(np.int32), np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), names


def _whole(name: str, values: Sequence[int] | I32, order: I64, least: int) -> I32:
    wide = np.asarray(values, dtype=np.int64)
    if len(wide) != len(order):
        raise InputError(name, f"has {len(wide)} values for {len(order)} requests", "Give one per request.")
    if len(wide) and (wide.min() < least or wide.max() >= 2**31):
        raise InputError(name, f"holds a value out of range (least {least})", "Correct it.")
    return wide[order].astype(np.int32)


def _times(name: str, values: Sequence[float] | F64 | None, order: I64) -> F64:
    if values is None:
        return np.full(len(order), NEVER)
    times = np.asarray(values, dtype=np.float64)
    if len(times) != len(order) or np.isnan(times).any():
        raise InputError(name, "does not hold one time per request", "Give seconds, inf for never.")
    return times[order]
