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
            scan(kept[:at], first, version)
        except RewriteRefused as refusal:
            word = kept.pop(at - 1)
            parts = _GLUED.fullmatch(word.text) if not (word.in_script or word.opaque) else None
            aside.append(SetAside(word, refusal, glued=parts is not None))
            if parts is not None:
                kept[at - 1 : at - 1] = [replace(word, text=text, raw=text) for text in parts.groups()]
        else:
            at += 1
    return View(tuple(kept), scan(kept, first, version), tuple(aside))


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
