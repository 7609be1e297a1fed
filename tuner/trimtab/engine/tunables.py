"""vLLM's tunables by version: what each takes, what it is when absent, what must hold between them.

Read once from tunables.toml, from which `settings.SETTINGS` is built too; which version has a flag is in `flag_table`.
Hazard: a version older or newer than those tables is answered with "not known", never with a guess.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, Literal

from trimtab.engine.flag_table import HISTORY, NEWEST, OLDEST, VERSIONS, kinds
from trimtab.engine.versions import Span, parse

Value = int | float | bool | str
ValueKind = Literal["integer", "number", "boolean", "choice"]
Actuator = Literal["restart", "hot"]
Context = Literal["api server", "offline"]

#: "as much as fits": what `auto` means where a setting takes it
AUTO: Final = -1
#: An engine whose version nobody states is taken to be no older: the first release with the V1 engine as default (March
#: 2025), whose metric names `observe` needs anyway.
ASSUMED_OLDEST: Final = "0.8.0"
_GIB: Final = 2**30


@dataclass(frozen=True)
class Device:
    """What an engine runs on. memory_bytes: of one device, None if not known. processes: TP x PP."""

    kind: Literal["gpu", "cpu", "tpu"]
    memory_bytes: int | None = None
    name: str = ""
    processes: int = 1


@dataclass(frozen=True)
class DefaultRule:
    """One line of `default`; the head of tunables.toml says how it is read."""

    value: Value
    span: Span
    device: str = ""
    context: str = ""
    memory_gib: int = 0
    name: tuple[str, ...] = ()
    not_name: tuple[str, ...] = ()
    per_process: bool = False


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
    choices_since: tuple[tuple[str, str], ...] = ()
    allowed: tuple[tuple[Span, tuple[Value, ...]], ...] = ()
    unit: str = ""
    suffixes: str = ""
    auto: str = ""
    overrides: tuple[str, ...] = ()
    searched: bool = False
    default: tuple[DefaultRule, ...] = ()


@dataclass(frozen=True)
class Rule:
    """`setting` is at least or at most `other` where every value of `when` is set."""

    setting: str
    other: str
    at_least: bool
    when: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True)
class Violation:
    """Why vLLM would not start with these values, and what to do."""

    name: str
    problem: str
    fix: str


def _span(fields: Mapping[str, Any]) -> Span:
    return Span(fields.get("since", ""), fields.get("until", ""))


def _row(name: str, fields: Mapping[str, Any]) -> Tunable:
    made = {
        "choices": tuple(fields.get("choices", ())),
        "choices_since": tuple(fields.get("choices_since", {}).items()),
        "allowed": tuple((_span(a), tuple(a["values"])) for a in fields.get("allowed", ())),
        "overrides": tuple(fields.get("overrides", ())),
        "default": tuple(_default(d) for d in fields.get("default", ())),
    }
    return Tunable(name=name, **{**fields, **made})


def _default(fields: Mapping[str, Any]) -> DefaultRule:
    kept: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in fields.items() if k not in {"since", "until"}
    }
    return DefaultRule(span=_span(fields), **kept)


def _rule(fields: Mapping[str, Any]) -> Rule:
    other = fields.get("at_least") or fields["at_most"]
    return Rule(fields["setting"], other, "at_least" in fields, tuple(fields.get("when", {}).items()))


_DATA: Final = tomllib.loads(files(__package__).joinpath("tunables.toml").read_text(encoding="utf-8"))
RULES: Final = tuple(_rule(r) for r in _DATA.pop("rule"))
#: by name, in the order of the file
TUNABLES: Final[Mapping[str, Tunable]] = {name: _row(name, fields) for name, fields in _DATA.items()}


def supported(name: str, version: str | None) -> bool | None:
    """Whether a vLLM version has the tunable's flag; None where the version is not known or outside the tables.

    A version newer than the tables is taken to keep a flag, not to lack one.
    """
    found, oldest, newest = parse(version), parse(OLDEST), parse(NEWEST)
    if found is None or oldest is None or newest is None or found < oldest:
        return None
    has = TUNABLES[name].flag in kinds(version)
    return has if has or found <= newest else None


def gate(name: str, version: str | None, value: Value | None = None) -> str:
    """Why the tunable cannot be written for a vLLM version; "" if it can. `value`: a boolean's, as False needs --no-x.

    Where the version is not known, a flag that every release from `ASSUMED_OLDEST` on has in the same kind is safe.
    """
    flag = TUNABLES[name].flag
    negated = value is False
    shown = f"--no-{flag[2:]}" if negated else flag
    if supported(name, version) is None:
        return (
            "" if _safe(flag, negated=negated) else f"{shown} is not in every vLLM version, and this one's is not known"
        )
    kind = kinds(version).get(flag)
    if kind is None:
        return f"vLLM {version} has no {shown}: it exists {' and '.join(str(e.span) for e in HISTORY[flag])}"
    if negated and kind != "boolean":
        return f"vLLM {version} has no {shown}"
    return ""


@lru_cache(maxsize=256)
def _safe(flag: str, *, negated: bool) -> bool:
    first = VERSIONS.index(ASSUMED_OLDEST)
    found = {kinds(v).get(flag) for v in VERSIONS[first:]}
    return None not in found and (not negated or found == {"boolean"})


def default(name: str, version: str | None, device: Device, context: Context = "api server") -> Value | None:
    """What vLLM takes where the flag is absent; None if it is not known or the model decides.

    vLLM lowers the batch defaults further: max_num_batched_tokens to max_num_seqs x max_model_len, and max_num_seqs to
    an explicit max_num_batched_tokens. 0.8 to 0.10 are taken to run their V1 engine.
    """
    found, newest = parse(version), parse(NEWEST)
    if found is None or newest is None or found > newest or not supported(name, version):
        return None
    for rule in TUNABLES[name].default:
        if not rule.span.holds(found) or rule.device not in {"", device.kind} or rule.context not in {"", context}:
            continue
        fits = _fits(rule, device)
        if fits is None:
            return None
        if fits:
            return rule.value * device.processes if rule.per_process and isinstance(rule.value, int) else rule.value
    return None


def _fits(rule: DefaultRule, device: Device) -> bool | None:
    """Whether a rule's device conditions hold; None if what they ask for is not known."""
    if (rule.memory_gib and device.memory_bytes is None) or ((rule.name or rule.not_name) and not device.name):
        return False if rule.memory_gib and 0 < (device.memory_bytes or 0) < rule.memory_gib * _GIB else None
    name = device.name.lower()
    return (
        (device.memory_bytes or 0) >= rule.memory_gib * _GIB
        and (not rule.name or any(n in name for n in rule.name))
        and not any(n in name for n in rule.not_name)
    )


