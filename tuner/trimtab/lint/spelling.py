"""Flags that vLLM reads otherwise than they look, or not at all.

Source: vLLM 0.32 `FlexibleArgumentParser` and argparse; measured on the real parser.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from trimtab.engine.flag_table import HISTORY, KINDS, NEWEST, aliases, kinds
from trimtab.engine.flags import Flag
from trimtab.engine.versions import parse
from trimtab.lint.finding import Hit, Options, Severity
from trimtab.lint.target import Target, is_secret
from trimtab.lint.view import plain_name

#: what replaces a removed flag; of the others nothing does
_INSTEAD: Final = {
    "--disable-log-requests": "Leave it out: requests are not logged unless --enable-log-requests is given.",
    "--max-seq-len-to-capture": "Use --max-cudagraph-capture-size, or leave it out.",
    "--max-context-len-to-capture": "Use --max-cudagraph-capture-size, or leave it out.",
    "--cuda-graph-sizes": "Use --max-cudagraph-capture-size, or leave it out.",
    "--speculative-model": "Use --speculative-config with JSON.",
    "--num-speculative-tokens": "Use --speculative-config with JSON.",
    "--guided-decoding-backend": "Use --structured-outputs-config with JSON.",
    "--task": "Use --runner and --convert, or leave it out.",
    "--device": "Leave it out: the device is found.",
    "--enable-reasoning": "Leave it out: --reasoning-parser alone does it.",
    "--worker-use-ray": "Use --distributed-executor-backend ray.",
    "--rope-scaling": "Use --hf-overrides with JSON.",
    "--rope-theta": "Use --hf-overrides with JSON.",
    "--override-pooler-config": "Use --pooler-config.",
}
_TRUTHS: Final = frozenset({"true", "false"})
#: likeness of two names from which one is told for the other (difflib's ratio; its own default is 0.6)
_CUTOFF = 0.8


def glued(target: Target, options: Options) -> Iterator[Hit]:
    for aside in target.seen.aside if target.seen else ():
        if aside.glued:
            name = plain_name(aside.word.text)
            yield target.at_word(
                aside.word,
                f"{name} and its value stand in one list item; vLLM takes the whole item for one flag and stops.",
            )


def ambiguous(target: Target, options: Options) -> Iterator[Hit]:
    for aside in target.seen.aside if target.seen else ():
        if aside.refusal.code == "AmbiguousFlag":
            yield target.at_word(aside.word, f"{aside.refusal}.", fix=aside.refusal.hint)


def boolean_with_value(target: Target, options: Options) -> Iterator[Hit]:
    """vLLM before 0.8.5 took a value for --enable-chunked-prefill: the kind is the version's own."""
    for flag in target.flags:
        if not flag.joined or flag.path or flag.kind not in ("boolean", "switch"):
            continue
        if "".join(target.texts(flag)).strip().lower() not in ("false", "0", "no", "off"):
            fix = f"Write {flag.name} alone."
        elif flag.kind == "boolean":
            fix = f"Write --no-{flag.name[2:]}, or leave {flag.name} out for vLLM's default."
        else:
            fix = f"Leave {flag.name} out."
        yield target.at(flag, f"{flag.name} takes no value; with one, vLLM stops.", fix=fix)


def unknown(target: Target, options: Options) -> Iterator[Hit]:
    for flag in target.flags:
        if flag.kind != "unknown" or flag.name in HISTORY or flag.name == "--optimization-level":
            continue
        message = f"{flag.name} is no flag of any vLLM up to {NEWEST}, and vLLM stops at an unknown flag."
        if near := _near(flag.name, target.version):
            yield target.at(flag, f"{message} Did you mean {near}?", fix=f"Write {near}, or leave it out.")
        else:
            yield target.at(flag, message)


def _near(name: str, version: str | None) -> str:
    flags = kinds(version)
    known = [*flags, *aliases(version), *(f"--no-{n[2:]}" for n, kind in flags.items() if kind == "boolean")]
    return next(iter(difflib.get_close_matches(name, known, 1, _CUTOFF)), "")


def removed(target: Target, options: Options) -> Iterator[Hit]:
    """A version that is known decides; without one the newest does, and then it is only a warning."""
    version = parse(target.version)
    for flag in target.flags:
        eras = HISTORY.get(flag.name, ())
        if not eras:
            continue
        until = eras[-1].span.until
        if version is None:
            if flag.name not in KINDS:
                message = (
                    f"{flag.name} is gone since vLLM {until}, which stops at it; the image does not tell its version."
                )
                yield target.at(flag, message, fix=_INSTEAD.get(flag.name, ""), severity=Severity.WARNING)
        elif until and flag.name not in kinds(target.version) and version >= Version(until):
            message = f"{flag.name} is gone since vLLM {until}, so {target.version} stops at it."
            yield target.at(flag, message, fix=_INSTEAD.get(flag.name, ""))


