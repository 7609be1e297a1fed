"""From a person's options to a checked `TunerSpec`: the same validation as for a VLLMTuner. Errors name the option."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from trimtab.engine.settings import SEARCHED, Configuration, Value
from trimtab.errors import InputError
from trimtab.plan.spec import TunerSpec
from trimtab.text import whole_number

Json = dict[str, Any]
#: for one machine and one impatient person; a cluster's defaults are slower
LOCAL: Final[Json] = {
    "targetRef": {"name": "local"},
    "metrics": {"direct": {"intervalSeconds": 2}},
    "rollout": {
        "warmupSeconds": 30,
        "measurementSeconds": 120,
        "confirmationSeconds": 60,
        "maxMeasurementSeconds": 360,
        "verificationSeconds": 30,
        "cooldownSeconds": 0,
    },
    "preconditions": {"stableSeconds": 30},
}
_RANGE_FIX: Final = "Write NAME=MIN:MAX, such as max_num_seqs=8:256."
#: where the spec keeps each setting's range
_RANGES: Final = {
    "max_num_seqs": ("search", "maxNumSeqs"),
    "max_num_batched_tokens": ("search", "maxNumBatchedTokens"),
    "max_new_tokens": ("tokenPolicy", "maxNewTokens"),
}


@dataclass(frozen=True)
class TuneOptions:
    """None or empty: not said. `spec`: a VLLMTuner in YAML or JSON, or only its spec. Times in seconds."""

    spec: Path | None = None
    max_trials: int | None = None
    warmup: float | None = None
    measure: float | None = None
    confirm: float | None = None
    verify: float | None = None
    slo_ttft: float | None = None
    slo_tpot: float | None = None
    search: Sequence[str] = ()
    prefix_caching: Literal["tune", "keep"] | None = None
    candidates: Sequence[str] = ()
    seed: int | None = None


def build_spec(options: TuneOptions, base: Mapping[str, Any] = LOCAL, replicas: int = 2) -> TunerSpec:
    """`base`, the file over it, the options over both. One replica: baseline, candidate, baseline, one after the other.

    SpecError or InputError for the first thing wrong.
    """
    read = read_spec(options.spec) if options.spec is not None else {}
    merged = _over(base, {k: v for k, v in read.items() if k not in ("targetRef", "metrics")})
    if isinstance(direct := (read.get("metrics") or {}).get("direct"), dict):
        merged["metrics"] = {"direct": direct}  # of the sources, only direct scrape makes sense here
    merged = _over(merged, _said(options))
    merged["mode"], merged["suspend"] = "Auto", False
    rollout = merged.setdefault("rollout", {})
    rollout["maxRestartsPerDay"] = 10_000  # these restarts disturb nobody else
    rollout.setdefault("maxSurge", 0)  # one more process may not fit into the memory
    if replicas == 1:
        rollout |= {"strategy": "Switchback", "allowDowntime": True}
    for said, most in ((options.measure, "maxMeasurementSeconds"), (options.warmup, "maxWarmupSeconds")):
        if said is not None and rollout.get(most) is not None:
            rollout[most] = max(rollout[most], said)
    spec = TunerSpec.parse(merged)
    if spec.rollout.max_surge:
        problem = "rollout.maxSurge is 1, which processes cannot do"
        raise InputError("--spec", problem, "Use 0, and --replicas 2 or more.")
    return spec


def _said(options: TuneOptions) -> Json:
    """The options in the spec's own shape."""
    search: Json = {"maxTrials": options.max_trials, "seed": options.seed}
    if options.prefix_caching is not None:
        search["prefixCaching"] = options.prefix_caching.capitalize()
    if options.candidates:
        search["candidates"] = [parse_configuration(c, "--candidate").to_camel() for c in options.candidates]
    out: Json = {
        "search": search,
        "objective": {"slo": {"ttftSeconds": options.slo_ttft, "tpotSeconds": options.slo_tpot}},
        "rollout": {
            "warmupSeconds": options.warmup,
            "measurementSeconds": options.measure,
            "confirmationSeconds": options.confirm,
            "verificationSeconds": options.verify,
        },
    }
    for text in options.search:
        name, low, high = _range(text)
        section, key = _RANGES[name]
        out.setdefault(section, {})[key] = {"min": low, "max": high}
    return out


def _over(base: Mapping[str, Any], top: Mapping[str, Any]) -> Json:
    """Maps are merged, anything else is replaced; None on top says nothing."""
    out = dict(base)
    for key, value in top.items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = _over(out[key], value)
        elif isinstance(value, Mapping):
            out[key] = _over({}, value)
        elif value is not None:
            out[key] = value
    return out


def read_spec(path: Path) -> Json:
    """The spec in a VLLMTuner manifest, or the file's mapping itself."""
    fix = "Give a VLLMTuner in YAML or JSON, or only its spec."
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError("--spec", f"{path} cannot be read ({error})", fix) from error
    if not isinstance(content, dict):
        raise InputError("--spec", f"{path} holds no mapping", fix)
    spec = content.get("spec", {}) if "kind" in content else content
    if content.get("kind", "VLLMTuner") != "VLLMTuner" or not isinstance(spec, dict):
        raise InputError("--spec", f"{path} is not a VLLMTuner", fix)
    return spec


def _range(text: str) -> tuple[str, int, int]:
    name, _, limits = text.replace("-", "_").partition("=")
    low, colon, high = limits.partition(":")
    if name not in _RANGES:
        raise InputError("--search", f"{name!r} is not a setting with a range", f"Use one of {', '.join(_RANGES)}.")
    try:
        return name, int(low), int(high if colon else low)
    except ValueError:
        raise InputError("--search", f"{text!r} is not a range", _RANGE_FIX) from None


def parse_configuration(text: str, option: str) -> Configuration:
    """`max_num_seqs=32,enable_prefix_caching=true`."""
    values: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals:
            fix = "Write NAME=VALUE, such as max_num_seqs=32,enable_prefix_caching=true."
            raise InputError(option, f"{part.strip()!r} is no NAME=VALUE", fix)
        values[name.replace("-", "_")] = parse_value(name.replace("-", "_"), value, option)
    return Configuration.of(values)


def parse_value(name: str, text: str, option: str) -> Value:
    """A value of a setting from text."""
    setting = SEARCHED.get(name)
    if setting is None:
        raise InputError(option, f"{name!r} is not a setting Trimtab tunes", f"Use one of {', '.join(SEARCHED)}.")
    if setting.kind == "boolean":
        known = {"true": True, "on": True, "false": False, "off": False}
        if text.lower() not in known:
            raise InputError(option, f"{name}={text} is not a boolean", "Use true or false.")
        return known[text.lower()]
    try:
        return setting.check(int(text))
    except ValueError:
        raise InputError(option, f"{name}={text} is not an integer", "Use a whole number.") from None


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, or only the port; 0 for a free one."""
    host, _, port = text.rpartition(":")
    number = whole_number(port)
    if number is None or number >= 65_536:
        raise InputError("--listen", f"{text!r} has no port", "Write HOST:PORT, such as 127.0.0.1:8000.")
    return host or "127.0.0.1", number


def require_seconds(option: str, value: float) -> None:
    if not math.isfinite(value) or value < 0:
        raise InputError(option, f"{value:g} is no time", "Give seconds.")
