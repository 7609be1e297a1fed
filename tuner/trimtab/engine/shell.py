"""The words of a script that is one simple command: `exec vllm serve m \\<newline> --max-num-seqs 32`.

In: the script of `sh -c`. Out: its words, each with the place of every character, so that one can be edited and all
other bytes stay. Anything that is more than one simple command is refused with its name;
nothing is executed, nothing is guessed.
Source: POSIX Shell Command Language 2.2 (quoting), 2.3 (tokens), 2.6 (expansions).
Hazard: the kubelet expands `$(NAME)` before the shell sees it; in a shell the same text is a command substitution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trimtab.engine.variables import Environment
from trimtab.engine.words import Char, Quote, Where, Word
from trimtab.errors import RewriteRefused

_HINT = "Trimtab edits a script only if it is one simple command: use a list (`vllm, serve, ...`) or mode Recommend."
_OPERATORS = {
    ";": "a second command (;)",
    "&": "a second command or a background job (&)",
    "|": "a pipe (|)",
    "<": "a redirection (<)",
    ">": "a redirection (>)",
    "(": "a subshell",
    ")": "a subshell",
    "`": "a command substitution (`)",
}
_GLOB = frozenset("*?[{~")
#: a value of these characters is one word, whatever the quoting
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KUBELET = re.compile(r"\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)([^{}$`'\"\\]*)\}")


def refused(what: str) -> RewriteRefused:
    return RewriteRefused(f"the container's script has {what}", hint=_HINT)


@dataclass
class _Building:
    """A word while it is read."""

    start: int
    text: list[str] = field(default_factory=list)
    chars: list[Char] = field(default_factory=list)
    opaque: bool = False
    expanded: bool = False

    def add(self, char: str, start: int, end: int, quote: Quote) -> None:
        self.text.append(char)
        self.chars.append(Char(start, end, quote))


def split(script: str, known: Environment, where: Where, item: int) -> tuple[Word, ...]:
    """The words of `script`; `RewriteRefused` if it is not one simple command."""
    return _Reader(script, known, where, item).read()


class _Reader:
    """Reads left to right; one method per kind of text, each leaves `at` behind what it read."""

    def __init__(self, script: str, known: Environment, where: Where, item: int) -> None:
        self.script, self.known, self.where, self.item = script, known, where, item
        self.at = 0
        self.word: _Building | None = None
        self.words: list[Word] = []
        self.ended = False

    def read(self) -> tuple[Word, ...]:
        if "\r" in self.script or "\0" in self.script:
            raise refused("carriage returns or null characters")
        if "$$" in self.script:
            raise refused("$$")
        while self.at < len(self.script):
            self._step(self.script[self.at])
        self._end_word()
        return tuple(self.words)

    def _step(self, char: str) -> None:
        if self.script.startswith("\\\n", self.at):
            self.at += 2
        elif char in " \t\n":
            self._blank(char)
        elif char == "#" and self.word is None:
            stop = self.script.find("\n", self.at)
            self.at = len(self.script) if stop < 0 else stop
        elif char in _OPERATORS:
            raise refused(_OPERATORS[char])
        else:
            self._word_part(char)

    def _blank(self, char: str) -> None:
        self._end_word()
        if char == "\n" and self.words:
            self.ended = True
        self.at += 1

    def _word_part(self, char: str) -> None:
        if self.word is None:
            if self.ended:
                raise refused("a second command (a new line without a backslash before it)")
            self.word = _Building(self.at)
        if char == "'":
            self._single()
        elif char == '"':
            self._double()
        elif char == "\\":
            self._escaped("")
        elif char == "$":
            self._dollar("")
        else:
            self.word.opaque = self.word.opaque or char in _GLOB
            self.word.add(char, self.at, self.at + 1, "")
            self.at += 1

    def _single(self) -> None:
        assert self.word is not None
        close = self.script.find("'", self.at + 1)
        if close < 0:
            raise refused("a ' that is not closed")
        for at in range(self.at + 1, close):
            if self.script.startswith("$(", at):
                self._kubelet_in_single(at)
            self.word.add(self.script[at], at, at + 1, "'")
        self.at = close + 1

    def _kubelet_in_single(self, at: int) -> None:
        """Single quotes do not stop the kubelet; what it would put here is not followed."""
        assert self.word is not None
        match = _KUBELET.match(self.script, at)
        if match:
            self.word.opaque = True

    def _double(self) -> None:
        assert self.word is not None
        self.at += 1
        while True:
            if self.at >= len(self.script):
                raise refused('a " that is not closed')
            char = self.script[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "`":
                raise refused(_OPERATORS["`"])
            if char == "\\":
                self._escaped('"')
            elif char == "$":
                self._dollar('"')
            else:
                self.word.add(char, self.at, self.at + 1, '"')
                self.at += 1

    def _escaped(self, quote: Quote) -> None:
        assert self.word is not None
        following = self.script[self.at + 1 : self.at + 2]
        if not following:
            raise refused("a backslash at its end")
        if following == "\n":
            self.at += 2
        elif quote == '"' and following not in '$`"\\':
            self.word.add("\\", self.at, self.at + 1, quote)
            self.at += 1
        else:
            self.word.add(following, self.at, self.at + 2, quote)
            self.at += 2

    def _dollar(self, quote: Quote) -> None:
        """A variable: its literal value if that is plain text, else an opaque word; anything else is refused."""
        assert self.word is not None
        name, end = self._reference(quote)
        if not end:
            self.word.add("$", self.at, self.at + 1, quote)
            self.at += 1
            return
        value = self.known.get(name) if name else None
        plain = bool(value) and _PLAIN.fullmatch(value or "") is not None
        if value is not None and not plain and (not quote or self.script.startswith("$(", self.at)):
            raise refused(f"a variable, {name}, whose value the shell would take apart")
        if not plain or value is None:
            self.word.opaque = True
            value = self.script[self.at : end]
        self.word.expanded = True
        for char in value:
            self.word.add(char, self.at, end, quote)
        self.at = end

    def _reference(self, quote: Quote) -> tuple[str, int]:
        """Name (empty if out of sight) and end of the reference at `at`; end 0 for a bare dollar."""
        if match := _KUBELET.match(self.script, self.at):
            if match[1] not in self.known:
                raise refused(f"a command substitution, $({match[1]})")
            return match[1], match.end()
        if match := _BRACED.match(self.script, self.at):
            return ("" if match[2] else match[1]), match.end()
        if match := _NAME.match(self.script, self.at + 1):
            return match[0], match.end()
        following = self.script[self.at + 1 : self.at + 2]
        if following in {"(", "{"}:
            raise refused(f"an expansion, ${following}")
        if following in {"@", "*", "#", "?", "-", "!"} or following.isdigit():
            raise refused(f"arguments out of sight, ${following}")
        if following in {"'", '"'} and not quote:
            raise refused(f"a ${following} string")
        return "", 0

    def _end_word(self) -> None:
        if self.word is None:
            return
        word, self.word = self.word, None
        raw = self.script[word.start : self.at]
        self.words.append(
            Word("".join(word.text), self.where, self.item, raw, word.opaque, word.expanded,
                 word.start, self.at, tuple(word.chars))
        )  # fmt: skip


def encode(text: str, quote: Quote) -> str:
    """`text` as it must be written inside that quoting."""
    if quote == "'":
        return text.replace("'", "'\\''")
    special = '\\$`"' if quote == '"' else " \t\n\\$`\"'|&;<>()*?[]{}~#"
    return "".join(f"\\{char}" if char in special else char for char in text)
