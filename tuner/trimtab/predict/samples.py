"""Requests to learn from: the middleware's opt-in log (features and lengths, no text), or a public trace (lengths).

Log: one JSON object a line (plain or .gz): the features of `trimtab.middleware.quantile_model`, and `at` (unix
seconds), `output_tokens` (the longest choice's, where n > 1), `ending`, `cap_tokens` (the limit that held, null for
none).
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InputError, TraceError
from trimtab.load.readers import READERS, read_trace
from trimtab.middleware.quantile_model import DENSE_NAMES, buckets_of, dense_reader

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: endings that show where the model stops by itself
NATURAL: Final = frozenset({"stop", "stop_sequence"})
#: the limit cut it: the length is at least this
CAPPED: Final = frozenset({"length"})
#: somebody left: the length is at least this, and where it would have been cut is not known
LEFT: Final = frozenset({"client_cancel", "timeout"})
#: say nothing about length
SKIPPED: Final = frozenset({"rejected", "error", "unseen"})
_ENDINGS = NATURAL | CAPPED | LEFT | SKIPPED


@dataclass(frozen=True)
class Sample:
    """One finished request. `cap_tokens` None: no limit known."""

    at_seconds: float
    row: Mapping[str, Any]
    output_tokens: int
    ending: str
    cap_tokens: int | None


@dataclass(frozen=True)
class Samples:
    """Requests in order of time, as arrays of length N.

    dense: N x len(DENSE_NAMES). hashes: the hashed n-grams of all rows end to end, `starts` (N + 1) where each begins.
    natural: ended by itself. left: the client went. Neither: cut by its limit.
    """

    at_seconds: Floats
    dense: Floats
    hashes: NDArray[np.int64]
    starts: NDArray[np.int64]
    output_tokens: Floats
    cap_tokens: Floats
    natural: Bools
    left: Bools

    def __len__(self) -> int:
        return len(self.output_tokens)

    def part(self, start: int, stop: int) -> Samples:
        """Requests start..stop in order of time."""
        return self.taken(np.arange(start, stop))

    def taken(self, rows: NDArray[np.int64]) -> Samples:
        """The given rows in the given order."""
        flat, starts = self.hashes_of(rows)
        return Samples(
            self.at_seconds[rows], self.dense[rows], flat, np.append(starts, len(flat)),
            self.output_tokens[rows], self.cap_tokens[rows], self.natural[rows], self.left[rows],
        )  # fmt: skip

    def chosen(self, mask: Bools) -> Samples:
        """Only the rows of the mask."""
        return self.taken(np.flatnonzero(mask))

    def hashes_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(hashes of the rows end to end, where each row's begin)."""
        counts = np.diff(self.starts)[rows]
        begins = _starts(counts)
        within = np.arange(begins[-1]) - np.repeat(begins[:-1], counts)
        return self.hashes[np.repeat(self.starts[rows], counts) + within], begins[:-1]


def read_samples(source: str, buckets: int, max_hashes: int, option: str = "SOURCE") -> Samples:
    """`FILE` or `log:FILE`: the middleware's log; `azure:FILE`, `mooncake:FILE`: a trace. InputError, TraceError."""
    kind, colon, name = source.partition(":")
    if colon and kind in READERS:
        return arrays(_from_trace(source, option), buckets, max_hashes)
    return arrays(read_log(Path(name if colon and kind == "log" else source)), buckets, max_hashes)


def _from_trace(source: str, option: str) -> Iterator[Sample]:
    """A trace knows lengths alone, and no limit."""
    for request in read_trace(source, option):
        yield Sample(
            request.arrival_seconds, {"prompt_tokens": request.prompt_tokens}, request.output_tokens, "stop", None
        )


