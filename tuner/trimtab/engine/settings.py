"""The settings that an engine can be given, and `Configuration`, an immutable set of them.

One place for names: the Python name is vLLM's own argument name (`max_num_seqs`), the CRD uses camelCase
(`maxNumSeqs`). `SETTINGS` are all that can be read and written; `SEARCHED` are those that the CRD has and the search
changes. Limits and flags come from tunables.toml.
Defaults differ by vLLM version and device (`tunables.default`), so an absent setting is *unknown*, not a number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.engine.tunables import AUTO, TUNABLES, Actuator, Tunable, Value, ValueKind
from trimtab.errors import InputError

__all__ = ["AUTO", "SEARCHED", "SETTINGS", "Configuration", "Setting", "Value"]


@dataclass(frozen=True)
class Setting:
    """One tunable. `minimum` and `maximum` are vLLM's own limits, not a search range.

    minimum_open, maximum_open: the end itself is refused. choices: of a choice, in vLLM's order.
    suffixes: vLLM reads 8k (8000) and 8K (8192). auto: `AUTO` is taken too. searched: the CRD has it.
    """

    name: str
    kind: ValueKind
    flag: str
    actuator: Actuator
    minimum: float = 0
    maximum: float = math.inf
    minimum_open: bool = False
    maximum_open: bool = False
    choices: tuple[str, ...] = ()
    suffixes: bool = False
    auto: bool = False
    searched: bool = False
    unit: str = ""
    note: str = ""

    @property
    def camel(self) -> str:
        head, *tail = self.name.split("_")
        return head + "".join(part.capitalize() for part in tail)

    def check(self, value: object) -> Value:
        """The value in the setting's own type, or `InputError` that names the setting and its limits."""
        if self.kind == "boolean":
            if isinstance(value, bool):
                return value
            raise InputError(self.name, f"{value!r} is not a boolean", "Use true or false.")
        if self.kind == "choice":
            if isinstance(value, str) and value in self.choices:
                return value
            raise InputError(self.name, f"{value!r} is not a choice", f"Use one of {', '.join(self.choices)}.")
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "integer" else int | float):
            wanted = "an integer" if self.kind == "integer" else "a number"
            fix = "Use a whole number." if self.kind == "integer" else f"Use a number {self._limits()}."
            raise InputError(self.name, f"{value!r} is not {wanted}", fix)
        if not self._within(value) and not (self.auto and value == AUTO):
            auto = f", or {AUTO} for as much as fits" if self.auto else ""
            raise InputError(self.name, f"{value} is out of range", f"Use {self._limits()}{auto}.")
        return value if self.kind == "integer" else float(value)

    def _within(self, value: float) -> bool:
        above = value > self.minimum if self.minimum_open else value >= self.minimum
        return above and (value < self.maximum if self.maximum_open else value <= self.maximum)

    def _limits(self) -> str:
        if not self.minimum_open and not self.maximum_open:
            return f"{self.minimum} to {self.maximum}"
        low = f"above {self.minimum}" if self.minimum_open else f"at least {self.minimum}"
        return f"{low} and {'below' if self.maximum_open else 'at most'} {self.maximum}"


def _setting(row: Tunable) -> Setting:
    return Setting(
        row.name, row.kind, row.flag, row.actuator,
        minimum=next((end for end in (row.minimum, row.above) if end is not None), 0),
        maximum=next((end for end in (row.maximum, row.below) if end is not None), math.inf),
        minimum_open=row.above is not None, maximum_open=row.below is not None, choices=row.choices,
        suffixes=bool(row.suffixes), auto=bool(row.auto), searched=row.searched, unit=row.unit, note=row.note,
    )  # fmt: skip


SETTINGS: Final[Mapping[str, Setting]] = {name: _setting(row) for name, row in TUNABLES.items()}
#: the settings of the CRD: what the search changes and a trial carries
SEARCHED: Final[Mapping[str, Setting]] = {name: s for name, s in SETTINGS.items() if s.searched}


@dataclass(frozen=True)
class Configuration(Mapping[str, Value]):
    """Settings and their values; hashable, ordered by name, checked on creation. Absent means "as vLLM decides"."""

    values_: tuple[tuple[str, Value], ...] = field(default=())

    @classmethod
    def of(cls, values: Mapping[str, object] | None = None, /, **more: object) -> Configuration:
        """From names to values; None drops a name. Unknown names and bad values raise `InputError`."""
        merged = {**(values or {}), **more}
        for name in merged:
            if name not in SETTINGS:
                raise InputError(name, "is not a setting Trimtab tunes", f"Use one of {', '.join(SETTINGS)}.")
        return cls(tuple((n, SETTINGS[n].check(merged[n])) for n in sorted(merged) if merged[n] is not None))

    @classmethod
    def from_camel(cls, values: Mapping[str, object]) -> Configuration:
        """From the CRD's spelling (`maxNumSeqs`), the CRD's settings only."""
        by_camel = {s.camel: s.name for s in SEARCHED.values()}
        for name in values:
            if name not in by_camel:
                raise InputError(name, "is not a setting Trimtab tunes", f"Use one of {', '.join(by_camel)}.")
        return cls.of({by_camel[k]: v for k, v in values.items()})

    def to_camel(self) -> dict[str, Value]:
        return {SETTINGS[n].camel: v for n, v in self.values_}

    def __getitem__(self, name: str) -> Value:
        return dict(self.values_)[name]

    def integer(self, name: str) -> int | None:
        """The value of an integer setting, None where it is absent."""
        value = self.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise TypeError(f"{name} is no integer setting")

    def only(self, names: Iterable[str]) -> Configuration:
        """The part of it under these names."""
        wanted = set(names)
        return Configuration(tuple((n, v) for n, v in self.values_ if n in wanted))

    def __iter__(self) -> Iterator[str]:
        return (n for n, _ in self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def with_(self, changes: Mapping[str, object]) -> Configuration:
        """A copy with `changes` over it; None removes a setting."""
        return Configuration.of({**dict(self), **changes})

    def changes_to(self, other: Configuration) -> dict[str, Value | None]:
        """What must be set (or, None, removed) to get from here to `other`."""
        names = {*self, *other}
        return {n: other.get(n) for n in sorted(names) if self.get(n) != other.get(n)}

    def key(self) -> str:
        """A canonical text, equal for equal configurations."""
        return json.dumps(dict(self.values_), sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        shown = (f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in self.values_)
        return " ".join(shown) or "(vLLM's defaults)"
