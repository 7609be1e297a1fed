"""EMULATE_* environment variables: timing and faults that vLLM flags cannot say, so that args stay real-looking."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trimtab.emulate.faults import NO_FAULTS, Faults
from trimtab.emulate.times import PRESETS, from_profile
from trimtab.errors import InputError
from trimtab.simulate.config import StepTimes

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
    "EMULATE_STEP_FIXED_MS": "fixed",
    "EMULATE_STEP_PER_PREFILL_TOKEN_MS": "per_prefill_token",
    "EMULATE_STEP_PER_DECODE_SEQ_MS": "per_decode_seq",
    "EMULATE_STEP_PER_KV_TOKEN_MS": "per_kv_token",
}
OTHER_VARIABLES = (
    "EMULATE_CRASH_IF", "EMULATE_FAULTS", "EMULATE_FAULTS_AFTER_SECONDS", "EMULATE_FAULT_API",
    "EMULATE_IGNORE_MIDDLEWARE", "EMULATE_OUTPUT_MEDIAN_TOKENS", "EMULATE_OUTPUT_SIGMA", "EMULATE_PROFILE",
    "EMULATE_SEED", "EMULATE_SPEEDUP", "EMULATE_START_SECONDS", "EMULATE_STEP_PRESET",
)  # fmt: skip


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
    """How this process behaves beyond vLLM's flags. `speedup` 2 makes every modelled step half as long.

    `faults` hold from `faults_after_seconds` on, counted from readiness; `fault_api` lets anybody change them
    over HTTP. `ignore_middleware`: --middleware is accepted and loads nothing, as in an image that drops it.
    """

    start_seconds: float = 3.0
    crash_if: CrashRule | None = None
    speedup: float = 1.0
    seed: int = 0
    output_median_tokens: float = 120.0
    output_sigma: float = 0.8
    times: StepTimes = PRESETS["demo"]
    faults: Faults = NO_FAULTS
    faults_after_seconds: float = 0.0
    fault_api: bool = False
    ignore_middleware: bool = False


def read_emulation(environ: Mapping[str, str]) -> Emulation:
    """Read every EMULATE_* variable. InputError names the one that is wrong or unknown."""
    known = {*STEP_VARIABLES, *OTHER_VARIABLES}
    for name in environ:
        if name.startswith("EMULATE_") and name not in known and not SERVICE_LINK.search(name):
            raise InputError(name, "is not a variable of the emulator", f"Use one of {', '.join(sorted(known))}")
    crash = environ.get("EMULATE_CRASH_IF", "").strip()
    return Emulation(
        start_seconds=_number(environ, "EMULATE_START_SECONDS", 3.0, least=0),
        crash_if=_crash_rule(crash) if crash else None,
        speedup=_number(environ, "EMULATE_SPEEDUP", 1.0, least=0.001),
        seed=_number(environ, "EMULATE_SEED", 0, least=0),
        output_median_tokens=_number(environ, "EMULATE_OUTPUT_MEDIAN_TOKENS", 120.0, least=1),
        output_sigma=_number(environ, "EMULATE_OUTPUT_SIGMA", 0.8, least=0, most=5),
        times=_step_times(environ),
        faults=Faults.parse(environ.get("EMULATE_FAULTS", ""), "EMULATE_FAULTS"),
        faults_after_seconds=_number(environ, "EMULATE_FAULTS_AFTER_SECONDS", 0.0, least=0),
        fault_api=_switch(environ, "EMULATE_FAULT_API"),
        ignore_middleware=_switch(environ, "EMULATE_IGNORE_MIDDLEWARE"),
    )


def _step_times(environ: Mapping[str, str]) -> StepTimes:
    preset, profile = environ.get("EMULATE_STEP_PRESET"), environ.get("EMULATE_PROFILE")
    if preset and profile:
        raise InputError("EMULATE_PROFILE", "a preset is given, too", "Leave EMULATE_STEP_PRESET out.")
    preset = preset or "demo"
    if preset not in PRESETS:
        raise InputError("EMULATE_STEP_PRESET", f"{preset!r} is not a preset", f"Use one of {', '.join(PRESETS)}")
    times = from_profile(profile) if profile else PRESETS[preset]
    given = {
        attribute: _number(environ, variable, 1000 * getattr(times, attribute), least=0) / 1000
        for variable, attribute in STEP_VARIABLES.items()
        if environ.get(variable, "").strip()
    }
    return replace(times, **given)


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise InputError(name, f"{text!r} is no switch", "Use 1, or leave it out.")
    return text == "1"


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
