"""Reading untrusted JSON field by field: the wrong type is unknown or an `InputError`, never a crash further on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trimtab.errors import InputError
from trimtab.text import plain

Json = dict[str, Any]
_FIX = "Write the file anew with the tool that made it."
#: a patch with a whole command line is some kilobytes
_MOST_TEXT = 32_768


def number(value: object) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def whole(value: object, otherwise: int = 0) -> int:
    found = number(value)
    return otherwise if found is None else int(found)


def text(value: object) -> str:
    """Without characters that hide or turn what is read; a patch of several lines keeps them."""
    return plain(value, _MOST_TEXT, lines=True) if isinstance(value, str) else ""


def table(value: object) -> Json:
    """A JSON object, else an empty one."""
    return dict(value) if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Json]:
    """The JSON objects in a list, else none."""
    return [dict(v) for v in value if isinstance(v, Mapping)] if isinstance(value, list | tuple) else []


def numbers(value: object) -> dict[str, float]:
    """The finite numbers of an object."""
    return {str(k): n for k, v in table(value).items() if (n := number(v)) is not None}


def unix(value: object, where: str) -> float | None:
    """RFC 3339 as unix seconds; None where it is absent."""
    if value in (None, ""):
        return None
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError) as error:
        raise InputError(where, f"{str(value)[:40]!r} is no time", _FIX) from error


def needed(data: Mapping[str, Any], key: str, where: str) -> Any:
    """InputError where it is absent."""
    if data.get(key) is None:
        raise InputError(f"{where}.{key}", "is missing", _FIX)
    return data[key]
