"""Change settings in a pod template: the smallest edit, in the spelling found, read back before it is trusted.

In: a template and changes by setting name (None removes). Out: a new template; the one given is never touched.
What is promised: applying twice is applying once; the inverse changes restore the template byte for byte where a
setting had a readable literal value or was absent. A removed flag that is set again goes to the end, and a value that
came from `$(NAME)` comes back as its literal: to roll back exactly, keep the template found (the trial does).
Hazard: vLLM takes the last of several spellings, so the last one is edited and all of them are removed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from trimtab.engine.command import (
    describe,
    generation_members,
    generation_rest,
    scan_command,
    setting_value,
    winner,
)
from trimtab.engine.constraints import check_configuration
from trimtab.engine.edits import Edits, apply_to_container
from trimtab.engine.flags import Flag, Scan
from trimtab.engine.image_version import ENGINE_VERSION
from trimtab.engine.locate import Files, Located, locate
from trimtab.engine.settings import SEARCHED, SETTINGS, Configuration, Value
from trimtab.engine.tunables import gate
from trimtab.engine.values import KEY, Splice, drop_tokens, set_tokens
from trimtab.errors import RewriteRefused


def rewrite(
    template: Mapping[str, Any],
    changes: Mapping[str, Value | None],
    container: str | None = None,
    files: Files | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    """A copy of `template` in which exactly `changes` differ.

    files: see `parse_template`. version: vLLM's, where the caller knows it better than the template says it.
    Raises `InputError` for an unknown setting, a value out of range or settings that exclude each other;
    `EngineNotFound`; `RewriteRefused` where the command line cannot be edited safely.
    """
    Configuration.of(changes)
    located = locate(template, container, files)
    scanned = scan_command(located, version)
    before = describe(located, scanned)
    if before.multi_node:
        raise RewriteRefused(
            "several pods or nodes make one engine, so one pod cannot be changed alone",
            hint="Change all of its pods together in their own source; Trimtab tunes engines of one pod.",
            code="MultiNode",
        )
    for name, value in changes.items():
        _check_version(name, value, version or before.version)
    kept = {n: v for n, v in before.in_sight().items() if n not in changes}
    needed = before.configuration(set(SEARCHED) - set(changes))
    wanted = Configuration.of({**kept, **needed, **changes})
    check_configuration(wanted, version or before.version)
    edits = Edits()
    for name, value in sorted(changes.items()):
        if not _is_set(scanned, name, value):
            edits = edits.plus(_edits(located, scanned, name, value))
    written = copy.deepcopy(dict(template))
    written["spec"][located.group][located.index] = copy.deepcopy(apply_to_container(located, edits))
    _verify(written, located, scanned, set(changes), wanted, files, version)
    return written


def _check_version(name: str, value: Value | None, version: str | None) -> None:
    reason = gate(name, version, value) if value is not None else ""
    if reason:
        raise RewriteRefused(
            reason,
            hint=f"Upgrade vLLM; or, if the version is wrong or unknown, say it by the pod label {ENGINE_VERSION}.",
            code="VersionGated",
        )


def _is_set(scanned: Scan, name: str, value: Value | None) -> bool:
    """Whether nothing is to be done. A value from a variable out of sight is not known to be right."""
    try:
        return setting_value(scanned.flags, name) == value
    except RewriteRefused:
        if name == KEY or value is None or not _replaceable(scanned, name):
            raise
        return False


def _replaceable(scanned: Scan, name: str) -> bool:
    found = winner(scanned.flags, SETTINGS[name].flag)
    return found is not None and found.opaque and not found.path and SETTINGS[name].kind != "boolean"


def _edits(located: Located, scanned: Scan, name: str, value: Value | None) -> Edits:
    if name == KEY:
        return _generation_edits(located, scanned, value)
    flag = SETTINGS[name].flag
    found = winner(scanned.flags, flag)
    if value is None:
        return _removal(f for f in scanned.flags if f.name == flag)
    if isinstance(value, bool):
        return _boolean_edit(located, scanned, flag, found, value)
    if found is None or located.words[found.value_positions[0]].where == "file":
        return Edits(appended=(_spelled(scanned, flag, _text(value)),))
    return _value_edit(found, Splice(0, _value_length(located, found), _text(value)))


def _text(value: Value) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _value_length(located: Located, flag: Flag) -> int:
    """Characters of the value in its word, a reference to a variable being as long as it is written."""
    text = located.words[flag.value_positions[0]].text
    return len(text) - (len(flag.spelling) + 1 if flag.joined else 0)


def _removal(flags: Any) -> Edits:
    positions = {p for f in flags for p in (f.position, *f.value_positions)}
    return Edits(removals=tuple(sorted(positions)))


def _value_edit(flag: Flag, splice: Splice) -> Edits:
    """The splice, given in the value's text, in the text of the word that holds it."""
    offset = len(flag.spelling) + 1 if flag.joined else 0
    return Edits(
        replacements=((flag.value_positions[0], Splice(splice.start + offset, splice.end + offset, splice.new)),)
    )


