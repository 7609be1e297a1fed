"""Random damage to inputs, for tests and `benchmarks/fuzz.py`: JSON values, and bytes of any text."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

#: numbers that border on something, texts that mean something elsewhere, and wrong kinds
JUNK: Final[Sequence[Any]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.5, 1.5, 1e308, 1e-308, "", " ", "x", "-1",
    "1e9", "null", "NaN", "$(A)", "${A}", "a/b", "../..", "\x00", "\n", "\u202e", "é" * 300, "9" * 5000, "A" * 300,
    "http://", "https://x:99999", "http://[::1", "24:00", "Europe/Nowhere", "../etc/passwd", [], {}, [None], [{}],
    {"": None}, [[]], {"a": {"b": []}},
)  # fmt: skip
BYTES: Final[Sequence[bytes]] = (
    b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\r", b"\n\n", b'"', b"'", b"\\", b"{", b"}", b"]",
    b"[" * 3000, b",", b":", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 5000, b"null", b"true", b"\x1f\x8b\x08",
    b"- ", b"? ", b"&a ", b"*a ", b"!!python/name:os.system ", b"<<: ", b"%", b"#", b"\t",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside, deepest last."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from places(value[key], (*path, key))


def damaged(rng: random.Random, value: Any) -> Any:
    """A copy with one to four changes: a value replaced, removed, moved or doubled, or a field that nobody knows."""
    out = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        paths = list(places(out))
        if not paths:
            return copy.deepcopy(rng.choice(JUNK))
        *path, last = rng.choice(paths)
        holder = out
        for key in path:
            holder = holder[key]
        match rng.randrange(10):
            case 0 | 8:
                del holder[last]
            case 9 if type(holder[last]) is int:
                holder[last] += rng.choice((1, -1))
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("x", "", str(last).upper(), f"{last}s"))] = copy.deepcopy(rng.choice(JUNK))
            case 2 if isinstance(holder, list):
                holder.extend(copy.deepcopy(holder[last]) for _ in range(rng.choice((1, 2, 30))))
            case 3:
                holder[last] = _at(out, rng.choice(paths), copy.deepcopy(rng.choice(JUNK)))
            case 4 if isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
                holder[last] = holder[last] * rng.choice((-1, 0, 0.5, 2, 1e3, 1e9)) + rng.choice((0, 0, 1, -1))
            case 5 if isinstance(holder[last], str):
                holder[last] = damaged_text(rng, holder[last].encode()).decode(errors="replace")
            case 6:
                holder[last] = [holder[last]]
            case _:
                holder[last] = copy.deepcopy(rng.choice(JUNK))
    return out


def _at(value: Any, path: tuple[Any, ...], default: Any) -> Any:
    """What stands there now; the path may be gone."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return default
    return copy.deepcopy(value)


def damaged_text(rng: random.Random, text: bytes, most: int = 6) -> bytes:
    """Up to `most` changes of bytes: put in, cut out, replaced, doubled, the end cut off."""
    body = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, rng.randint(1, most)))):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body[at:at] = rng.choice(BYTES)
            case 1:
                del body[at : at + rng.randint(1, 40)]
            case 2 if at < len(body):
                body[at] = rng.randrange(256)
            case 3:
                body[at : at + rng.randint(1, 12)] = rng.choice(BYTES)
            case 4:
                body[at:at] = body[at : at + rng.randint(1, 200)]
            case _ if rng.random() < 0.3:
                del body[at:]
    return bytes(body)
