"""Words to flags, the way vLLM's parser reads them.

Dashes or underscores, `=` or the next word, unambiguous prefixes, `--no-x`, `--x.key value`; the last one wins.
Source: vLLM 0.32 `FlexibleArgumentParser.parse_args` and argparse.
Hazard: flag and value glued into one list item ("--port 80") stop vLLM; they are refused, not repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, cast

from trimtab.engine.flag_table import HISTORY, NEWEST, REPEATABLE, SECRETS, VERSIONS, Kind, aliases, kinds
from trimtab.engine.settings import SETTINGS
from trimtab.engine.tunables import violations
from trimtab.engine.values import KEY, read_value
from trimtab.engine.versions import parse
from trimtab.engine.words import Word
from trimtab.errors import RewriteRefused

_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_NEGATIVE_DECIMAL = re.compile(r"-\d*\.")
_FLAG = re.compile(r"--[A-Za-z]")
_BY_FLAG: Final = {s.flag: s for s in SETTINGS.values()}
#: flags whose value is no JSON object
_UNDOTTED: Final = frozenset(s.flag for s in SETTINGS.values()) - {"--override-generation-config"}


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
    kind: Kind = "unknown"
    negated: bool = False
    path: str = ""


def resolve(spelling: str, version: str | None = None) -> _Name:
    """The flag that `spelling` means in a vLLM version. Unknown ones keep their spelling with dashes.

    Without a version it is the newest one's flag; a flag of older versions is known by its full name.
    Raises `RewriteRefused` for a prefix that could mean a setting or another flag, and for a dotted key of a setting
    that takes none: vLLM does not start with it.
    """
    known, other = kinds(version), aliases(version)
    head, dot, path = spelling.partition(".")
    if not spelling.startswith("--"):
        if spelling.startswith("-O") and spelling != "-O":
            return _Name("--optimization-level", "switch")
        name = other.get(head, "--optimization-level" if spelling == "-O" else spelling)
        return _Name(name, "one", path=path) if dot and head in other else _Name(name, known.get(name, "unknown"))
    head = other.get(dashed := "--" + head[2:].replace("_", "-"), dashed)
    if head in known:
        found = _Name(head, known[head])
    elif head.startswith("--no-") and known.get(positive := "--" + head[5:]) == "boolean":
        found = _Name(positive, "boolean", negated=True)
    else:
        found = _by_prefix(head, version)
    if not dot:
        return found
    if found.name in _UNDOTTED:
        raise RewriteRefused(f"{spelling} is a key of {found.name}, which takes one value", code="FlagNotReadable")
    if not path or (path != KEY and re.match(rf"{KEY}[.+]", path)):
        raise RewriteRefused(
            f"{spelling} makes {path or 'the empty key'} something else than a number", code="FlagNotReadable"
        )
    return replace(found, kind="one", path=path)


@lru_cache(maxsize=1024)
def _by_prefix(head: str, version: str | None) -> _Name:
    if parse(version):
        meant = _starting(head, version or "")
        everywhere = meant
    elif head in HISTORY:
        return _Name(head, _last_kind(head))
    else:
        meant = _starting(head, NEWEST)
        everywhere = {name for v in VERSIONS for name in _starting(head, v)}
    setting = next((s for s in SETTINGS.values() if s.flag in {name.name for name in everywhere}), None)
    if setting is not None and len(everywhere) > 1:
        raise RewriteRefused(
            f"{head} can mean {setting.flag} or another flag, depending on the vLLM version",
            hint=f"Write the flag in full, for example {setting.flag}.",
            code="AmbiguousFlag",
        )
    if len(meant) == 1:
        (only,) = meant
        return replace(only, kind=kinds(version)[only.name])
    return _Name(head, _last_kind(head))


def _last_kind(name: str) -> Kind:
    """The kind that a flag of other versions has there."""
    if name.startswith("--no-") and "--" + name[5:] in HISTORY:
        return "switch"
    return cast(Kind, HISTORY[name][-1].what) if name in HISTORY else "unknown"


def _starting(head: str, version: str) -> set[_Name]:
    """What `head` can mean in `version`: its own flag, or every flag that it begins."""
    spelled = _spellings(version)
    return {spelled[head]} if head in spelled else {name for full, name in spelled.items() if full.startswith(head)}


@lru_cache(maxsize=128)
def _spellings(version: str | None) -> Mapping[str, _Name]:
    """Every long spelling of a version's flags, `--no-x` and aliases among them; kinds are left out."""
    known = kinds(version)
    return (
        {name: _Name(name) for name in known}
        | {"--no-" + n[2:]: _Name(n, negated=True) for n, kind in known.items() if kind == "boolean"}
        | {alias: _Name(name) for alias, name in aliases(version).items() if alias.startswith("--")}
    )


def scan(words: Sequence[Word], start: int, version: str | None = None) -> Scan:
    """The flags in `words[start:]`, as that vLLM version reads them; raises `RewriteRefused` where flags are out of
    sight."""
    flags: list[Flag] = []
    positionals: list[int] = []
    at = start
    while at < len(words):
        word = words[at]
        if _is_flag(word):
            flag = _read_flag(words, at, version)
            flags.append(flag)
            at = max((at, *flag.value_positions)) + 1
            continue
        _check_positional(word, first=not positionals)
        positionals.append(at)
        at += 1
    _check_dotted(flags)
    return Scan(_mark_winners(flags), tuple(positionals))


