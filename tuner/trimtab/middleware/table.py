"""Frozen dataclasses whose fields carry their own check: reading, JSON Schema and help come from the one field table.

Strict: an unknown name, a wrong type or a value out of bounds is a `FieldError` that names the field and the fix.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
KEY = "trimtab"


class FieldError(ValueError):
    """A value is wrong. `field` is where (`rules[0].tokens.cap_max_tokens`), `fix` how to mend it."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}. {fix}")
        self.field, self.problem, self.fix = field, problem, fix


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a field may hold. `name`: whole, number, flag, text, choice, object, objects, texts."""

    name: str
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    of: type | None = None
    required: bool = False


def _field(kind: Kind, default: Any) -> Any:
    if kind.required:
        return dataclasses.field(metadata={KEY: kind})
    return dataclasses.field(default=default, metadata={KEY: kind})


def whole(help: str, low: int, high: int, default: int | None = None, *, required: bool = False) -> Any:
    """A whole number from low to high."""
    return _field(Kind("whole", help, low, high, required=required), default)


def number(help: str, low: float, high: float, default: float | None = None) -> Any:
    """A finite number from low to high."""
    return _field(Kind("number", help, low, high), default)


def flag(help: str, default: bool | None = None) -> Any:
    return _field(Kind("flag", help), default)


def text(help: str, default: str | None = None, *, longest: int = 256, required: bool = False) -> Any:
    """A text of 1 to `longest` characters."""
    return _field(Kind("text", help, 1, longest, required=required), default)


def choice(help: str, choices: tuple[str, ...], default: str | None = None) -> Any:
    return _field(Kind("choice", help, choices=choices), default)


def nested(help: str, of: type, default: Any = None) -> Any:
    """An object that is itself such a dataclass."""
    return _field(Kind("object", help, of=of), default)


def several(help: str, of: type, most: int) -> Any:
    """A list of at most `most` such objects."""
    return _field(Kind("objects", help, 0, most, of=of), ())


def texts(help: str, most: int) -> Any:
    return _field(Kind("texts", help, 0, most), ())


def kinds(cls: type) -> dict[str, Kind]:
    """Field name -> kind, in the order of the class."""
    return {f.name: f.metadata[KEY] for f in dataclasses.fields(cls) if f.metadata.get(KEY) is not None}


def read(cls: type[T], value: Any, where: str = "") -> T:
    """An instance of `cls` from parsed JSON; `FieldError` names the first field that is wrong."""
    table = kinds(cls)
    name = where or "policy"
    if not isinstance(value, Mapping):
        raise FieldError(name, f"is {_called(value)}", "Give an object with named fields")
    prefix = where + "." if where else ""
    for key in value:
        if key not in table:
            near = difflib.get_close_matches(str(key), table, 1)
            fix = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(table)}"
            raise FieldError(prefix + (str(key) or '""'), "is not a field", fix)
    given = {key: _value(kind, value[key], prefix + key) for key, kind in table.items() if value.get(key) is not None}
    for key, kind in table.items():
        if kind.required and key not in given:
            raise FieldError(prefix + key, "is missing", f"Add it: {kind.help}")
    return cls(**given)


def _value(kind: Kind, value: Any, where: str) -> Any:
    if kind.name == "object" and kind.of is not None:
        return read(kind.of, value, where)
    if kind.name in ("objects", "texts"):
        return _list(kind, value, where)
    if kind.name in ("whole", "number"):
        return _number(kind, value, where)
    if kind.name == "flag":
        if not isinstance(value, bool):
            raise FieldError(where, f"is {_called(value)}", "Give true or false")
        return value
    if not isinstance(value, str):
        raise FieldError(where, f"is {_called(value)}", "Give a text in quotes")
    if kind.name == "choice" and value not in kind.choices:
        raise FieldError(where, f"is {value[:40]!r}", f"Give one of {', '.join(kind.choices)}")
    if kind.name == "text" and not 1 <= len(value) <= (kind.high or 0):
        raise FieldError(where, f"has {len(value)} characters", f"Give 1 to {int(kind.high or 0)} characters")
    return value


def _number(kind: Kind, value: Any, where: str) -> Any:
    wanted = "a whole number" if kind.name == "whole" else "a number"
    bounds = f"{wanted} from {_plain(kind.low)} to {_plain(kind.high)}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind.name == "whole" and value != value // 1):
        raise FieldError(where, f"is {_called(value)}", f"Give {bounds}")
    if kind.low is None or kind.high is None or not kind.low <= value <= kind.high:
        raise FieldError(where, f"is {value!r:.30}", f"Give {bounds}")
    return int(value) if kind.name == "whole" else float(value)


def _list(kind: Kind, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise FieldError(where, f"is {_called(value)}", "Give a list in [ ]")
    if len(value) > (kind.high or 0):
        raise FieldError(where, f"has {len(value)} entries", f"Give at most {int(kind.high or 0)}")
    if kind.name == "objects" and kind.of is not None:
        return tuple(read(kind.of, entry, f"{where}[{number}]") for number, entry in enumerate(value))
    entry = Kind("text", kind.help, 1, 256)
    return tuple(_value(entry, text, f"{where}[{number}]") for number, text in enumerate(value))


def _plain(bound: float | None) -> str:
    return str(bound if bound is None or bound != bound // 1 else int(bound))


def _called(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"the number {value!r:.30}")


def schema(cls: type) -> dict[str, Any]:
    """JSON Schema (2020-12) of what `read` takes."""
    properties = {name: _schema(kind) for name, kind in kinds(cls).items()}
    for field in dataclasses.fields(cls):
        default = field.default
        if field.name in properties and isinstance(default, (bool, int, float, str)):
            properties[field.name]["default"] = default
    found: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    required = [name for name, kind in kinds(cls).items() if kind.required]
    return {**found, "required": required} if required else found


def _schema(kind: Kind) -> dict[str, Any]:
    about = {"description": kind.help}
    if kind.name in ("whole", "number"):
        json_type = "integer" if kind.name == "whole" else "number"
        return {**about, "type": [json_type, "null"], "minimum": kind.low, "maximum": kind.high}
    if kind.name == "flag":
        return {**about, "type": ["boolean", "null"]}
    if kind.name == "choice":
        return {**about, "enum": [*kind.choices, None]}
    if kind.name == "object" and kind.of is not None:
        return {**about, "anyOf": [schema(kind.of), {"type": "null"}]}
    if kind.name in ("objects", "texts"):
        one = schema(kind.of) if kind.of is not None else {"type": "string", "minLength": 1, "maxLength": 256}
        return {**about, "type": ["array", "null"], "items": one, "maxItems": kind.high}
    return {**about, "type": ["string", "null"], "minLength": kind.low, "maxLength": kind.high}
