"""A written report (JSON) to a `Case`. Any field may be missing or null; unknown ones are kept as context.

Every problem is an `InputError` that names the field. Names and units that people commonly write are understood:
`num_requests_running`, `ttft_p99_ms`, `preemptions_total` (a counter: needs `t_seconds`), `kv_usage` in percent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.diagnose.arguments import as_text, engine_of
from trimtab.diagnose.case import FIELDS, Case, Point
from trimtab.diagnose.facts import Facts
from trimtab.diagnose.finding import Limits
from trimtab.diagnose.report_names import ALIASES, COUNTERS
from trimtab.engine.settings import SETTINGS
from trimtab.errors import InputError

_SHARES: Final = frozenset({
    "kv_usage", "kv_usage_max", "prefix_hit_ratio", "abort_rate", "useful_token_ratio", "wasted_token_ratio",
    "completion_ratio", "gpu_utilization",
})  # fmt: skip
_GOOD: Final = {"true", "ok", "okay", "healthy", "up", "ready", "200", "pass", "passing", "green", "live", "serving"}
_BAD: Final = {"false", "unhealthy", "down", "timeout", "timed out", "fail", "failed", "failing", "503", "500", "502",
               "504", "dead", "not ready", "error", "red", "refused", "unreachable"}  # fmt: skip
_NAMED_PART: Final = ("pod", "rank", "replica", "instance", "dp_rank")
_PARTS: Final = ("pods", "ranks", "per_pod", "per_rank", "per_replica", "instances", "dp_ranks")
_TOP: Final = frozenset({"engine", "args", "hardware", "observations", "facts", "slo", "name", "id", "title"})
#: so many observations are an accident, not a report
MOST_OBSERVATIONS: Final = 100_000


def read_report(text: str, limits: Limits | None = None) -> Case:
    """The case of a JSON report. `limits` go before those of the report."""
    return case_of(parse_json(text), limits)


def parse_json(text: str) -> Mapping[str, Any]:
    """The object in `text`; a bare list is taken as its observations."""
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError("report", f"is no JSON{where}", 'Give {"observations": [{"running": 8, ...}]}.') from None
    if isinstance(found, list):
        found = {"observations": found}
    if not isinstance(found, dict):
        raise InputError("report", "is no JSON object", 'Give {"observations": [{"running": 8, ...}]}.')
    return found


def case_of(report: Mapping[str, Any], limits: Limits | None = None) -> Case:
    name, version = _engine(report.get("engine"))
    hardware = as_text(report.get("hardware"))
    facts = Facts(_facts(report.get("facts")))
    engine = engine_of(name, version, report.get("args"), hardware)
    rows = _rows(report)
    whole, parts = _sorted_out(rows)
    context = {k: v for k, v in report.items() if k not in _TOP}
    unread: dict[str, object] = {}
    points = _points(whole, unread)
    return Case(
        points=points,
        engine=engine,
        limits=_limits(report.get("slo"), facts, limits),
        facts=facts,
        parts={k: _points(v, unread) for k, v in parts.items()},
        context={**context, **unread},
    )


def _engine(value: object) -> tuple[str, str | None]:
    if value is None:
        return "vllm", None
    if isinstance(value, str):
        return value, None
    if isinstance(value, Mapping):
        version = value.get("version")
        return as_text(value.get("name")) or "vllm", None if version is None else str(version)
    raise InputError(
        "engine", "is neither a name nor an object", 'Write "engine": {"name": "vllm", "version": "0.32.0"}.'
    )


def _facts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence):
        return tuple(f if isinstance(f, str) else json.dumps(f) for f in value if f is not None)
    raise InputError("facts", "is no list of sentences", 'Write "facts": ["clients retry after 30 s"].')


def _limits(value: object, facts: Facts, given: Limits | None) -> Limits:
    said = value if isinstance(value, Mapping) else {}
    found = {n: _positive(f"slo.{n}_seconds", said.get(f"{n}_seconds", said.get(n))) for n in ("ttft", "tpot")}
    asked = given or Limits()
    return Limits(
        asked.ttft_seconds or found["ttft"] or facts.slo_seconds("ttft"),
        asked.tpot_seconds or found["tpot"] or facts.slo_seconds("tpot"),
    )


def _positive(name: str, value: object) -> float | None:
    number = _number(name, value)
    if number is not None and number <= 0:
        raise InputError(name, f"{number:g} is no limit", "Give seconds above 0.")
    return number


def _rows(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = report.get("observations")
    if rows is None:
        return []
    if isinstance(rows, Mapping):
        rows = [rows]
    if not isinstance(rows, list):
        raise InputError("observations", "is no list", 'Give a list: [{"t_seconds": 0, "running": 8}].')
    if len(rows) > MOST_OBSERVATIONS:
        raise InputError("observations", f"has {len(rows)} entries", f"Give at most {MOST_OBSERVATIONS}.")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"observations[{i}]", "is no object", 'Give {"t_seconds": 0, "running": 8}.')
    return rows


Rows = list[tuple[str, Mapping[str, Any]]]


def _sorted_out(rows: Sequence[Mapping[str, Any]]) -> tuple[Rows, dict[str, Rows]]:
    """Rows of the whole, and those of pods or ranks: rows that name one, lists inside a row, a list for a value."""
    whole: Rows = []
    parts: dict[str, Rows] = {}
    for i, row in enumerate(rows):
        where = f"observations[{i}]"
        label = next((str(row[k]) for k in _NAMED_PART if isinstance(row.get(k), str | int)), None)
        if label is not None:
            parts.setdefault(label, []).append((where, row))
            continue
        inner = next((row[k] for k in _PARTS if isinstance(row.get(k), Mapping | list)), None)
        for name, part in _named(inner):
            parts.setdefault(name, []).append((where, {"t_seconds": row.get("t_seconds"), **part}))
        spread = {k: v for k, v in row.items() if isinstance(v, list | Mapping) and _name(k) in FIELDS and v}
        for key, values in spread.items():
            for name, value in _each(values):
                parts.setdefault(name, []).append((where, {"t_seconds": row.get("t_seconds"), key: value}))
        flat = {k: v for k, v in row.items() if k not in spread and k not in _PARTS}
        whole.append((where, {**flat, **{k: _average(k, v) for k, v in spread.items() if k not in flat}}))
    if parts and not any(_readable(row) for _, row in whole):
        whole = _joined(parts)
    return whole, {k: _merged(v) for k, v in parts.items()}


def _named(inner: object) -> list[tuple[str, Mapping[str, Any]]]:
    pairs = inner.items() if isinstance(inner, Mapping) else enumerate(inner) if isinstance(inner, list) else ()
    return [(str(part.get("name", name)), part) for name, part in pairs if isinstance(part, Mapping)]


def _each(values: object) -> list[tuple[str, object]]:
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    return [(str(k), v) for k, v in pairs]


def _average(key: str, values: object) -> float | None:
    known = [n for k, v in _each(values) if (n := _number(f"{key}.{k}", v)) is not None]
    return math.fsum(known) / len(known) if known else None


def _readable(row: Mapping[str, Any]) -> bool:
    return any(_name(k) in FIELDS and v is not None for k, v in row.items())


def _joined(parts: Mapping[str, Rows]) -> Rows:
    """The average over the parts, time by time: gauges and rates of one engine."""
    times: dict[object, list[tuple[str, Mapping[str, Any]]]] = {}
    for rows in parts.values():
        for n, (where, row) in enumerate(_merged(rows)):
            times.setdefault(_time(where, row) if "t_seconds" in row else n, []).append((where, row))
    return [(found[0][0], _mean_row(found)) for found in times.values()]


def _mean_row(rows: Rows) -> dict[str, Any]:
    names = {k for _, row in rows for k in row if _name(k) in FIELDS}
    out: dict[str, Any] = {"t_seconds": rows[0][1].get("t_seconds")}
    for name in names:
        known = [v for where, row in rows if (v := _number(f"{where}.{name}", row.get(name))) is not None]
        out[name] = math.fsum(known) / len(known) if known else None
    return out


def _merged(rows: Rows) -> Rows:
    """Values of one part at one time, told in several places, become one row."""
    out: dict[object, tuple[str, dict[str, Any]]] = {}
    for n, (where, row) in enumerate(rows):
        at = _time(where, row)
        key = (where, at) if at is None else at
        found = out.setdefault(
            key if at is not None else (where, n if _overlaps(out.get(key), row) else 0), (where, {})
        )
        found[1].update({k: v for k, v in row.items() if k not in _NAMED_PART})
    return list(out.values())


def _overlaps(found: tuple[str, dict[str, Any]] | None, row: Mapping[str, Any]) -> bool:
    return found is not None and bool(set(found[1]) & set(row) - {"t_seconds"})


# --- one observation --------------------------------------------------------------------------------------------------
def _points(rows: Rows, unread: dict[str, object]) -> tuple[Point, ...]:
    points: list[Point] = []
    before: tuple[float, Mapping[str, float]] | None = None
    for where, row in _in_time(rows):
        at = _time(where, row)
        values, counters = _values(where, row, unread)
        if before is not None and at is not None and at > before[0]:
            for name, value in counters.items():
                if name in before[1] and value >= before[1][name]:
                    values.setdefault(COUNTERS[name], (value - before[1][name]) / (at - before[0]))
        if at is not None and counters:
            before = (at, counters)
        replicas = values.get("replicas") or 1.0
        _unsum(where, values, replicas)
        points.append(Point(at, values, _health(row.get("health")), _own_settings(row)))
    return tuple(points)


def _time(where: str, row: Mapping[str, Any]) -> float | None:
    return _number(f"{where}.t_seconds", row.get("t_seconds"))


def _in_time(rows: Rows) -> Rows:
    if all(isinstance(row.get("t_seconds"), int | float) for _, row in rows):
        return sorted(rows, key=lambda r: r[1]["t_seconds"])
    return list(rows)


def _name(key: str) -> str:
    """A field's own name for what was written; unknown ones as they are."""
    low = key.lower().removeprefix("vllm:").removeprefix("vllm_").replace("-", "_")
    if low.endswith("_ms"):
        low = low.removesuffix("_ms") + "_seconds"
    return ALIASES.get(low, low)