def _boolean_edit(located: Located, scanned: Scan, flag: str, found: Flag | None, value: bool) -> Edits:
    if found is None or located.words[found.position].where == "file":
        word = flag if value else f"--no-{flag[2:]}"
        return Edits(appended=((word.replace("_", "-") if not _underscores(scanned) else _underscored(word),),))
    if value:
        return Edits(replacements=((found.position, Splice(0, len("--no-"), "--")),))
    no = "--no_" if "_" in found.spelling and "-" not in found.spelling[2:] else "--no-"
    return Edits(replacements=((found.position, Splice(0, 2, no)),))


def _generation_edits(located: Located, scanned: Scan, value: Value | None) -> Edits:
    flag = SETTINGS[KEY].flag
    dotted = [f for f in scanned.flags if f.name == flag and f.path]
    own = winner(scanned.flags, flag, KEY)
    if own is not None:
        if value is None:
            return _removal(f for f in dotted if f.path == KEY)
        return _value_edit(own, Splice(0, len(own.value or ""), str(value)))
    if dotted:
        return Edits(appended=(_spelled(scanned, f"{flag}.{KEY}", str(value)),))
    found = winner(scanned.flags, flag)
    if found is None:  # without a space: the word stays one where a script passes it on unquoted
        return Edits(appended=(_spelled(scanned, flag, f'{{"{KEY}":{value}}}'),))
    generation_members(found)
    text = found.value or ""
    splice = drop_tokens(text) if value is None else set_tokens(text, int(value))
    return _removal([found]) if splice is None else _value_edit(found, splice)


def _spelled(scanned: Scan, flag: str, value: str) -> tuple[str, ...]:
    """A new flag in the style in use: `=` if any flag has it, underscores if all have them."""
    head, dot, path = flag.partition(".")
    name = (_underscored(head) if _underscores(scanned) else head) + dot + path
    return (f"{name}={value}",) if any(f.joined for f in scanned.flags) else (name, value)


def _underscored(flag: str) -> str:
    return "--" + flag[2:].replace("-", "_")


def _underscores(scanned: Scan) -> bool:
    bodies = [f.spelling[2:].partition(".")[0] for f in scanned.flags if f.spelling.startswith("--")]
    return any("_" in body for body in bodies) and not any("-" in body for body in bodies)


def _residue(located: Located, scanned: Scan, changed: set[str]) -> tuple[object, ...]:
    """All of the command line but the changed settings; holds secrets, so it is compared and never shown."""
    words = located.words
    own = {SETTINGS[name].flag for name in changed}
    others = [
        (f.name, f.negated, f.path, f.joined, tuple(words[p].text for p in f.value_positions))
        for f in scanned.flags
        if f.name not in own
    ]
    start = tuple(w.text for w in words[: located.first])
    rest = tuple(words[p].text for p in scanned.positionals)
    generation = generation_rest(scanned.flags) if KEY in changed else ()
    return start, rest, others, generation, located.shape, located.group, located.index


def _verify(
    written: Mapping[str, Any],
    before: Located,
    scanned: Scan,
    changed: set[str],
    wanted: Configuration,
    files: Files | None,
    version: str | None,
) -> None:
    after = locate(written, before.name or None, files)
    rescanned = scan_command(after, version)
    same = _residue(before, scanned, changed) == _residue(after, rescanned, changed)
    if not same or describe(after, rescanned).in_sight() != wanted:
        raise RewriteRefused(
            "the edited command line does not read back as wanted, so it was not used", code="NotReadBack"
        )
