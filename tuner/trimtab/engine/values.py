"""Texts of flags to values as vLLM reads them, and the JSON of --override-generation-config, edited in place.

Source: vLLM 0.32 `human_readable_int` (8k = 8000, 8K = 8192), `human_readable_int_or_auto`, argparse's `int` and
`float`, and `json.loads` for dictionaries.
Hazard: in JSON every other byte must stay, so members are found by position and never re-serialised.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from trimtab.engine.settings import AUTO, Setting, Value

_SUFFIXED = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgGtT])")
_MULTIPLIERS: Final = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_LONGEST_INTEGER = 20
_SPACE = re.compile(r"[ \t\n\r]*")
KEY: Final = "max_new_tokens"


def read_integer(text: str, *, suffixes: bool) -> int:
    """The integer, or ValueError. `suffixes` is for the flags that take them; --max-num-seqs does not."""
    text = text.strip()
    if suffixes and (match := _SUFFIXED.fullmatch(text)):
        number, suffix = match.groups()
        return int(number) * _MULTIPLIERS[suffix] if suffix.isupper() else int(float(number) * _MULTIPLIERS[suffix])
    if len(text) > _LONGEST_INTEGER:
        raise ValueError("too many digits")
    return int(text)


def read_value(setting: Setting, text: str) -> Value:
    """The value that a flag's text gives a setting, or ValueError. Limits are not looked at.

    A boolean has a text only in versions before `--no-x` came (vLLM 0.8.4 `StoreBoolean`).
    """
    if setting.kind == "boolean":
        if text.lower() not in {"true", "false"}:
            raise ValueError("neither true nor false")
        return text.lower() == "true"
    if setting.kind == "choice":
        if text not in setting.choices:
            raise ValueError("not a choice")
        return text
    if setting.kind == "number":
        return float(text)
    if setting.auto and text.strip().lower() == "auto":
        return AUTO
    return read_integer(text, suffixes=setting.suffixes)


@dataclass(frozen=True)
class Member:
    """A top-level member of a JSON object's text: `text[start:end]` is `"key": value`, the value from `value_start`."""

    key: str
    value: Any
    start: int
    value_start: int
    end: int


def members(text: str) -> list[Member]:
    """The members of the object, or ValueError if `text` is not one JSON object."""
    try:
        if not isinstance(json.loads(text), dict):
            raise ValueError("not a JSON object")
        return list(_members(text))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _members(text: str) -> list[Member]:
    found: list[Member] = []
    decoder = json.JSONDecoder()
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        start = at
        key, at = decoder.raw_decode(text, at)
        value_start = _skip(text, _skip(text, at) + 1)
        value, at = decoder.raw_decode(text, value_start)
        found.append(Member(key, value, start, value_start, at))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


@dataclass(frozen=True)
class Splice:
    """Replace `text[start:end]` by `new`."""

    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def set_tokens(text: str, tokens: int) -> Splice:
    """The edit that makes max_new_tokens `tokens`, in the JSON's own spacing."""
    found = members(text)
    if same := [m for m in found if m.key == KEY]:
        return Splice(same[-1].value_start, same[-1].end, str(tokens))
    if not found:
        at = text.index("{") + 1
        return Splice(at, text.rindex("}"), f'"{KEY}": {tokens}')
    last = found[-1]
    colon = ": " if text[last.value_start - 1] in " \t\n" else ":"
    comma = text[found[-2].end : last.start] if len(found) > 1 else (", " if colon == ": " else ",")
    return Splice(last.end, last.end, f'{comma}"{KEY}"{colon}{tokens}')


def drop_tokens(text: str) -> Splice | None:
    """The edit that removes max_new_tokens; None if nothing would be left.

    Only the last of equal keys: whoever edits reads back what is left."""
    found = members(text)
    index = max(i for i, m in enumerate(found) if m.key == KEY)
    if len(found) == 1:
        return None
    if index == len(found) - 1:
        return Splice(found[index - 1].end, found[index].end, "")
    return Splice(found[index].start, found[index + 1].start, "")
