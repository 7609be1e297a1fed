"""The flags vLLM's server knows, by version: a flag's kind says how many words after it are its values.

Source: flag_history.toml, made by hack/engine/flag_history.py from vLLM's source packages 0.6.0 to 0.33.0; the part for
the installed vLLM is held against its own parser in the tests.
Hazard: older and newer versions are not in it: the oldest and newest known ones stand in for them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, cast

from trimtab.engine.versions import Span, parse

#: one value; one or more values; zero or one value; `--x` and `--no-x`; `--x` alone; not in the table
Kind = Literal["one", "many", "optional", "boolean", "switch", "unknown"]


@dataclass(frozen=True)
class Era:
    """What a name meant in some versions: a kind, or for an alias the full name."""

    what: str
    span: Span


def _eras(text: str) -> tuple[Era, ...]:
    """`switch -0.6.5, boolean 0.6.5-` to eras."""
    found = []
    for part in text.split(", "):
        what, _, ends = part.partition(" ")
        since, _, until = ends.partition("-")
        found.append(Era(what, Span(since, until)))
    return tuple(found)


_DATA: Final = tomllib.loads(files(__package__).joinpath("flag_history.toml").read_text(encoding="utf-8"))
VERSIONS: Final[tuple[str, ...]] = tuple(_DATA["versions"])
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
#: every flag of every version, by full name
HISTORY: Final[Mapping[str, tuple[Era, ...]]] = {f"--{n}": _eras(t) for n, t in _DATA["flags"].items()}
ALIAS_HISTORY: Final[Mapping[str, tuple[Era, ...]]] = {n: _eras(t) for n, t in _DATA["aliases"].items()}


def _clamped(version: str | None) -> str:
    """The known version that stands for `version`; the newest where it is not known."""
    found = parse(version)
    oldest = parse(OLDEST)
    return OLDEST if found and oldest and found < oldest else str(found or NEWEST)


@lru_cache(maxsize=256)  # more than there are releases
def _at(clamped: str, history: Literal["flags", "aliases"]) -> Mapping[str, str]:
    version = parse(clamped)
    assert version is not None
    table = HISTORY if history == "flags" else ALIAS_HISTORY
    return {name: era.what for name, eras in table.items() for era in eras if era.span.holds(version)}


def kinds(version: str | None = None) -> Mapping[str, Kind]:
    """The flags of one version; of the newest known one where it is None or not a version."""
    return cast(Mapping[str, Kind], _at(_clamped(version), "flags"))


def aliases(version: str | None = None) -> Mapping[str, str]:
    """Other spellings of a version's flags."""
    return _at(_clamped(version), "aliases")


#: current flags, by full name
KINDS: Final[Mapping[str, Kind]] = kinds()
#: flags of older versions only, with their last kind: public manifests still carry them
REMOVED: Final[Mapping[str, Kind]] = {n: cast(Kind, eras[-1].what) for n, eras in HISTORY.items() if n not in KINDS}
#: other spellings of a current flag
ALIASES: Final[Mapping[str, str]] = aliases()

#: values that are never stored, printed or compared in messages
SECRETS: Final = frozenset({"--api-key", "--hf-token"})

#: flags that count every time they are given; of all others the last wins
REPEATABLE: Final = frozenset({"--middleware"})