def read_log(path: Path) -> Iterator[Sample]:
    """Samples in the file's order; what ended by error or refusal is left out. TraceError names file, line, field.

    A last line without its end is what a writer that was killed leaves: it is passed over.
    """
    for line, row in _rows(path):
        ending = row.get("ending")
        if ending not in _ENDINGS:
            _refuse(path, line, "ending", f"{ending!r} is not known", f"Use one of {', '.join(sorted(_ENDINGS))}.")
        if ending in SKIPPED:
            continue
        at, tokens, cap = row.get("at"), row.get("output_tokens"), row.get("cap_tokens")
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e12:
            _refuse(path, line, "at", f"{at!r} is no time", "Give unix seconds.")
        if type(tokens) is not int or not 0 <= tokens < 1 << 31:
            _refuse(path, line, "output_tokens", f"{tokens!r} is no token count", "Give a whole number, at least 0.")
        if cap is not None and (type(cap) is not int or not 1 <= cap < 1 << 31):
            _refuse(path, line, "cap_tokens", f"{cap!r} is no limit", "Give a whole number above 0, or null.")
        hashes = row.get("hashes", [])
        if not isinstance(hashes, list) or any(type(h) is not int or not 0 <= h < 1 << 63 for h in hashes):
            _refuse(path, line, "hashes", "is not a list of whole numbers", "Give hashes from 0 to 2^63 - 1.")
        yield Sample(float(at), row, tokens, str(ending), cap)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line by line: a log may be larger than memory."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                if not data.strip():
                    continue
                try:
                    row = json.loads(data)
                except ValueError as error:  # not JSON, or not UTF-8
                    if not data.endswith(b"\n"):
                        return
                    _refuse(path, number, "line", f"not JSON: {error}", "Give one JSON object a line.")
                if not isinstance(row, dict):
                    _refuse(path, number, "line", f"a {type(row).__name__}", "Give one JSON object a line.")
                yield number, row
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        fix = "Check the path and that the file came over whole."
        raise TraceError(str(path), f"cannot be read ({error})", fix) from error


def _refuse(path: Path, line: int, field: str, problem: str, fix: str) -> NoReturn:
    raise TraceError(f"{path}:{line} {field}", problem, fix)


def arrays(samples: Iterable[Sample], buckets: int, max_hashes: int) -> Samples:
    """Arrays of the samples, sorted by time. Features are those the engine computes, by the same functions."""
    readers = [dense_reader(name) for name in DENSE_NAMES]
    at, dense, hashes, counts = array("d"), array("d"), array("q"), array("q")
    tokens, caps, endings = array("d"), array("d"), []
    for sample in samples:
        found = buckets_of(sample.row, buckets, max_hashes)
        at.append(sample.at_seconds)
        dense.extend(read(sample.row) for read in readers)
        hashes.extend(found)
        counts.append(len(found))
        tokens.append(max(1, sample.output_tokens))
        caps.append(math.inf if sample.cap_tokens is None else sample.cap_tokens)
        endings.append(sample.ending)
    if not at:
        raise InputError("SOURCE", "there is no finished request in it", "Give a log or trace with finished requests.")
    output, limit = np.array(tokens), np.array(caps)
    capped = np.array([e in CAPPED for e in endings])
    # what was cut without a known limit was cut where it ended
    limit = np.where(capped & ~np.isfinite(limit), output, np.maximum(limit, output))
    made = Samples(
        at_seconds=np.array(at),
        dense=np.array(dense).reshape(len(at), len(readers)),
        hashes=np.array(hashes, dtype=np.int64),
        starts=_starts(np.array(counts, dtype=np.int64)),
        output_tokens=output,
        cap_tokens=limit,
        natural=np.array([e in NATURAL for e in endings]),
        left=np.array([e in LEFT for e in endings]),
    )
    return made.taken(np.argsort(made.at_seconds, kind="stable"))


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def endings_of(samples: Samples) -> dict[str, int]:
    """How many requests ended by themselves, by their limit, by their client."""
    kinds = np.where(samples.natural, "stop", np.where(samples.left, "left", "length"))
    return dict(Counter(str(k) for k in kinds))