def too_new(target: Target, options: Options) -> Iterator[Hit]:
    version = parse(target.version)
    for flag in target.flags:
        since = eras[0].span.since if (eras := HISTORY.get(flag.name, ())) else ""
        if version and since and version < Version(since):
            yield target.at(flag, f"{flag.name} came with vLLM {since}, so {target.version} stops at it.")


def _differ(target: Target, flags: list[Flag]) -> bool:
    assert target.seen is not None
    words = target.seen.words
    values = {
        tuple(words[p].text.partition("=")[2] if f.joined else words[p].text for p in f.value_positions) for f in flags
    }
    return len(values) > 1


def duplicate(target: Target, options: Options) -> Iterator[Hit]:
    """The last wins, so an edit to an earlier one does nothing. A file behind --config is meant to be overridden."""
    groups: dict[tuple[str, str], list[Flag]] = {}
    for flag in target.flags:
        if flag.kind not in ("boolean", "switch") and target.word(flag).where != "file":
            groups.setdefault((flag.name, flag.path), []).append(flag)
    for (name, path), flags in groups.items():
        losers = [f for f in flags if not f.wins]
        if len(flags) > 1 and losers and flags[-1].wins and _differ(target, flags):
            shown = "" if flags[-1].value is None or is_secret(flags[-1]) else f" ({flags[-1].value[:40]})"
            full = f"{name}.{path}" if path else name
            yield target.at(
                losers[0], f"{full} is given {len(flags)} times with different values; only the last counts{shown}."
            )


def dotted_replaces(target: Target, options: Options) -> Iterator[Hit]:
    """Measured: `--x.y 1` beside `--x '{...}'` leaves only y."""
    dotted = {f.name: f for f in target.flags if f.path}
    for flag in target.flags:
        if not flag.path and flag.name in dotted:
            other = dotted[flag.name]
            yield target.at(flag, f"{flag.name} is not read: {flag.name}.{other.path} replaces all of it.")


def contradicting_switches(target: Target, options: Options) -> Iterator[Hit]:
    seen: dict[str, Flag] = {}
    for flag in target.flags:
        if flag.kind != "boolean":
            continue
        before = seen.setdefault(flag.name, flag)
        if before.negated != flag.negated:
            off = f"--no-{flag.name[2:]}"
            counts = off if flag.negated else flag.name
            yield target.at(before, f"{flag.name} and {off} are both given; the last counts, {counts}.")
            seen[flag.name] = flag


def model_twice(target: Target, options: Options) -> Iterator[Hit]:
    """Seen: `vllm serve m --model n` stops at m, also where both are equal; `python -m` takes both."""
    named = target.flag("--model")
    if named is None or target.seen is None:
        return
    words = [target.seen.words[p] for p in target.seen.scanned.positionals]
    if not words or words[0].text.lower() in _TRUTHS:
        return
    if target.program == "serve":
        yield target.at(named, "the model stands behind `serve` and in --model: vLLM stops.")
    elif not words[0].opaque and named.value is not None and words[0].text != named.value:
        message = "the model is named twice, alone and by --model, and the two differ."
        yield target.at(named, message, severity=Severity.WARNING)


def stray_word(target: Target, options: Options) -> Iterator[Hit]:
    """Seen: behind `vllm serve m`, --enforce-eager false stops vLLM; `python -m` takes false for the model's name,
    forgets it, and the switch is on. Words are not shown: one could be a key."""
    if target.seen is None:
        return
    words, positions = target.seen.words, target.seen.scanned.positionals
    switches = {f.position + 1: f for f in target.flags if f.kind in ("boolean", "switch") and not f.joined}
    for position in positions:
        if position in switches and words[position].text.lower() in _TRUTHS:
            flag = switches[position]
            yield target.at_word(
                words[position],
                f"{flag.name} takes no value: vLLM stops at {words[position].text}, or takes it for the model's name "
                "and leaves the switch as given.",
                fix=f"Write {flag.name} or --no-{flag.name[2:]} alone.",
            )
        elif position != positions[0]:
            yield target.at_word(words[position], "a word belongs to no flag and is not the model: vLLM stops at it.")
