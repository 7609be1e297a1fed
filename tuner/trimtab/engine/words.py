"""One word of a command line: what vLLM gets, and where it is written, so that it can be edited in place.

Hazard: a word can be an API key. Text is left out of `repr`, and no error message may quote a word's value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: the container's list that holds the text; "env": the value of an entry of `env`; "file": a mounted file, read only
Where = Literal["command", "args", "env", "file"]
#: how a character of a script is quoted: bare, in '...' or in "..."
Quote = Literal["", "'", '"']
#: what made a word's text: written out, a variable, or a command whose output nobody knows
Origin = Literal["literal", "variable", "command"]


@dataclass(frozen=True)
class Char:
    """Where one character of a word's text is written in the script."""

    start: int
    end: int
    quote: Quote


@dataclass(frozen=True)
class Word:
    """`text` as the process gets it; `raw` as written in the list item, script or variable.

    opaque: the text is not known here (a secret, an unresolved variable, a glob).
    origin: "variable" or "command" if any part of the text comes from one, so that editing must replace it whole.
    start, end, chars: the place in the text of `where[item]`; start is -1 for a list item, which is one word.
    before: where the token before this word ends in that text.
    shared: the text it stands in is used more than once, so it must not be edited.
    """

    text: str = field(repr=False)
    where: Where
    item: int
    raw: str = field(repr=False)
    opaque: bool = False
    origin: Origin = "literal"
    start: int = -1
    end: int = -1
    chars: tuple[Char, ...] = field(default=(), repr=False)
    before: int = 0
    shared: bool = False

    @property
    def expanded(self) -> bool:
        return self.origin != "literal"

    @property
    def in_script(self) -> bool:
        """Whether it is part of a longer text (a script, a variable's value) and not a list item of its own."""
        return self.start >= 0
