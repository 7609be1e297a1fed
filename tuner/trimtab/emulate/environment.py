"""EMULATE_* environment variables: timing and faults that vLLM flags cannot say, so that args stay real-looking."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from trimtab.emulate.cost import PRESETS, StepCost
from trimtab.errors import InputError

Number = TypeVar("Number", int, float)

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}
#: what Kubernetes puts into a container for a Service called `emulate-...`
SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT|PORT)(_.*)?$")
STEP_VARIABLES = {
    "EMULATE_STEP_FIXED_MS": "fixed_ms",
    "EMULATE_STEP_PER_PREFILL_TOKEN_MS": "per_prefill_token_ms",
    "EMULATE_STEP_PER_DECODE_SEQ_MS": "per_decode_seq_ms",
    "EMULATE_STEP_PER_KV_TOKEN_MS": "per_kv_token_ms",
}


@dataclass(frozen=True, slots=True)
class CrashRule:
    """`max_num_seqs>200`: the start fails when the flag's effective value compares so."""

    flag: str
    operator: str
    limit: int

    def holds(self, values: Mapping[str, Any]) -> bool:
        """InputError when the flag has no numeric value."""
        value = values.get(self.flag)
        if isinstance(value, bool) or not isinstance(value, int | float):
            fix = "Name a numeric engine flag with underscores, like max_num_seqs"
            raise InputError("EMULATE_CRASH_IF", f"{self.flag!r} is not a numeric flag", fix)
        return COMPARISONS[self.operator](value, self.limit)


@dataclass(frozen=True, slots=True)
class Emulation:
    """How this process behaves beyond vLLM's flags. `speedup` 2 makes every modelled step half as long."""

    start_seconds: float = 3.0
    crash_if: CrashRule | None = None
    speedup: float = 1.0
    error_rate: float = 0.0
    seed: int = 0
    output_median_tokens: float = 120.0
    output_sigma: float = 0.8
    cost: StepCost = field(default_factory=StepCost)


def read_emulation(environ: Mapping[str, str]) -> Emulation:
    """Read every EMULATE_* variable. InputError names the one that is wrong or unknown."""
    known = {*STEP_VARIABLES, "EMULATE_STEP_PRESET", "EMULATE_START_SECONDS", "EMULATE_CRASH_IF", "EMULATE_SPEEDUP",
             "EMULATE_ERROR_RATE", "EMULATE_SEED", "EMULATE_OUTPUT_MEDIAN_TOKENS", "EMULATE_OUTPUT_SIGMA"}  # fmt: skip
    for name in environ:
        if name.startswith("EMULATE_") and name not in known and not SERVICE_LINK.search(name):
            raise InputError(name, "is not a variable of the emulator", f"Use one of {', '.join(sorted(known))}")
    crash = environ.get("EMULATE_CRASH_IF", "").strip()
    return Emulation(
        start_seconds=_number(environ, "EMULATE_START_SECONDS", 3.0, least=0),
        crash_if=_crash_rule(crash) if crash else None,
        speedup=_number(environ, "EMULATE_SPEEDUP", 1.0, least=0.001),
        error_rate=_number(environ, "EMULATE_ERROR_RATE", 0.0, least=0, most=1),
        seed=_number(environ, "EMULATE_SEED", 0, least=0),
        output_median_tokens=_number(environ, "EMULATE_OUTPUT_MEDIAN_TOKENS", 120.0, least=1),
        output_sigma=_number(environ, "EMULATE_OUTPUT_SIGMA", 0.8, least=0, most=5),
        cost=_step_cost(environ),
    )


def _step_cost(environ: Mapping[str, str]) -> StepCost:
    preset = environ.get("EMULATE_STEP_PRESET", "demo")
    if preset not in PRESETS:
        raise InputError("EMULATE_STEP_PRESET", f"{preset!r} is not a preset", f"Use one of {', '.join(PRESETS)}")
    cost = PRESETS[preset]
    given = {
        attribute: _number(environ, variable, getattr(cost, attribute), least=0)
        for variable, attribute in STEP_VARIABLES.items()
    }
    cost = replace(cost, **given)
    if not any(given.values()):
        raise InputError(
            "EMULATE_STEP_FIXED_MS", "all step costs are 0, time would stand still", "Make one of them positive"
        )
    return cost


def _number(
    environ: Mapping[str, str], name: str, default: Number, *, least: float, most: float = float("inf")
) -> Number:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = type(default)(text)
    except ValueError:
        raise InputError(name, f"{text!r} is not a number", f"Give a number like {default}") from None
    if not least <= value <= most:  # also catches NaN
        bound = f"at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
        raise InputError(name, f"{text} is out of range", f"Use {bound}")
    return value


def _crash_rule(text: str) -> CrashRule:
    match = re.fullmatch(r"([a-z_]+)\s*(>=|<=|==|!=|>|<)\s*(-?\d+)", text)
    if match is None:
        raise InputError(
            "EMULATE_CRASH_IF", f"{text!r} is not `flag operator integer`", "Write it like max_num_seqs>200"
        )
    return CrashRule(match[1], match[2], int(match[3]))
