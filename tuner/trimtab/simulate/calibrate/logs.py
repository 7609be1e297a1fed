"""Request logs, one JSON object a line, in two shapes.

Engine side (LLMServingSim's bench): queued_ts, scheduled_ts, first_token_ts, last_token_ts, input_toks, output_toks.
Client side (`trimtab load --records`): sent_at, first_token_at, last_token_at, prompt_tokens, planned_tokens, tokens,
max_tokens, ending. Seconds on one clock of any origin.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trimtab.errors import InputError
from trimtab.simulate.fit import RequestLog
from trimtab.simulate.workload import Workload

_FIX: Final = "Give a log of `trimtab load --records`, or lines with queued_ts, scheduled_ts, first_token_ts and so on."
_NAN: Final = float("nan")
_ENGINE_TIMES: Final = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True)
class Log:
    """`whole`: requests that ended normally, with all their times."""

    requests: RequestLog
    whole: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Row:
    arrival: float
    scheduled: float
    first: float
    last: float
    prompt: int
    output: int
    max_tokens: int
    cancel: int
    whole: bool


def read_log(path: Path) -> Log:
    """InputError names the line and the field. Requests that were never sent are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("--log", f"{path} cannot be read ({error})", _FIX) from error
    rows = [row for n, line in enumerate(lines, 1) if line.strip() for row in _row(f"{path}:{n}", line)]
    if not rows:
        raise InputError("--log", f"{path} has no request", _FIX)
    return as_log(rows)


def as_log(rows: Sequence[_Row]) -> Log:
    rows = sorted(rows, key=lambda r: r.arrival)
    begin = rows[0].arrival
    load = Workload.of(
        [r.arrival - begin for r in rows],
        [r.prompt for r in rows],
        [r.output for r in rows],
        max_tokens=[r.max_tokens for r in rows],
        cancel_tokens=[r.cancel for r in rows],
    )
    times = (np.array([getattr(r, name) - begin for r in rows]) for name in ("scheduled", "first", "last"))
    return Log(RequestLog(load, *times), np.array([r.whole for r in rows]))


def _row(place: str, line: str) -> list[_Row]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(place, "is no JSON", _FIX) from error
    if not isinstance(data, dict):
        raise InputError(place, "is no JSON object", _FIX)
    if "queued_ts" in data:
        queued, scheduled, first, last = (_number(place, data, name) for name in _ENGINE_TIMES)
        _require_order(place, [queued, scheduled, first, last])
        output = _count(place, data, "output_toks")
        return [_Row(queued, scheduled, first, last, _count(place, data, "input_toks"), output, output, 0, True)]
    if data.get("sent_at") is None and "ending" in data:
        return []
    ending, sent = data.get("ending"), _number(place, data, "sent_at")
    planned = _count(place, data, "planned_tokens")
    first, last = (_number(place, data, name, default=_NAN) for name in ("first_token_at", "last_token_at"))
    tokens = _count(place, data, "tokens", least=0)
    cancel = max(1, tokens) if ending in ("cancelled", "gave_up") else 0
    whole = ending == "ok" and tokens == planned
    if whole:
        _require_order(place, [sent, first, last])
    limit = max(planned, _count(place, data, "max_tokens"))
    return [_Row(sent, _NAN, first, last, _count(place, data, "prompt_tokens"), planned, limit, cancel, whole)]


def _require_order(place: str, times: Sequence[float]) -> None:
    if not all(a <= b for a, b in pairwise(times)):
        raise InputError(place, "its times do not ascend from arrival to last token", "Correct or drop the line.")


def _number(place: str, data: dict[str, Any], name: str, default: float | None = None) -> float:
    value = data.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{place} {name}", f"{value!r} is no time", _FIX)
    return float(value)


def _count(place: str, data: dict[str, Any], name: str, least: int = 1) -> int:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InputError(f"{place} {name}", f"{value!r} is no number of tokens", _FIX)
    return value
