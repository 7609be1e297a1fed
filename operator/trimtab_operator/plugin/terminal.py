"""Lines with a little colour, for a terminal; plain elsewhere. Colour never carries meaning alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_CODES: Final = {"bold": "1", "good": "32", "bad": "31", "warn": "33", "dim": "2", "": "0"}


class Part(NamedTuple):
    """look: one of bold, good, bad, warn, dim or nothing."""

    text: str
    look: str = ""


Line = list[Part]


def line(*parts: str | Part) -> Line:
    return [p if isinstance(p, Part) else Part(p) for p in parts]


def shown(lines: Iterable[Line], *, colour: bool) -> str:
    return "\n".join("".join(_part(p, colour) for p in one).rstrip() for one in lines)


def _part(part: Part, colour: bool) -> str:
    return f"\x1b[{_CODES[part.look]}m{part.text}\x1b[0m" if colour and part.look else part.text


def colourful() -> bool:
    """A terminal that has not asked for none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(head: Sequence[str], body: Sequence[Sequence[str | Part]], width: int | None = None) -> list[Line]:
    """A table as kubectl prints them. The last column takes what is left of `width` and is cut there."""
    table = [[Part(h, "dim") for h in head], *([p if isinstance(p, Part) else Part(p) for p in row] for row in body)]
    widths = [max(len(row[i].text) for row in table) for i in range(len(head))]
    out = []
    for row in table:
        cells = [Part(p.text.ljust(w) + "   ", p.look) for p, w in zip(row[:-1], widths[:-1], strict=True)]
        used = sum(len(c.text) for c in cells)
        last = row[-1]
        cut = (
            last.text
            if width is None or used + len(last.text) <= width
            else f"{last.text[: max(8, width - used - 1)]}…"
        )
        out.append([*cells, Part(cut, last.look)])
    return out
