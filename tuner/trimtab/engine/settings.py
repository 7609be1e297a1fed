"""The settings that Trimtab tunes, and `Configuration`, an immutable set of them.

One place for names: the Python name is vLLM's own argument name (`max_num_seqs`), the CRD uses camelCase
(`maxNumSeqs`).
Defaults differ by vLLM version and device memory (vLLM 0.32 `EngineArgs`), so an absent setting is *unknown*, not a
number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from trimtab.errors import InputError

Value = int | bool


@dataclass(frozen=True)
class Setting:
    """One tunable. `minimum` and `maximum` are vLLM's own limits, not a search range."""

    name: str
    kind: Literal["integer", "boolean"]
    flag: str
    actuator: Literal["restart", "hot"]
    minimum: int = 1
    maximum: int = 1_000_000
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
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(self.name, f"{value!r} is not an integer", "Use a whole number.")
        if not self.minimum <= value <= self.maximum:
            raise InputError(self.name, f"{value} is out of range", f"Use {self.minimum} to {self.maximum}.")
        return value


SETTINGS: Final[Mapping[str, Setting]] = {
    s.name: s
    for s in (
        Setting("max_num_seqs", "integer", "--max-num-seqs", "restart", unit="sequences",
                note="how many requests run at once; too many overcommit the KV cache and preempt"),
        Setting("max_num_batched_tokens", "integer", "--max-num-batched-tokens", "restart", unit="tokens",
                note="token budget of one engine step; must be >= max_num_seqs"),
        Setting("enable_prefix_caching", "boolean", "--enable-prefix-caching", "restart",
                note="share KV blocks of equal prompt prefixes"),
        Setting("max_new_tokens", "integer", "--override-generation-config", "restart", unit="tokens",
                note="default and silent hard cap of generated tokens, as override-generation-config max_new_tokens"),
    )
}  # fmt: skip


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
        """From the CRD's spelling (`maxNumSeqs`)."""
        by_camel = {s.camel: s.name for s in SETTINGS.values()}
        for name in values:
            if name not in by_camel:
                raise InputError(name, "is not a setting Trimtab tunes", f"Use one of {', '.join(by_camel)}.")
        return cls.of({by_camel[k]: v for k, v in values.items()})

    def to_camel(self) -> dict[str, Value]:
        return {SETTINGS[n].camel: v for n, v in self.values_}

    def __getitem__(self, name: str) -> Value:
        return dict(self.values_)[name]

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
