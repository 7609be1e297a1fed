"""Edits inside one YAML scalar, in its own style, so that every other byte of it stays.

What is not white space stands in a scalar's source in the same order as in its value, whatever the style folds,
indents or escapes. So each such character of the value has a place in the source, and a change between two of them
can be spliced in there. Hazard: nothing here is proved; the caller loads the result and compares.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from trimtab.engine.values import Splice
from trimtab.errors import RewriteRefused

#: how a changed scalar is written: `edit` splices, `requote` writes the scalar anew in quotes where `edit` fails
VARIANTS: Final = ("edit", "requote")
_PROPERTY = re.compile(r"(?:[&!][^\s]*\s+)+")
_WORDS = re.compile(r"\s+|[^\s]+")
#: text that every YAML reader takes for a string without quotes
_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z/])[A-Za-z0-9_./=+@%-]*")
_PLAIN_PART = re.compile(r"[A-Za-z0-9_./=+@% -]*")
_NOT_PLAIN: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_ESCAPED: Final[dict[str, str]] = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "\\": "\\", "/": "/", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_HEX: Final = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Hunk:
    """`value[start:end]` becomes `new`."""

    start: int
    end: int
    new: str


def value_start(text: str, node: yaml.Node) -> int:
    """Where the node's own text begins, behind an anchor or tag."""
    start = int(node.start_mark.index)
    match = _PROPERTY.match(text, start)
    return match.end() if match else start


def scalar_end(text: str, node: yaml.ScalarNode) -> int:
    """Where the scalar's last line ends, without its line break; trailing blank lines count only for `|+` and `>+`."""
    start, end = value_start(text, node), int(node.end_mark.index)
    if node.style not in ("|", ">"):
        return end
    keeps = "+" in text[start : _line_end(text, start)].partition("#")[0]
    body = text[start:end]
    return start + len(re.sub(r"\r?\n\Z", "", body) if keeps else body.rstrip())


def _line_end(text: str, at: int) -> int:
    stop = text.find("\n", at)
    return len(text) if stop < 0 else stop


def quote(value: str, style: str) -> str:
    """The value as a flow scalar; `style` is '"', "'" or "" for plain, which falls back to quotes where it must."""
    if style == "" and _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN:
        return value
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return '"' + _double(value) + '"'


def _double(value: str) -> str:
    out = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" if ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in out)


def scalar_splices(text: str, node: yaml.ScalarNode, new: str, variant: str, newline: str) -> list[Splice]:
    """The edits of `text` that turn the scalar's value into `new`. Raises `RewriteRefused` where none can be told."""
    if variant == "requote":
        if node.style in ("|", ">"):
            raise RewriteRefused("a block scalar cannot hold the new text in its style")
        return [Splice(value_start(text, node), int(node.end_mark.index), quote(new, node.style or '"'))]
    old: str = node.value
    places = _places(text, node)
    hunks = [_between_words(old, h) for h in hunks_of(old, new)]
    indent = _block_indent(text, node) if node.style in ("|", ">") else ""
    return [
        Splice(_place(old, places, h.start), _place(old, places, h.end), _encode(h.new, node.style, newline + indent))
        for h in hunks
    ]


def hunks_of(old: str, new: str) -> list[Hunk]:
    """Smallest changes, found by words first so that two far edits stay two."""
    left, right = _WORDS.findall(old), _WORDS.findall(new)
    starts = [0]
    for word in left:
        starts.append(starts[-1] + len(word))
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    out = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            out.append(_trimmed(old, Hunk(starts[a], starts[b], "".join(right[c:d]))))
    return out


def _trimmed(old: str, hunk: Hunk) -> Hunk:
    """Without the start and end that both texts share."""
    gone = old[hunk.start : hunk.end]
    most = min(len(gone), len(hunk.new))
    head = next((i for i in range(most) if gone[i] != hunk.new[i]), most)
    tail = next((i for i in range(most - head) if gone[-1 - i] != hunk.new[-1 - i]), most - head)
    return Hunk(hunk.start + head, hunk.end - tail, hunk.new[head : len(hunk.new) - tail])


def _between_words(old: str, hunk: Hunk) -> Hunk:
    """Grown until neither end lies inside white space, which has no place of its own in the source."""
    start, end, new = hunk.start, hunk.end, hunk.new
    while 0 < start < len(old) and old[start - 1].isspace() and old[start].isspace():
        start -= 1
        new = old[start] + new
    while 0 < end < len(old) and old[end - 1].isspace() and old[end].isspace():
        new += old[end]
        end += 1
    return Hunk(start, end, new)


def _place(old: str, places: dict[int, tuple[int, int]], at: int) -> int:
    """The source's place of the boundary before `old[at]`."""
    if at > 0 and at - 1 in places:
        return places[at - 1][1]
    if at in places:
        return places[at][0]
    raise RewriteRefused("the change is at the edge of a scalar that has only white space there")


def _places(text: str, node: yaml.ScalarNode) -> dict[int, tuple[int, int]]:
    """Of each character of the value that is no white space: where it is written."""
    start, end = value_start(text, node), int(node.end_mark.index)
    if node.style in ("|", ">"):
        start = _line_end(text, start)
    elif node.style:
        start, end = start + 1, end - 1
    written = _double_quoted(text, start, end) if node.style == '"' else _written(text, start, end, node.style == "'")
    where = [at for at, char in enumerate(node.value) if not char.isspace()]
    spans = [(a, b) for a, b, char in written if not char.isspace()]
    if len(where) != len(spans):
        raise RewriteRefused(f"the text of the scalar in line {node.start_mark.line + 1} could not be followed")
    return dict(zip(where, spans, strict=True))


_Written = Iterator[tuple[int, int, str]]


def _written(text: str, start: int, end: int, single: bool) -> _Written:
    at = start
    while at < end:
        width = 2 if single and text.startswith("''", at) else 1
        yield at, at + width, text[at]
        at += width


def _double_quoted(text: str, start: int, end: int) -> _Written:
    at = start
    while at < end:
        if text[at] != "\\":
            yield at, at + 1, text[at]
            at += 1
            continue
        code = text[at + 1]
        width = 2 + _HEX.get(code, 0)
        if code in _HEX:
            yield at, at + width, chr(int(text[at + 2 : at + width], 16))
        elif code in _ESCAPED:
            yield at, at + width, _ESCAPED[code]
        at += width  # an escaped line break is no character


def _block_indent(text: str, node: yaml.ScalarNode) -> str:
    """The indentation of the block's first line that has text, less what belongs to the value."""
    lines = text[_line_end(text, value_start(text, node)) + 1 : int(node.end_mark.index)].split("\n")
    values: list[str] = node.value.split("\n")
    line = next((x for x in lines if x.strip()), "")
    value = next((x for x in values if x.strip()), "")
    own = len(line) - len(line.lstrip(" "))
    return " " * max(1, own - (len(value) - len(value.lstrip(" "))))


def _encode(new: str, style: Any, line_break: str) -> str:
    if style == '"':
        return _double(new)
    if style == "'":
        return new.replace("'", "''")
    if style == "|":
        return new.replace("\n", line_break)
    if style == ">":  # a single break folds to a space, but not before an indented line
        return re.sub(r"\n(?![ \t])", "\n\n", new).replace("\n", line_break)
    if not _PLAIN_PART.fullmatch(new):  # readers of YAML 1.1 and 1.2 differ about other characters in plain text
        raise RewriteRefused("the new text needs quotes")
    return new
