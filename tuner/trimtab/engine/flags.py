"""Words to flags, the way vLLM's parser reads them.

Dashes or underscores, `=` or the next word, unambiguous prefixes, `--no-x`, `--x.key value`; the last one wins.
Source: vLLM 0.32 `FlexibleArgumentParser.parse_args` and argparse.
Hazard: flag and value glued into one list item ("--port 80") stop vLLM; they are refused, not repaired.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from trimtab.engine.flag_table import ALIASES, KINDS, REMOVED, REPEATABLE, SECRETS, Kind
from trimtab.engine.settings import SETTINGS
from trimtab.engine.words import Word
from trimtab.errors import RewriteRefused

_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_FLAG = re.compile(r"--[A-Za-z]")


@dataclass(frozen=True)
class Flag:
    """One flag as given.

    name: full name with dashes (`--max-num-seqs`); for `--no-x` the name is `--x` and `negated` is set.
    spelling: as written, without the value. path: the keys behind the dot of `--x.key`.
    value: the first value's text; None if there is none, if it is opaque, or if it is a secret.
    position: word index in the command line; `value_positions` those of its values (the flag's own if joined by `=`).
    wins: no later one replaces it.
    """

    name: str
    spelling: str
    value: str | None
    position: int
    wins: bool = True
    negated: bool = False
    path: str = ""
    joined: bool = False
    opaque: bool = False
    value_positions: tuple[int, ...] = ()
    kind: Kind = field(default="unknown", repr=False)


@dataclass(frozen=True)
class Scan:
    """Flags and the positions of words that are no flag and no flag's value (the model)."""

    flags: tuple[Flag, ...]
    positionals: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    name: str
    kind: Kind
    negated: bool = False
    path: str = ""


def resolve(spelling: str) -> _Name:
    """The flag that `spelling` means. Unknown ones keep their spelling with dashes.

    Raises `RewriteRefused` for a prefix that could mean a setting or another flag: which one depends on the version.
    """
    if not spelling.startswith("--"):
        name = ALIASES.get(spelling, "--optimization-level" if spelling.startswith("-O") else spelling)
        return _Name(name, KINDS.get(name, "unknown"))
    head, dot, path = spelling.partition(".")
    head = ALIASES.get(dashed := "--" + head[2:].replace("_", "-"), dashed)
    if head in KINDS:
        return _Name(head, "one" if dot else KINDS[head], path=path)
    if head in REMOVED:
        return _Name(head, REMOVED[head], path=path)
    if head.startswith("--no-") and KINDS.get(positive := "--" + head[5:]) == "boolean":
        return _Name(positive, "boolean", negated=True)
    return _by_prefix(head, path)


@lru_cache(maxsize=1024)
def _by_prefix(head: str, path: str) -> _Name:
    spelled = [(name, _Name(name, kind, path=path)) for name, kind in KINDS.items()]
    spelled += [("--no-" + n[2:], _Name(n, k, negated=True)) for n, k in KINDS.items() if k == "boolean"]
    spelled += [(alias, _Name(name, KINDS[name], path=path)) for alias, name in ALIASES.items()]
    meant = [found for full, found in spelled if full.startswith(head)]
    if len(meant) == 1:
        return replace(meant[0], kind="one") if path else meant[0]
    for setting in SETTINGS.values():
        if any(found.name == setting.flag for found in meant):
            raise RewriteRefused(
                f"{head} can mean {setting.flag} or another flag, depending on the vLLM version",
                hint=f"Write the flag in full, for example {setting.flag}.",
            )
    return _Name(head, "unknown", path=path)


def scan(words: Sequence[Word], start: int) -> Scan:
    """The flags in `words[start:]`; raises `RewriteRefused` where flags are out of sight."""
    flags: list[Flag] = []
    positionals: list[int] = []
    at = start
    while at < len(words):
        word = words[at]
        if _is_flag(word):
            flag = _read_flag(words, at)
            flags.append(flag)
            at = max((at, *flag.value_positions)) + 1
            continue
        _check_positional(word, first=not positionals)
        positionals.append(at)
        at += 1
    return Scan(_mark_winners(flags), tuple(positionals))


def _is_flag(word: Word) -> bool:
    text = word.text
    if word.opaque and not _FLAG.match(word.raw.lstrip("'\"")):
        return False
    return len(text) > 1 and text[0] == "-" and not _NEGATIVE_NUMBER.match(text)


def _check_positional(word: Word, *, first: bool) -> None:
    if word.text == "--":
        raise RewriteRefused("the command line has a bare --, behind which no flag can be added")
    if not word.opaque:
        return
    bare = word.raw.strip("\"'")
    if not first or re.search(r"ARG|OPT|FLAG|EXTRA|PARAM", bare, re.IGNORECASE):
        raise RewriteRefused(
            "flags are out of sight in a variable whose value is not in the pod template",
            hint="Write the flags into args, or use mode Recommend.",
        )


def _read_flag(words: Sequence[Word], at: int) -> Flag:
    word = words[at]
    spelling, equals, value = word.text.partition("=")
    if word.text == "--":
        raise RewriteRefused("the command line has a bare --, behind which no flag can be added")
    if not word.in_script and re.search(r"\s", spelling):
        first = spelling.split()[0] if spelling.split()[0].startswith("-") else "a flag"
        raise RewriteRefused(
            f"{word.where}[{word.item}] holds {first} and its value in one list item, which vLLM does not read",
            hint="Write flag and value as two list items, or join them with =.",
        )
    if word.opaque and not equals:
        raise RewriteRefused(f"{word.where}[{word.item}] is a flag whose name comes from a variable out of sight")
    known = resolve(spelling)
    secret = known.name in SECRETS
    if equals:
        positions: tuple[int, ...] = (at,)
        opaque = word.opaque
    else:
        positions = _values(words, at + 1, known)
        opaque = bool(positions) and words[positions[0]].opaque
        value = words[positions[0]].text if positions else ""
    hidden = secret or opaque or not positions
    return Flag(
        known.name, spelling, None if hidden else value, at, True, known.negated, known.path, bool(equals), opaque,
        positions, known.kind,
    )  # fmt: skip


def _values(words: Sequence[Word], at: int, known: _Name) -> tuple[int, ...]:
    if known.kind in {"boolean", "switch"} or (not known.name.startswith("--") and known.kind == "unknown"):
        return ()
    if known.name == "--optimization-level" and known.kind == "unknown":
        return ()
    if known.path:
        # vLLM takes whatever follows a dotted key, even another flag.
        return (at,) if at < len(words) else ()
    stop = at
    while stop < len(words) and not _is_flag(words[stop]) and words[stop].text != "--":
        stop += 1
        if known.kind != "many":
            break
    return tuple(range(at, stop))


def _mark_winners(flags: list[Flag]) -> tuple[Flag, ...]:
    """The last wins; a dotted `--x.key` replaces every `--x`, and only an equal key replaces it."""
    last: dict[tuple[str, str], int] = {}
    dotted = {flag.name for flag in flags if flag.path}
    for index, flag in enumerate(flags):
        last[flag.name, flag.path] = index
    return tuple(
        replace(
            flag,
            wins=flag.name in REPEATABLE
            or (last[flag.name, flag.path] == index and (bool(flag.path) or flag.name not in dotted)),
        )
        for index, flag in enumerate(flags)
    )
