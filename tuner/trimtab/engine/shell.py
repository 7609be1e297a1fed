"""The words of one simple command in a shell script: `exec vllm serve m \\<newline> --max-num-seqs 32 > log`.

In: a script and where the command begins. Out: its words, each with the place of every character, so that one can be
edited and all other bytes stay. Reading ends where the shell's command ends; redirections are passed over.
Nothing is executed, nothing is guessed: what comes from a variable or a command is marked.
Source: POSIX Shell Command Language 2.2 (quoting), 2.3 (tokens), 2.6 (expansions), 2.7 (redirection).
Hazard: the kubelet expands `$(NAME)` before the shell sees it; in a shell the same text is a command substitution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.engine.variables import Environment
from trimtab.engine.words import Char, Origin, Quote, Where, Word
from trimtab.errors import RewriteRefused

_HINT = "Write the command as a list (`vllm, serve, ...`), or use mode Recommend and change the script by hand."
_GLOB = frozenset("*?[{~")
#: a value of these characters is one word, whatever the quoting
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KUBELET = re.compile(r"\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)([^{}$`'\"\\]*)\}")
_DEFAULT = re.compile(r":?-([A-Za-z0-9_./:=@%+,-]+)")
_ENDS = frozenset("\n;|)")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>&|>\||>>|<|>")
#: every argument, as `"$@"`; or bare, where the shell splits each once more
ARGUMENTS = "$@"


def refused(what: str, code: str = "ScriptNotReadable") -> RewriteRefused:
    return RewriteRefused(f"the container's script has {what}", hint=_HINT, code=code)


@dataclass(frozen=True)
class Context:
    """What the shell knows while it reads the command.

    kubelet: variables that `$(NAME)` finds. shell: variables that `$NAME` finds. spans: where expansions end, by start.
    fields: for a name whose value the shell splits, the words of that value; None where they are out of sight.
    defaults: whether `${NAME:-text}` may be read as text, because nothing sets NAME.
    """

    kubelet: Environment
    shell: Environment
    spans: Mapping[int, int]
    fields: Callable[[str], Sequence[Word] | None]
    defaults: Callable[[str], bool]


@dataclass
class _Building:
    """A word while it is read."""

    start: int
    before: int
    text: list[str] = field(default_factory=list)
    chars: list[Char] = field(default_factory=list)
    opaque: bool = False
    origin: Origin = "literal"
    #: the name, if the word is so far nothing but that unquoted variable
    variable: str = ""
    #: the name of an unquoted variable whose value is several words
    split: str = ""

    def add(self, char: str, start: int, end: int, quote: Quote) -> None:
        self.text.append(char)
        self.chars.append(Char(start, end, quote))

    def comes_from(self, origin: Origin) -> None:
        if self.origin != "command":
            self.origin = origin


@dataclass(frozen=True)
class Line:
    """The words of a command, and where the last of them ends in the script."""

    words: tuple[Word, ...]
    end: int


def read_command(script: str, start: int, context: Context, where: Where, item: int) -> Line:
    """The words of the simple command at `start`; `RewriteRefused` for what no reader could be sure of.

    An opaque word whose text is `ARGUMENTS` stands for the arguments of the script; its raw is `"$@"` or `$@`.
    """
    return _Reader(script, start, context, where, item).read()


class _Reader:
    """Reads left to right; one method per kind of text, each leaves `at` behind what it read."""

    def __init__(self, script: str, start: int, context: Context, where: Where, item: int) -> None:
        self.script, self.context, self.where, self.item = script, context, where, item
        self.at = start
        self.before = self.end = start
        self.word: _Building | None = None
        self.words: list[Word] = []

    def read(self) -> Line:
        if "\r" in self.script or "\0" in self.script:
            raise refused("carriage returns or null characters")
        while self.at < len(self.script) and self._step(self.script[self.at]):
            pass
        self._end_word()
        return Line(tuple(self.words), self.end)

    def _step(self, char: str) -> bool:
        """Reads on; False at the end of the command."""
        if self.script.startswith("\\\n", self.at):
            self.at += 2
        elif char in " \t":
            self._end_word()
            self.at += 1
        elif char in _ENDS or (char == "#" and self.word is None):
            return False
        elif redirection := _REDIRECTION.match(self.script, self.at):
            self._redirect(redirection.end())
        elif char == "&":
            return False
        elif char == "(":
            raise refused("a ( inside the command")
        else:
            self._word_part(char)
        return True

    def _redirect(self, end: int) -> None:
        """Passes over `2> file` with its number and its target."""
        if self.script.startswith(("<(", ">("), self.at):
            raise refused("a process substitution")
        if self.word is not None and "".join(self.word.text).isdigit() and self.word.origin == "literal":
            self.word = None
        self._end_word()
        self.at = end
        words, before, last = self.words, self.before, self.end
        self.words = []
        while not self.words:
            char = self.script[self.at : self.at + 1]
            if not char or char in _ENDS or not self._step(char):
                break
        self._end_word()
        if not self.words:
            raise refused("a redirection without a target")
        self.before = max(before, self.before)
        self.words, self.end = words, last

    def _word_part(self, char: str) -> None:
        if self.word is None:
            self.word = _Building(self.at, self.before)
        self.word.variable = ""
        if char == "'":
            self._single()
        elif char == '"':
            self._double()
        elif char == "\\":
            self._escaped("")
        elif char == "$":
            self._dollar("")
        elif char == "`":
            self._substitution()
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
            if self.script.startswith("$(", at) and _KUBELET.match(self.script, at):
                self.word.opaque = True  # single quotes do not stop the kubelet; what it puts here is not followed
            if self.script.startswith("$$", at):
                raise refused("$$")
            self.word.add(self.script[at], at, at + 1, "'")
        self.at = close + 1

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
                self._substitution()
            elif char == "\\":
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

    def _substitution(self) -> None:
        """Output of a command, or an expansion too rich to follow: text that nobody knows before it runs."""
        assert self.word is not None
        end = self.context.spans.get(self.at, 0)
        if end <= self.at:
            raise refused("an expansion that is not closed")
        self._put_opaque(end, "command")

    def _put_opaque(self, end: int, origin: Origin) -> None:
        assert self.word is not None
        self.word.opaque = True
        self.word.comes_from(origin)
        for char in self.script[self.at : end]:
            self.word.add(char, self.at, end, '"')
        self.at = end

    def _dollar(self, quote: Quote) -> None:
        """A variable: its literal value if that is plain text, its words if it stands alone, else an opaque word."""
        assert self.word is not None
        if self.script.startswith("$$", self.at):
            raise refused("$$")
        match = _KUBELET.match(self.script, self.at)
        if match and match[1] in self.context.kubelet:
            self._value(match[1], self.context.kubelet[match[1]], match.end(), quote, kubelet=True)
            return
        name, rest, end = self._reference()
        if name:
            self._variable(name, rest, end, quote)
            return
        following = self.script[self.at + 1 : self.at + 2]
        if following in {"(", "{"} or (following in {"'", '"'} and not quote):
            self._substitution() if following in {"(", "{"} else self._dollar_string(following)
        elif following in {"@", "*", "#", "?", "-", "!"} or following.isdigit():
            self._arguments(following, quote)
        else:
            self.word.add("$", self.at, self.at + 1, quote)
            self.at += 1

    def _dollar_string(self, following: str) -> None:
        raise refused(f"a ${following} string")

    def _arguments(self, following: str, quote: Quote) -> None:
        quoted = quote == '"' and self.script.startswith('"$@"', self.at - 1)
        bare = not quote and self.script[self.at + 2 : self.at + 3] in {"", " ", "\t", "\n", ";"}
        if following != "@" or self.word_text() or not (quoted or bare):
            raise refused(f"arguments out of sight, ${following}", "ArgumentsOutOfSight")
        assert self.word is not None
        for char in ARGUMENTS:
            self.word.add(char, self.at, self.at + 2, quote)
        self.word.opaque = True
        self.at += 2

    def word_text(self) -> str:
        return "".join(self.word.text) if self.word else ""

    def _reference(self) -> tuple[str, str, int]:
        """Name, what follows it inside the braces, and end of the plain reference at `at`; "" if it is none."""
        if match := _BRACED.match(self.script, self.at):
            return match[1], match[2], match.end()
        if match := _NAME.match(self.script, self.at + 1):
            return match[0], "", match.end()
        return "", "", 0

    def _variable(self, name: str, rest: str, end: int, quote: Quote) -> None:
        value = self.context.shell.get(name)
        default = _DEFAULT.fullmatch(rest)
        if default:
            value = value or (default[1] if self.context.defaults(name) else None)
        elif rest:
            value = None
        self._value(name, value, end, quote, kubelet=False)

    def _value(self, name: str, value: str | None, end: int, quote: Quote, *, kubelet: bool) -> None:
        assert self.word is not None
        alone = not quote and not self.word.chars
        flags = alone and value is not None and value.startswith("-")
        if value is None or flags or (_PLAIN.fullmatch(value) is None and (kubelet or not quote)):
            self.word.variable = name if alone else ""
            self.word.split = name if value is not None else ""
            self._put_opaque(end, "variable")
            return
        self.word.comes_from("variable")
        for char in value:
            self.word.add(char, self.at, end, quote)
        self.at = end

    def _end_word(self) -> None:
        if self.word is None:
            return
        word, self.word = self.word, None
        end = self._end(word)
        self.before = self.end = end
        raw = self.script[word.start : end]
        fields = self.context.fields(word.variable) if word.variable else None
        if fields is not None:
            self.words.extend(fields)
            return
        if not word.chars and word.origin == "variable" and not set(raw) & {"'", '"'}:
            return  # an empty variable that stands alone is no word
        if word.split:
            raise refused(f"a variable, {word.split}, whose value the shell would take apart", "ArgumentsOutOfSight")
        text = "".join(word.text)
        self.words.append(
            Word(text, self.where, self.item, raw, word.opaque, word.origin, word.start, end, tuple(word.chars),
                 word.before)
        )  # fmt: skip

    def _end(self, word: _Building) -> int:
        """Where the word ends: before the blanks, the operator or the continued line that `at` has come to."""
        end = self.at
        while end > word.start and self.script.startswith("\\\n", end - 2):
            end -= 2
        return end


def encode(text: str, quote: Quote) -> str:
    """`text` as it must be written inside that quoting."""
    if quote == "'":
        return text.replace("'", "'\\''")
    special = '\\$`"' if quote == '"' else " \t\n\\$`\"'|&;<>()*?[]{}~#"
    return "".join(f"\\{char}" if char in special else char for char in text)