def _values(where: str, row: Mapping[str, Any], unread: dict[str, object]) -> tuple[dict[str, float], dict[str, float]]:
    values: dict[str, float] = {}
    counters: dict[str, float] = {}
    for key, raw in row.items():
        name, low = _name(key), key.lower().removeprefix("vllm:").replace("-", "_")
        if name in FIELDS:
            value = _number(f"{where}.{key}", raw)
            if value is not None:
                values.setdefault(name, _fit(f"{where}.{key}", name, value / 1000 if low.endswith("_ms") else value))
        elif low in COUNTERS:
            value = _number(f"{where}.{key}", raw)
            if value is not None:
                counters[low] = value
        elif (
            name not in ("t_seconds", "health") and name not in SETTINGS and key not in _NAMED_PART and raw is not None
        ):
            unread[key] = raw
    return values, counters


def _fit(where: str, name: str, value: float) -> float:
    if value < 0:
        raise InputError(where, f"{value:g} is below 0", "Give the rate or gauge as it was; null if unknown.")
    if name not in _SHARES or value <= 1.0:
        return value
    if name in ("kv_usage", "kv_usage_max") and value < 3:
        return value  # a sum over replicas or a rounding slip: see _unsum
    if value <= 100.0:
        return value / 100.0
    raise InputError(where, f"{value:g} is no share", "Give a share from 0 to 1.")


