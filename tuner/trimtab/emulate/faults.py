"""What can be made to go wrong: a value (`Faults`) and the place where the running process looks it up (`FaultBoard`).

Set at the start by EMULATE_FAULTS, or while it runs over HTTP (`/emulate/faults`, only with EMULATE_FAULT_API=1).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from trimtab.errors import InputError

_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}
#: lowest and highest value of each number; None: no bound
_BOUNDS: Final[Mapping[str, tuple[float, float | None]]] = {
    "error_share": (0, 1), "error_status": (400, 599), "slowdown": (0.001, None), "leak_share": (0, 1),
    "counter_loss": (0, 1), "exit_code": (0, 255),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Faults:
    """All off by default.

    `error_share` of the requests are answered `error_status`. `hang`: no steps, /health stays 200. `slowdown`
    multiplies the duration of steps. `leak_share` of the requests never give their KV blocks back. `nan_metrics`:
    gauges are NaN. `counter_loss`: counters and histograms show this share less than before, 1 is a restart's zero.
    `engine_dead`: the engine core dies (/health 503, then the process ends). `exit_code`: the process ends at once.
    """

    error_share: float = 0.0
    error_status: int = 500
    hang: bool = False
    slowdown: float = 1.0
    leak_share: float = 0.0
    nan_metrics: bool = False
    counter_loss: float = 0.0
    engine_dead: bool = False
    exit_code: int | None = None

    def changed(self, changes: Mapping[str, Any], source: str) -> Faults:
        """With some of them changed. InputError names `source`, the fault and what it may be."""
        known = {field.name: field.default for field in fields(self)}
        for name in changes:
            if name not in known:
                raise InputError(source, f"{name!r} is no fault", f"Use {', '.join(known)}.")
        return replace(self, **{name: _checked(name, value, source) for name, value in changes.items()})

    @classmethod
    def parse(cls, text: str, source: str) -> Faults:
        """`hang=true,error_share=0.2`."""
        changes: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = part.partition("=")
            if not equals:
                raise InputError(source, f"{part!r} is no NAME=VALUE", "Write it like hang=true,error_share=0.2.")
            changes[name.strip()] = _TRUTH.get(value.strip()) if name.strip() in _FLAGS else _number(value.strip())
        return cls().changed(changes, source)


_FLAGS: Final = frozenset({"hang", "nan_metrics", "engine_dead"})
_WHOLE: Final = frozenset({"error_status", "exit_code"})


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # `_checked` says what is wrong with it


def _checked(name: str, value: Any, source: str) -> Any:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise InputError(source, f"{name} must be true or false", f"Write {name} true.")
        return value
    if name == "exit_code" and value is None:
        return None
    wanted = int if name in _WHOLE else (int, float)
    low, high = _BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, wanted) or not low <= value <= (high or float("inf")):
        kind = "a whole number" if name in _WHOLE else "a number"
        bound = f"from {low:g} to {high:g}" if high is not None else f"of at least {low:g}"
        raise InputError(source, f"{name}={value!r} is out of range", f"Give {kind} {bound}.")
    return value


NO_FAULTS: Final = Faults()


class FaultBoard:
    """The faults of now. `exit_now` ends the process without clean-up, as a kill does."""

    def __init__(self, faults: Faults = NO_FAULTS, *, exit_now: Callable[[int], object] = os._exit) -> None:
        self.now = faults
        self._exit_now = exit_now
        self._listeners: list[Callable[[], object]] = []

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def as_json(self) -> dict[str, Any]:
        return {field.name: getattr(self.now, field.name) for field in fields(self.now)}

    def set(self, faults: Faults) -> None:
        self.now = faults
        for listener in self._listeners:
            listener()
        if faults.exit_code is not None:
            self._exit_now(faults.exit_code)


def distorted(metrics: bytes, faults: Faults) -> bytes:
    """Metrics in text form as a broken process would show them."""
    if not (faults.nan_metrics or faults.counter_loss):
        return metrics
    return b"".join(_distorted_line(line, faults) for line in metrics.splitlines(keepends=True))


def _distorted_line(line: bytes, faults: Faults) -> bytes:
    if not line.startswith(b"vllm:"):
        return line
    sample, _, value = line.rstrip().rpartition(b" ")
    name = sample.partition(b"{")[0]
    if name.endswith((b"_total", b"_bucket", b"_sum", b"_count")):
        kept = float(value) * (1 - faults.counter_loss)
        whole = not name.endswith(b"_sum")  # counts stay whole numbers
        return b"%b %b\n" % (sample, repr(float(int(kept)) if whole else kept).encode())
    return sample + b" NaN\n" if faults.nan_metrics and not name.endswith(b"_created") else line
