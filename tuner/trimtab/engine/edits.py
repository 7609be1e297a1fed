"""Edits of words, written back into the list, script or variable they came from; every other byte stays.

Hazard: a word that holds a variable is replaced at the reference, never inside what it stands for.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.engine.locate import Located, Place
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
    """A copy of the container (what is edited of it copied) with the edits made."""
    container = dict(located.container)
    _refuse_untouchable(located.words, edits)
    _edit_texts(container, located, edits)
    lists: dict[Where, list[str]] = {
        "command": list(container.get("command") or ()),
        "args": list(container.get("args") or ()),
    }
    _edit_lists(lists, located, edits)
    for name, items in lists.items():
        if items:
            container[name] = items
        elif container.get(name):
            del container[name]
    return container


def _refuse_untouchable(words: Sequence[Word], edits: Edits) -> None:
    for position in {*edits.removals, *(p for p, _ in edits.replacements)}:
        word = words[position]
        if word.where == "file":
            raise RewriteRefused(
                "the flag stands in a mounted file, which other pods read too",
                hint="Change it in its ConfigMap, or set a value: a flag on the command line wins over the file.",
                code="FlagInFile",
            )
        if word.shared:
            raise RewriteRefused(
                "the flag stands in a variable that is used more than once",
                hint="Write the flag into args, or change the variable by hand.",
                code="SharedVariable",
            )


def _edit_lists(lists: Mapping[Where, list[str]], located: Located, edits: Edits) -> None:
    words = located.words
    for position, splice in edits.replacements:
        word = words[position]
        if word.in_script:
            continue
        _refuse_command(word)
        text = splice.apply(word.text)
        lists[word.where][word.item] = escape(text) if word.expanded and not word.opaque else text
    if located.append is None:
        for flag in edits.appended:
            lists[located.where].extend(escape(item) for item in flag)
    for position in sorted(edits.removals, reverse=True):
        if not words[position].in_script:
            del lists[words[position].where][words[position].item]


def _edit_texts(container: dict[str, Any], located: Located, edits: Edits) -> None:
    """Splices in scripts and variables, grouped by the text they belong to, applied from the end."""
    words = located.words
    splices: dict[tuple[Where, int], list[Splice]] = defaultdict(list)
    for position, splice in edits.replacements:
        if words[position].in_script:
            splices[words[position].where, words[position].item].append(_text_splice(words[position], splice))
    for position in edits.removals:
        if words[position].in_script:
            word = words[position]
            splices[word.where, word.item].append(_removal(word, position, edits, words))
    if located.append is not None and edits.appended:
        place = located.append
        gap = _gap(_text_of(container, place.where, place.item), place, words)
        added = "".join(gap + " ".join(shlex.quote(word) for word in flag) for flag in edits.appended)
        splices[place.where, place.item].append(Splice(place.end, place.end, added))
    for (where, item), changes in splices.items():
        text = _text_of(container, where, item)
        # at one place the later word is dealt with first, so that what is added stays behind what is removed
        for change in sorted(changes, key=lambda c: (c.start, c.end), reverse=True):
            text = change.apply(text)
        _put_text(container, where, item, text)


def _removal(word: Word, position: int, edits: Edits, words: Sequence[Word]) -> Splice:
    """The word and the blanks before it; the first word of a variable takes the blanks behind it."""
    following = words[position + 1] if position + 1 < len(words) else None
    if word.where == "env" and word.before == 0 and word.start == 0 and following and following.where == "env":
        return Splice(word.start, following.start, "")
    return Splice(word.before, word.end, "")


def _text_of(container: Mapping[str, Any], where: Where, item: int) -> str:
    return str(container["env"][item]["value"] if where == "env" else container[where][item])


def _put_text(container: dict[str, Any], where: Where, item: int, text: str) -> None:
    items = list(container[where])
    items[item] = {**items[item], "value": text} if where == "env" else text
    container[where] = items


def _refuse_command(word: Word) -> None:
    if word.origin == "command":
        raise RewriteRefused(
            "the flag's value is made by a command in the script",
            hint="Write the value itself into the script, or use mode Recommend.",
            code="ShellSubstitution",
        )


def _text_splice(word: Word, splice: Splice) -> Splice:
    """The word's edit in the text's own places and quoting."""
    _refuse_command(word)
    if word.where == "env":
        return Splice(word.start + splice.start, word.start + splice.end, _unquoted(splice.new))
    touched = word.chars[splice.start : splice.end] or word.chars[splice.start - 1 : splice.start]
    around = (*word.chars[: splice.start][-1:], *word.chars[splice.end :][:1])
    if any(c.start in {t.start for t in touched} for c in around if splice.start < splice.end):
        raise RewriteRefused(
            "the value is only a part of a variable",
            hint="Write the value itself into the script, or use mode Recommend.",
            code="PartOfVariable",
        )
    if not touched or len({char.quote for char in touched}) != 1:
        if word.expanded:
            return _whole(word, splice)
        return Splice(word.start, word.end, shlex.quote(splice.apply(word.text)))
    new = encode(splice.new, touched[0].quote)
    if splice.start == splice.end:
        return Splice(touched[-1].end, touched[-1].end, new)
    return Splice(touched[0].start, touched[-1].end, new)


def _whole(word: Word, splice: Splice) -> Splice:
    """The word anew, which is possible only if all of what it holds is known and replaced."""
    if splice.start == 0 and splice.end == len(word.text):
        return Splice(word.start, word.end, shlex.quote(splice.new))
    raise RewriteRefused(
        "the word to be edited in the container's script holds a variable",
        hint="Write the value itself into the script, or use mode Recommend.",
        code="PartOfVariable",
    )


def _unquoted(new: str) -> str:
    if shlex.quote(new) != new:
        raise RewriteRefused(
            "the new value needs quotes, which a variable's value cannot have",
            hint="Move the flags from the variable into args.",
            code="SharedVariable",
        )
    return new


def _gap(text: str, place: Place, words: Sequence[Word]) -> str:
    """What to write before a new flag: a line of its own where the script has continued lines."""
    own = [word for word in words if word.in_script and (word.where, word.item) == (place.where, place.item)]
    gaps = [text[word.before : word.start] for word in own]
    return next((gap for gap in reversed(gaps) if "\\\n" in gap and not gap.strip(" \t\\\n")), " ")
