"""vLLM's metrics as data: which version shows which name, and what it can tell. Read once from metrics.toml.

Hazard: a version between two that were read is taken to be like the older one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

from trimtab.errors import InputError

Kind = Literal["gauge", "counter", "histogram", "info"]
#: the generation of vLLM's engine: both are in 0.7.1 to 0.10, chosen by VLLM_USE_V1 (v1 is the default since 0.8.0)
Engine = Literal["v0", "v1"]
#: how a metric stands in a version
Standing = Literal["shown", "hidden", "not yet", "removed", "never"]
Version = tuple[int, int, int]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?![\d])")
#: (first version with the engine, first version without it)
_ENGINES: Final[Mapping[Engine, tuple[Version, Version | None]]] = {
    "v0": ((0, 0, 0), (0, 11, 0)),
    "v1": ((0, 7, 1), None),
}


def parse_version(text: str) -> Version:
    """(0, 8, 5) of "0.8.5", "v0.8.5.post1" or "0.8.5+cpu". Raises InputError for anything else."""
    found = _VERSION.match(text)
    if found is None:
        raise InputError("version", f"{text!r} is no version of vLLM", "Give it as 0.8.5.")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


def engines(version: Version) -> tuple[Engine, ...]:
    """The engine generations that a version has."""
    return tuple(e for e, (since, until) in _ENGINES.items() if since <= version and (until is None or version < until))


@dataclass(frozen=True)
class Span:
    """Versions from `since` until before `until`; None: still there in the newest version read."""

    since: Version
    until: Version | None = None

    def __contains__(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    def __str__(self) -> str:
        return f"{version_text(self.since)}-{version_text(self.until) if self.until else ''}"


@dataclass(frozen=True)
class Metric:
    """One row of metrics.toml; the file's head says what each field means. `shown` and `hidden` are by engine."""

    name: str
    kind: Kind
    unit: str
    tells: str
    cannot_tell: str = ""
    labels: tuple[str, ...] = ()
    when: str = ""
    renamed_from: str = ""
    renamed_to: str = ""
    shown: Mapping[Engine, Span] = field(default_factory=dict, hash=False)
    hidden: Mapping[Engine, Span] = field(default_factory=dict, hash=False)

    @property
    def since(self) -> Version:
        """The first version with it, whichever engine."""
        return min(s.since for s in self.shown.values())

    @property
    def series(self) -> tuple[str, ...]:
        """The series names on /metrics."""
        ends = ("_bucket", "_count", "_sum") if self.kind == "histogram" else ("",)
        return tuple(self.name + end for end in ends)

    def standing(self, version: Version, engine: Engine) -> Standing:
        """How the metric stands in that version with that engine; "never" where the engine never has it."""
        shown, hidden = self.shown.get(engine), self.hidden.get(engine)
        if shown is None:
            return "never"
        if version in shown:
            return "shown"
        if hidden is not None and version in hidden:
            return "hidden"
        return "not yet" if version < shown.since else "removed"


def _span(text: str) -> Span:
    since, _, until = text.partition("-")
    return Span(parse_version(since), parse_version(until) if until else None)


def _row(name: str, fields: Mapping[str, Any], successors: Mapping[str, str]) -> Metric:
    spans = {key: _span(fields[key]) for key in ("v0", "v1", "v0_hidden", "v1_hidden") if key in fields}
    rest = {key: value for key, value in fields.items() if key not in spans}
    return Metric(
        name=name,
        **{**rest, "labels": tuple(rest.get("labels", ()))},
        renamed_to=successors.get(name, ""),
        shown={e: spans[e] for e in _ENGINES if e in spans},
        hidden={e: spans[f"{e}_hidden"] for e in _ENGINES if f"{e}_hidden" in spans},
    )


_DATA: Final[Mapping[str, Any]] = tomllib.loads(files(__package__).joinpath("metrics.toml").read_text(encoding="utf-8"))


def _load() -> dict[str, Metric]:
    rows: Mapping[str, Mapping[str, Any]] = _DATA["metrics"]
    successors = {fields["renamed_from"]: name for name, fields in rows.items() if "renamed_from" in fields}
    return {name: _row(name, fields, successors) for name, fields in rows.items()}


#: by name as on /metrics (a histogram's without _bucket), in the order of the file
METRICS: Final[Mapping[str, Metric]] = _load()
#: families that are not read, by the beginning of their names
OTHERS: Final[Mapping[str, str]] = _DATA["others"]
#: versions whose sources were read, ascending
READ: Final[tuple[Version, ...]] = tuple(parse_version(v) for v in _DATA["read"])


def spellings(name: str) -> tuple[str, ...]:
    """The name and its older ones, newest first. Raises KeyError for a name that is not in the table."""
    metric = METRICS[name]
    return (name, *(spellings(metric.renamed_from) if metric.renamed_from else ()))


def _by_series() -> dict[str, Metric]:
    """Every spelling of every series; a full name wins over a shortened one."""
    found: dict[str, Metric] = {}
    for m in METRICS.values():
        stem = m.name.removesuffix("_total") if m.kind == "counter" else m.name
        found |= {name: m for name in (stem, f"{stem}_created", *m.series) if name not in METRICS}
    return found | dict(METRICS)


_SERIES: Final[Mapping[str, Metric]] = _by_series()


def metric_of(series: str) -> Metric | None:
    """The metric to which a series name belongs: with _bucket, _sum, _count or _created, or without a _total."""
    return _SERIES.get(series)


class VersionRange(NamedTuple):
    """The oldest and the newest version read that fit; `high` == READ[-1] means that one or newer."""

    low: Version
    high: Version

    def __str__(self) -> str:
        low = version_text(self.low)
        if self.high == READ[-1]:
            return f"{low} or newer"
        return low if self.low == self.high else f"{low} to {version_text(self.high)}"


def version_range(names: Collection[str], *, complete: bool = False) -> VersionRange | None:
    """The versions of vLLM that can show these series names. None: no name of vLLM among them, or names that no one
    version has together (pods of two versions).

    complete: `names` are a whole /metrics, so what is absent counts too. It counts for v1 only, which shows its metrics
    from the start; leave it False for names out of Prometheus, which may drop some.
    """
    given = {m for series in names if (m := metric_of(series)) is not None and m.name.startswith("vllm:")}
    if not given:
        return None
    fits = [v for v in READ if any(_fits(given, v, engine, complete=complete) for engine in engines(v))]
    return VersionRange(fits[0], fits[-1]) if fits else None


def engines_of(version: Version, names: Collection[str]) -> tuple[Engine, ...]:
    """The engine generations of `version` that can show all these series names; all it has when none fits."""
    given = {m for series in names if (m := metric_of(series)) is not None}
    has = engines(version)
    return tuple(e for e in has if _fits(given, version, e, complete=False)) or has


def _fits(given: Collection[Metric], version: Version, engine: Engine, *, complete: bool) -> bool:
    if any(m.standing(version, engine) not in ("shown", "hidden") for m in given):
        return False
    if not complete or engine == "v0":
        return True
    must = (m for m in METRICS.values() if not m.when and m.standing(version, engine) == "shown")
    return all(m in given for m in must)