def _unsum(where: str, values: dict[str, float], replicas: float) -> None:
    """KV use was added up over replicas: the average is meant (monitoring-dashboard-samples#1188)."""
    for name in ("kv_usage", "kv_usage_max"):
        value = values.get(name)
        if value is None or value <= 1.0:
            continue
        if replicas > 1 and value <= replicas:
            values[name] = value / replicas
        elif value < 1.02:
            values[name] = 1.0
        else:
            values[name] = value / 100.0


def _number(where: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip().rstrip("%").replace(",", "")
        if text.lower() in ("", "null", "none", "nan", "n/a", "unknown", "-"):
            return None
        shown = value[:40]
        try:
            value = float(text)
        except ValueError:
            raise InputError(where, f"{shown!r} is no number", "Give a number, or null if unknown.") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(where, "is no number", "Give a number, or null if unknown.")
    return float(value) if math.isfinite(value) else None


def _health(value: object) -> bool | None:
    if isinstance(value, Mapping):
        value = next((value[k] for k in ("status", "code", "ok") if k in value), None)
    if isinstance(value, bool):
        return value
    text = as_text(value).strip().lower()
    words = text.split()
    if text in _GOOD or (words and words[0] in _GOOD):
        return True
    return False if text in _BAD or (words and words[0] in _BAD) or "timeout" in text else None


def _own_settings(row: Mapping[str, Any]) -> dict[str, float]:
    """Settings that one observation was made with: a report of trials."""
    found = {k.replace("-", "_").lstrip("_"): v for k, v in row.items()}
    numeric = {k: v for k, v in found.items() if k in SETTINGS and isinstance(v, int | float)}
    return {k: float(v) for k, v in numeric.items() if k not in ALIASES}
