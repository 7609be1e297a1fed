"""Many simulations on all cores: the compiled loop holds no interpreter lock, so threads do, and the load is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trimtab.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


def in_order(function: Callable[[T], R], items: Iterable[T], workers: int = 1) -> Iterator[R]:
    """`map` with `workers` threads; the results are the same, in the same order, for any number of them."""
    if workers < 1:
        raise InputError("processes", f"{workers} is too few", "Use at least 1.")
    todo = list(items)
    if workers == 1 or len(todo) < 2:
        yield from map(function, todo)
        return
    # the first alone: it compiles, or reads the compiled code, and the others would wait for it anyway
    yield function(todo[0])
    with ThreadPoolExecutor(min(workers, len(todo) - 1)) as pool:
        yield from pool.map(function, todo[1:])