def _check_dotted(flags: Sequence[Flag]) -> None:
    """vLLM gathers dotted keys by the flag as it is spelt, and of two spellings only the last counts."""
    heads: dict[str, str] = {}
    for flag in flags:
        if flag.path and flag.name in _BY_FLAG:
            head = flag.spelling.partition(".")[0].replace("_", "-")
            if heads.setdefault(flag.name, head) != head:
                raise RewriteRefused(
                    f"keys of {flag.name} stand behind two spellings, of which vLLM keeps one",
                    hint=f"Spell it {flag.name} everywhere.",
                    code="FlagNotReadable",
                )


def _is_flag(word: Word) -> bool:
    text = word.text
    if word.opaque and not _FLAG.match(word.raw.lstrip("'\"")):
        return False
    return len(text) > 1 and text[0] == "-" and not _NEGATIVE_NUMBER.match(text)


def _check_dot(word: Word) -> None:
    if _NEGATIVE_DECIMAL.match(word.text):
        raise RewriteRefused(
            f"vLLM reads {word.text} as a key with a dot and takes the next word as its value", code="FlagNotReadable"
        )


def _bare_dashes() -> RewriteRefused:
    return RewriteRefused(
        "the command line has a bare --, behind which no flag can be added",
        hint="Leave the -- out: vLLM needs none.",
        code="FlagNotReadable",
    )


def _check_positional(word: Word, *, first: bool) -> None:
    _check_dot(word)
    if word.text == "--":
        raise _bare_dashes()
    if not word.opaque:
        return
    bare = word.raw.strip("\"'")
    if not first or re.search(r"ARG|OPT|FLAG|EXTRA|PARAM", bare, re.IGNORECASE):
        raise RewriteRefused(
            "flags are out of sight in a variable whose value is not in the pod template",
            hint="Write the flags into args, or use mode Recommend.",
            code="ArgumentsOutOfSight",
        )


def _read_flag(words: Sequence[Word], at: int, version: str | None) -> Flag:
    word = words[at]
    spelling, equals, value = word.text.partition("=")
    if word.text == "--":
        raise _bare_dashes()
    if not word.in_script and re.search(r"\s", spelling):
        first = spelling.split()[0] if spelling.split()[0].startswith("-") else "a flag"
        raise RewriteRefused(
            f"{word.where}[{word.item}] holds {first} and its value in one list item, which vLLM does not read",
            hint="Write flag and value as two list items, or join them with =.",
            code="FlagAndValueGlued",
        )
    if word.opaque and not equals:
        raise RewriteRefused(
            f"{word.where}[{word.item}] is a flag whose name comes from a variable out of sight",
            code="ArgumentsOutOfSight",
        )
    known = resolve(spelling, version)
    secret = known.name in SECRETS
    if equals:
        positions: tuple[int, ...] = (at,)
        opaque = word.opaque
    else:
        positions = _values(words, at + 1, known, version)
        opaque = bool(positions) and words[positions[0]].opaque
        value = words[positions[0]].text if positions else ""
    hidden = secret or opaque or not positions
    return Flag(
        known.name, spelling, None if hidden else value, at, True, known.negated, known.path, bool(equals), opaque,
        positions, known.kind,
    )  # fmt: skip


def _values(words: Sequence[Word], at: int, known: _Name, version: str | None) -> tuple[int, ...]:
    if known.kind == "boolean" and not known.negated and not parse(version) and _took_a_value(known.name):
        # `--enable-chunked-prefill False`: off in old versions, on and a stray word in new ones
        return (at,) if at < len(words) and words[at].text.lower() in {"true", "false"} else ()
    if known.kind in {"boolean", "switch"} or (not known.name.startswith("--") and known.kind == "unknown"):
        return ()
    if known.path:
        # vLLM takes whatever follows a dotted key, even another flag.
        return (at,) if at < len(words) else ()
    stop = at
    while stop < len(words) and not _is_flag(words[stop]) and words[stop].text != "--":
        _check_dot(words[stop])
        stop += 1
        if known.kind != "many":
            break
    return tuple(range(at, stop))


def objections(scanned: Scan, version: str) -> tuple[str, ...]:
    """Why that vLLM version would not start with these flags; empty if nothing is known against them.

    What is looked at: names, missing or superfluous values, and the values of settings. Values are never shown.
    """
    found = [text for flag in scanned.flags if (text := _objection(flag, version))]
    return (*found, *(["more than one word stands alone"] if len(scanned.positionals) > 1 else []))


def _objection(flag: Flag, version: str) -> str:
    kind = kinds(version).get(flag.name)
    if kind is None:
        return f"vLLM {version} has no {flag.spelling}"
    if flag.name == "--help":
        return "--help prints a text and ends"
    if flag.spelling == "-O" and not aliases(version).get("-O") and flag.value not in {"0", "1", "2", "3"}:
        return "-O has a value that vLLM does not read"
    if flag.path:
        return "" if flag.value_positions else f"{flag.spelling} has no value"
    if flag.kind in {"boolean", "switch"} and flag.joined and not flag.spelling.startswith("-O"):
        return f"{flag.spelling} takes no value"
    if flag.kind in {"one", "many"} and not flag.value_positions:
        return f"{flag.spelling} has no value"
    setting = _BY_FLAG.get(flag.name)
    if setting is None or flag.value is None:
        return ""
    try:
        if setting.name == KEY:
            json.loads(flag.value)
        elif flag.value_positions and setting.kind != "boolean":
            return next((v.problem for v in violations({setting.name: read_value(setting, flag.value)}, version)), "")
    except (ValueError, RecursionError):
        return f"{flag.spelling} has a value that vLLM does not read"
    return ""


def _took_a_value(name: str) -> bool:
    return any(era.what == "optional" for era in HISTORY.get(name, ()))


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
