"""Edits of words, written back into the list or script they came from; every other byte stays.

Hazard: a script's word that holds a variable is never edited, since its text belongs to more than this word.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trimtab.engine.locate import Located
from trimtab.engine.shell import encode
from trimtab.engine.values import Splice
from trimtab.engine.variables import escape
from trimtab.engine.words import Where, Word
from trimtab.errors import RewriteRefused


@dataclass(frozen=True)
class Edits:
    """replacements: by word position, in the word's own text. removals: word positions. appended: new words, in order.

    Each item of `appended` is one flag: its words stay on one line.
    """

    replacements: tuple[tuple[int, Splice], ...] = ()
    removals: tuple[int, ...] = ()
    appended: tuple[tuple[str, ...], ...] = ()

    def plus(self, other: Edits) -> Edits:
        return Edits(
            self.replacements + other.replacements, self.removals + other.removals, self.appended + other.appended
        )

    def __bool__(self) -> bool:
        return bool(self.replacements or self.removals or self.appended)


def apply_to_container(located: Located, edits: Edits) -> dict[str, Any]:
    """A copy of the container (its lists copied) with the edits made."""
    container = dict(located.container)
    if located.shape == "shell":
        where, item = located.words[0].where, located.words[0].item
        items = list(container[where])
        items[item] = _edit_script(items[item], located.words, edits)
        container[where] = items
        return container
    lists: dict[Where, list[str]] = {
        "command": list(container.get("command") or ()),
        "args": list(container.get("args") or ()),
    }
    _edit_lists(lists, located.words, located.where, edits)
    for name, items in lists.items():
        if items:
            container[name] = items
        elif container.get(name):
            del container[name]
    return container


def _edit_lists(lists: Mapping[Where, list[str]], words: Sequence[Word], appending_to: Where, edits: Edits) -> None:
    for position, splice in edits.replacements:
        word = words[position]
        text = splice.apply(word.text)
        lists[word.where][word.item] = escape(text) if word.expanded else text
    for flag in edits.appended:
        lists[appending_to].extend(flag)
    for position in sorted(edits.removals, reverse=True):
        word = words[position]
        del lists[word.where][word.item]


def _edit_script(script: str, words: Sequence[Word], edits: Edits) -> str:
    changes = [_script_replacement(words[position], splice) for position, splice in edits.replacements]
    changes += [Splice(words[p - 1].end, words[p].end, "") for p in edits.removals]
    gap = _gap(script, words)
    added = "".join(gap + " ".join(shlex.quote(word) for word in flag) for flag in edits.appended)
    end = words[-1].end
    edited = script[:end]
    for change in sorted(changes, key=lambda c: c.start, reverse=True):
        edited = change.apply(edited)
    return edited + added + script[end:]


def _script_replacement(word: Word, splice: Splice) -> Splice:
    """The word's edit in the script's own places and quoting."""
    if word.expanded or word.opaque:
        raise RewriteRefused(
            "the word to be edited in the container's script holds a variable",
            hint="Write the value itself into the script, or use mode Recommend.",
        )
    touched = word.chars[splice.start : splice.end] or word.chars[splice.start - 1 : splice.start]
    if not touched or len({char.quote for char in touched}) != 1:
        return Splice(word.start, word.end, shlex.quote(splice.apply(word.text)))
    new = encode(splice.new, touched[0].quote)
    if splice.start == splice.end:
        return Splice(touched[-1].end, touched[-1].end, new)
    return Splice(touched[0].start, touched[-1].end, new)


def _gap(script: str, words: Sequence[Word]) -> str:
    """What to write before a new flag: a line of its own where the script has continued lines."""
    gaps = [script[left.end : right.start] for left, right in pairwise(words)]
    return next((gap for gap in reversed(gaps) if "\\\n" in gap), " ")