def ignored(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Names in `values` that count for nothing, because another value overrides them."""
    dead = {other for name in values for other in TUNABLES[name].overrides}
    return tuple(name for name in values if name in dead)


def violations(values: Mapping[str, Value], version: str | None = None) -> tuple[Violation, ...]:
    """Why vLLM would refuse to start with these explicit values; empty if nothing is known against them.

    Limits of one setting are in `settings`; here are those that a version or another setting brings. Defaults are not
    compared: they depend on the device. Source: vLLM `SchedulerConfig.verify_max_model_len`, `CacheConfig`, argparse.
    """
    return (*_between(values), *_of_version(values, version))


def _between(values: Mapping[str, Value]) -> Iterator[Violation]:
    for rule in RULES:
        one, two = values.get(rule.setting), values.get(rule.other)
        if not isinstance(one, int | float) or not isinstance(two, int | float) or AUTO in (one, two):
            continue
        if any(values.get(name) != value for name, value in rule.when):
            continue
        if (one < two) if rule.at_least else (one > two):
            than, (least, most) = ("less", (rule.setting, rule.other)) if rule.at_least else (
                "more", (rule.other, rule.setting))  # fmt: skip
            condition = "".join(f" with {n} {str(v).lower()}" for n, v in rule.when)
            yield Violation(
                rule.setting,
                f"{one} is {than} than {rule.other} {two}{condition}",
                f"Use at least {values[most]} {least} or at most {values[least]} {most}.",
            )


def _of_version(values: Mapping[str, Value], version: str | None) -> Iterator[Violation]:
    found = parse(version)
    if found is None or supported("max_num_seqs", version) is None:
        return
    for name, value in values.items():
        row = TUNABLES[name]
        if reason := gate(name, version, value):
            yield Violation(name, reason, f"Leave {name} out, or use a vLLM version that has it.")
            continue
        since = dict(row.choices_since).get(str(value), "")
        if since and not Span(since).holds(found):
            yield Violation(name, f"{value!r} came with vLLM {since}, this is {version}", "Use another value.")
        for span, allowed in row.allowed:
            if span.holds(found) and value not in allowed:
                shown = ", ".join(map(str, allowed))
                yield Violation(name, f"vLLM {version} does not take {value}", f"Use one of {shown}.")
        if row.auto and value == AUTO and not Span(row.auto).holds(found):
            yield Violation(name, f"{AUTO} came with vLLM {row.auto}, this is {version}", "Use a number of tokens.")
