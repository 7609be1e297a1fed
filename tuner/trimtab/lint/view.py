"""A command line as far as it can be read: flags that Trimtab would refuse to edit are set aside with the reason,
the rest is kept.

Source of each reason: engine/flags.py, which is asked again after each word that it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimtab.engine.command import EngineCommand, describe
from trimtab.engine.flags import Flag, Scan, scan
from trimtab.engine.locate import Located
from trimtab.engine.words import Word
from trimtab.errors import EngineError, RewriteRefused

_GLUED = re.compile(r"(--?[A-Za-z][\w.-]*)\s+(\S.*)", re.DOTALL)


@dataclass(frozen=True)
class SetAside:
    """A word that is no flag as written, and why. glued: flag and value in one list item."""

    word: Word
    refusal: RewriteRefused
    glued: bool = False


@dataclass(frozen=True)
class View:
    """words: the command line without the set-aside words; glued ones are split in two, so that the value can be
    judged."""

    words: tuple[Word, ...]
    scanned: Scan
    aside: tuple[SetAside, ...]


def view(words: Sequence[Word], first: int, version: str | None) -> View:
    """Reads word by word as that vLLM version does; the first word that makes `scan` refuse is the one at fault."""
    kept = list(words)
    aside: list[SetAside] = []
    at = first + 1
    while at <= len(kept):
        try:
            _refuse_quoted_pair(kept[at - 1])
            scan(kept[:at], first, version)
        except RewriteRefused as refusal:
            word = kept.pop(at - 1)
            parts = None if word.opaque else _GLUED.fullmatch(word.text)
            aside.append(SetAside(word, refusal, glued=parts is not None))
            if parts is not None:
                kept[at - 1 : at - 1] = [replace(word, text=text, raw=text) for text in parts.groups()]
        else:
            at += 1
    scanned = scan(kept, first, version)
    return View(tuple(kept), replace(scanned, flags=tuple(_plain(f) for f in scanned.flags)), tuple(aside))


def plain_name(text: str) -> str:
    """A flag's name without what cannot be one, which may be a value, and a secret one."""
    found = re.match(r"[\w.-]*", text)
    return found[0] if found else ""


def _plain(flag: Flag) -> Flag:
    if flag.kind != "unknown":
        return flag
    return replace(flag, name=plain_name(flag.name), spelling=plain_name(flag.spelling), path=plain_name(flag.path))


def _refuse_quoted_pair(word: Word) -> None:
    """In a script, too, quotes can make one word of flag and value."""
    if word.in_script and not word.opaque and _GLUED.fullmatch(word.text):
        raise RewriteRefused(f"a word of {word.where}[{word.item}] holds a flag and its value")


def tolerant_command(located: Located, seen: View) -> EngineCommand | None:
    """The record of what can be read; None if even the port cannot."""
    try:
        return describe(replace(located, words=seen.words), seen.scanned)
    except EngineError:
        return None


def value_texts(seen: View, flag: Flag) -> list[str]:
    """The flag's values as the process gets them. Hazard: also those of secret flags."""
    if flag.joined:
        return [seen.words[flag.position].text.partition("=")[2]]
    return [seen.words[p].text for p in flag.value_positions]
