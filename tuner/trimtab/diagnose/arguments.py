"""A report's `engine`, `args` and `hardware` to an `Engine`. vLLM's flags are read by the engine room."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.diagnose.engines import LEVERS, Engine, kind_of, slots_of
from trimtab.engine.admission import Model
from trimtab.engine.command import setting_value
from trimtab.engine.flags import Flag, scan
from trimtab.engine.program import find_program
from trimtab.engine.settings import SETTINGS, Configuration, Value
from trimtab.engine.tunables import Device, default
from trimtab.engine.values import read_value
from trimtab.engine.words import Word
from trimtab.errors import InputError, RewriteRefused

#: GPU name -> memory in GiB where the report does not say it. Source: vendors' data sheets
_MEMORY_GIB: Final = {
    "b300": 268, "b200": 180, "gb200": 186, "h200": 141, "h100": 80, "h20": 96, "h800": 80, "a100": 80, "a800": 80,
    "l40s": 48, "l40": 48, "a40": 48, "a6000": 48, "rtx 6000": 96, "rtx pro 6000": 96, "5090": 32, "4090": 24,
    "3090": 24, "a10g": 24, "a10": 24, "l4": 24, "v100": 32, "t4": 16, "mi300x": 192, "mi325x": 256, "mi250": 128,
}  # fmt: skip
_GIB: Final = re.compile(r"(\d{2,3})\s*-?\s*Gi?B\b", re.IGNORECASE)


def engine_of(name: str, version: str | None, args: object, hardware: str) -> Engine:
    """InputError names `args` where it cannot be read."""
    words = words_of(args)
    flags = _plain(words)
    kind, admission = kind_of(name, " ".join(words))
    if kind not in ("vllm", ""):
        slots = _number(flags, *LEVERS["slots"].get(kind, "").split())
        return Engine(kind, admission, version, flags=flags, slots=slots, slots_stated=slots is not None,
                      hardware=hardware)  # fmt: skip
    settings = _vllm_settings(words, flags, version)
    stated = slots_of(settings)
    slots = stated if stated is not None else _default_slots(version, hardware)
    return Engine("vllm", Model.ON_DEMAND, version, settings, flags, slots, stated is not None, hardware)


def words_of(args: object) -> tuple[str, ...]:
    """A command line as text, as a list, or as an object of names and values."""
    if args is None:
        return ()
    if isinstance(args, str):
        return _split(args)
    if isinstance(args, Mapping):
        return tuple(word for name, value in args.items() for word in _pair(str(name), value))
    if isinstance(args, Sequence) and all(isinstance(a, str | int | float) for a in args):
        texts = [str(a) for a in args]
        # ["--port 80"]: wrong for vLLM, but plain to a reader
        return tuple(w for t in texts for w in (_split(t) if re.match(r"--?\w\S*\s", t) else (t,)))
    raise InputError("args", "is neither a text nor a list of words", 'Write "args": "--max-num-seqs 64".')


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text.replace("\\\n", " "), comments=False))
    except ValueError as error:
        raise InputError("args", f"cannot be read ({error})", "Close the quotes.") from None


def _pair(name: str, value: object) -> tuple[str, ...]:
    flag = "--" + name.lstrip("-").replace("_", "-")
    if isinstance(value, bool):
        return (flag if value else f"--no-{flag[2:]}",)
    return () if value is None else (flag, str(value))


def _plain(words: Sequence[str]) -> dict[str, str]:
    """Every `--name value`, `--name=value`, `-name value`; names with underscores, the last wins."""
    flags: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            bare = "" if following.startswith("-") and not re.match(r"-\d", following) else following
            flags[name.replace("-", "_").replace(".", "_")] = value if equals else bare
        elif (pair := re.fullmatch(r"([a-z_]+)=(\S+)", word)) and pair[1] not in flags:
            flags[pair[1]] = pair[2]
    return flags


def _vllm_settings(words: Sequence[str], flags: Mapping[str, str], version: str | None) -> Configuration:
    """By the engine room's own reader; flag by flag where it refuses the line as a whole."""
    line = [Word(w, "args", i, w, opaque="$" in w) for i, w in enumerate(words)]
    program = find_program(line)
    try:
        found: Sequence[Flag] | None = scan(line, program.first if program else 0, version).flags
    except RewriteRefused:
        found = None
    return Configuration.of({n: v for n in SETTINGS if (v := _value(n, found, flags)) is not None})


def _value(name: str, found: Sequence[Flag] | None, flags: Mapping[str, str]) -> Value | None:
    """None for what is absent, out of sight, or what vLLM would not take."""
    try:
        if found is not None:
            value = setting_value(found, name)
        else:
            value = read_value(SETTINGS[name], flags[name]) if flags.get(name) else None
        return None if value is None else SETTINGS[name].check(value)
    except (RewriteRefused, InputError, ValueError):
        return None


def _number(flags: Mapping[str, str], *names: str) -> float | None:
    for name in names:
        try:
            return float(flags[name].replace("_", ""))
        except (KeyError, ValueError):
            continue
    return None


def device_of(hardware: str) -> Device:
    """What a person wrote ("2x A100 80GB", "L4"), as far as it is known."""
    low = hardware.lower()
    if re.search(r"\bcpus?\b", low) and not re.search(r"gpu|nvidia|amd instinct", low):
        return Device("cpu")
    said = _GIB.search(hardware)
    named = next((g for n, g in _MEMORY_GIB.items() if re.search(rf"\b{n}\b", low)), None)
    gib = int(said[1]) if said else named
    return Device("gpu", None if gib is None else gib * 2**30, low)


def _default_slots(version: str | None, hardware: str) -> float | None:
    """What vLLM takes where the flag is absent, if version and GPU say so."""
    if not version or not hardware:
        return None
    value = default("max_num_seqs", version.lstrip("v"), device_of(hardware))
    return None if value is None else float(value)


def as_text(value: Any) -> str:
    return "" if value is None else str(value)
