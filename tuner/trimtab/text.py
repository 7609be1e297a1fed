"""Text of others (logs, API messages, metric names, annotations) made fit for conditions, events and terminals.

Hazards: control characters move a terminal's cursor or recolour it (ESC), break lines of a log, or turn the reading
direction (U+202E), so that what is shown is not what is there; and a text without end fills a status.
"""

from __future__ import annotations

import re
from typing import Final

#: a terminal's escape sequences: CSI, OSC up to its end, and two-character ones (ECMA-48)
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]"
)
_CUT: Final = "..."
_WHOLE: Final = re.compile("[0-9]{1,18}")


def whole_number(text: str) -> int | None:
    """A number of plain digits, None for anything else. `str.isdigit` also takes superscripts, which `int` refuses, and
    any length, of which `int` refuses thousands."""
    return int(text) if _WHOLE.fullmatch(text) else None


def plain(text: str, limit: int, *, lines: bool = False) -> str:
    """At most `limit` characters, without escapes and hidden characters; lines: line feeds and tabs stay."""
    # what is far beyond the limit is not even looked at
    shown = text[: 2 * limit + 256]
    if not shown.isprintable():
        kept = "\n\t" if lines else ""
        shown = "".join(c if c.isprintable() or c in kept else " " for c in _ESCAPES.sub("", shown))
    shown = shown if lines else " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - len(_CUT)] + _CUT
