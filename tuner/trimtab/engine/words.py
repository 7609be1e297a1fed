"""One word of a command line: what vLLM gets, and where it is written, so that it can be edited in place.

Hazard: a word can be an API key. Text is left out of `repr`, and no error message may quote a word's value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Where = Literal["command", "args"]
#: how a character of a script is quoted: bare, in '...' or in "..."
Quote = Literal["", "'", '"']


@dataclass(frozen=True)
class Char:
    """Where one character of a word's text is written in the script."""

    start: int
    end: int
    quote: Quote


@dataclass(frozen=True)
class Word:
    """`text` as the process gets it; `raw` as written in the list item or script.

    opaque: the text is not known here (a secret, an unresolved variable, a glob).
    expanded: the text is known but was made from a variable, so editing must replace it whole.
    start, end, chars: the place in the script; start is -1 for a list item, which is one word.
    """

    text: str = field(repr=False)
    where: Where
    item: int
    raw: str = field(repr=False)
    opaque: bool = False
    expanded: bool = False
    start: int = -1
    end: int = -1
    chars: tuple[Char, ...] = field(default=(), repr=False)

    @property
    def in_script(self) -> bool:
        return self.start >= 0
