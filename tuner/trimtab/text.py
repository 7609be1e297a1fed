"""Text of others (logs, API messages, metric names, annotations) made fit for conditions, events and terminals.

Hazards: control characters move a terminal's cursor or recolour it (ESC), break lines of a log, or turn the reading
direction (U+202E), so that what is shown is not what is there; and a text without end fills a status.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

#: a terminal's escape sequences: CSI, OSC up to its end, and two-character ones (ECMA-48)
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]"
)
#: control, format (reading direction, zero width), surrogate, line and paragraph separator
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_CUT: Final = "..."


def plain(text: str, limit: int, *, lines: bool = False) -> str:
    """At most `limit` characters, without escapes and hidden characters; lines: line feeds and tabs stay."""
    kept = "\n\t" if lines else ""
    # what is far beyond the limit is not even looked at
    shown = _ESCAPES.sub("", text[: 4 * limit + 1024])
    clean = "".join(c if c in kept or unicodedata.category(c) not in _HIDDEN else " " for c in shown)
    clean = clean if lines else " ".join(clean.split())
    return clean if len(clean) <= limit else clean[: limit - len(_CUT)] + _CUT
