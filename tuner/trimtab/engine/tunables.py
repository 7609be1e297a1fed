"""vLLM's tunables as data: what each takes. Read once from tunables.toml, from which `settings.SETTINGS` is built."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal

ValueKind = Literal["integer", "number", "boolean", "choice"]
Actuator = Literal["restart", "hot"]


@dataclass(frozen=True)
class Tunable:
    """One row of tunables.toml; the file's head says what each field means."""

    name: str
    flag: str
    kind: ValueKind
    note: str
    actuator: Actuator = "restart"
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    suffixes: str = ""
    auto: str = ""
    searched: bool = False


def _row(name: str, fields: Mapping[str, Any]) -> Tunable:
    return Tunable(name=name, **{**fields, "choices": tuple(fields.get("choices", ()))})


def _load() -> dict[str, Tunable]:
    text = files(__package__).joinpath("tunables.toml").read_text(encoding="utf-8")
    return {name: _row(name, fields) for name, fields in tomllib.loads(text).items()}


#: by name, in the order of the file
TUNABLES: Final[Mapping[str, Tunable]] = _load()
