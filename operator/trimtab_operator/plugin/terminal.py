"""Lines with a little colour, for a terminal; plain elsewhere. Colour never carries meaning alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

#: looks: (colour of the 256, background of the 256, bold). Inline colours hold a contrast of 3.5 on black, white and
#: the common schemes between; a badge brings its own background, so that it holds 4.5 everywhere (a test computes both)
LOOKS: Final[dict[str, tuple[int | None, int | None, bool]]] = {
    "": (None, None, False), "bold": (None, None, True), "dim": (244, None, False), "command": (None, None, True),
    "good": (64, None, True), "bad": (196, None, True), "warn": (166, None, True),
    "badge-good": (231, 28, True), "badge-bad": (231, 160, True), "badge-ask": (16, 214, True),
    "badge-dim": (231, 240, True),
}  # fmt: skip
#: looks whose text is one word: a command that is cut by us cannot be pasted
_WHOLE: Final = "command"


class Part(NamedTuple):
    """look: a key of LOOKS."""

    text: str
    look: str = ""


Line = list[Part]


def line(*parts: str | Part) -> Line:
    return [p if isinstance(p, Part) else Part(p) for p in parts]


def shown(lines: Iterable[Line], *, colour: bool) -> str:
    return "\n".join("".join(_part(p, colour) for p in one).rstrip() for one in lines)


def _part(part: Part, colour: bool) -> str:
    if part.look.startswith("badge"):
        return f"\x1b[{_code(part.look)}m {part.text} \x1b[0m" if colour else f"[{part.text}]"
    return f"\x1b[{_code(part.look)}m{part.text}\x1b[0m" if colour and part.look and part.text else part.text


def _code(look: str) -> str:
    ink, ground, bold = LOOKS[look]
    codes = ["1"] if bold else []
    codes += [f"38;5;{ink}"] if ink is not None else []
    return ";".join([*codes, f"48;5;{ground}"] if ground is not None else codes)


def colourful() -> bool:
    """A terminal that has not asked for none (no-color.org)."""
    return cursor() and not os.environ.get("NO_COLOR")


def cursor() -> bool:
    """A terminal in which a page can be drawn anew in place."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def wrapped(one: Line, width: int | None, most: int | None = None) -> list[Line]:
    """Broken at spaces so that no line is longer than `width`; after `most` lines cut with an ellipsis."""
    if width is None or sum(_long(p) for p in one) <= width:
        return [one]
    out: list[Line] = [[]]
    used = 0
    for word in _words(one):
        if used and used + len(word.text.rstrip()) > width:
            out.append([])
            used = 0
        if used or word.text.strip():
            out[-1].append(word if used else Part(word.text.lstrip(), word.look))
            used += _long(out[-1][-1])
    if most is not None and len(out) > most:
        out = [*out[: most - 1], _cut(out[most - 1], width - 1)]
    return out


def _words(one: Line) -> list[Part]:
    """Words with the spaces after them."""
    found = []
    for part in one:
        if part.look == _WHOLE or part.look.startswith("badge"):
            found.append(part)
            continue
        start = 0
        for place in range(1, len(part.text) + 1):
            if place == len(part.text) or (part.text[place - 1] == " " and part.text[place] != " "):
                found.append(Part(part.text[start:place], part.look))
                start = place
    return found


def _cut(one: Line, width: int) -> Line:
    out: Line = []
    left = width
    for part in one:
        out.append(Part(part.text[:left], part.look))
        left -= len(out[-1].text)
    return [*out[:-1], Part(out[-1].text.rstrip() + "…", out[-1].look)] if out else out


def columns(head: Sequence[str], body: Sequence[Sequence[str | Part]], width: int | None = None) -> list[Line]:
    """A table as kubectl prints them. The last column takes what is left of `width` and is cut there."""
    table = [[Part(h, "dim") for h in head], *([p if isinstance(p, Part) else Part(p) for p in row] for row in body)]
    widths = [max(_long(row[i]) for row in table) for i in range(len(head))]
    out = []
    for row in table:
        cells: Line = []
        for part, wide in zip(row[:-1], widths[:-1], strict=True):
            cells += [part, Part(" " * (wide - _long(part) + 3))]
        used = sum(w + 3 for w in widths[:-1])
        last = row[-1]
        cut = (
            last.text
            if width is None or used + len(last.text) <= width
            else f"{last.text[: max(8, width - used - 1)]}…"
        )
        out.append([*cells, Part(cut, last.look)])
    return out


def _long(part: Part) -> int:
    return len(part.text) + (2 if part.look.startswith("badge") else 0)
