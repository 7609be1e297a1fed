"""Prompt texts of an exact number of units, with prefixes that are really shared and the rest really unique.

Hazard: a server's prefix cache remembers. Two runs with equal texts are not two equal runs: the second finds its
prompts cached. So the texts hang on a salt, not on the seed; give each run its own salt unless a warm cache is what
you study.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from trimtab.load.trace import Request

#: word: "w123 w77 ...", about a token each for the emulator; char: one letter, one token of a byte-level tokenizer
Unit = Literal["word", "char"]

_POOL_UNITS = 8192
_HEAD_UNITS = 4  # drawn one by one: they make the block that holds them, and all later ones, unlike any other prompt's
_WORDS = 10_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Prompts:
    """Makes the text of a request; `number` tells requests of a run apart."""

    salt: str
    unit: Unit = "word"

    def __post_init__(self) -> None:
        _pool(self.unit)  # some 10 ms, now and not while the first request is due

    def text(self, request: Request, number: int) -> str:
        parts = self._prefix(request)
        own = request.prompt_tokens - request.prefix_tokens
        if own > 0:
            parts.append(_run(f"{self.salt}:own:{number}", own, self.unit))
        return ("" if self.unit == "char" else " ").join(parts)

    def _prefix(self, request: Request) -> list[str]:
        left, parts = request.prefix_tokens, []
        if request.prefix_blocks:
            for block in request.prefix_blocks:
                if left <= 0:
                    break
                parts.append(_shared(f"{self.salt}:block:{block}", min(left, request.block_tokens), self.unit))
                left -= request.block_tokens
        elif left > 0:
            parts.append(_shared(f"{self.salt}:group:{request.prefix_group}", left, self.unit))
        return parts


@lru_cache(maxsize=2)
def _pool(unit: Unit) -> list[str]:
    rng = random.Random("pool")
    return (
        rng.choices(_LETTERS, k=_POOL_UNITS)
        if unit == "char"
        else [f"w{rng.randrange(_WORDS)}" for _ in range(_POOL_UNITS)]
    )


def _run(key: str, units: int, unit: Unit) -> str:
    """A text of `units` units that depends on the key alone; a shorter one is the beginning of a longer one.

    A few fresh units, then the pool read round from a random place: joining slices is some ten times cheaper than
    drawing each unit.
    """
    rng, pool = random.Random(key), _pool(unit)
    head = [rng.choice(pool) for _ in range(_HEAD_UNITS)]
    start = rng.randrange(_POOL_UNITS)
    body, left = [*head, *pool[start:]][:units], units
    while (left := units - len(body)) > 0:
        body += pool[:left]
    return ("" if unit == "char" else " ").join(body)


_shared = lru_cache(maxsize=2048)(_run)
