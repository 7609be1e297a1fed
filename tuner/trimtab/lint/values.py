"""Values of flags that vLLM does not read, and settings that exclude or replace each other.

Source: vLLM 0.32 `SchedulerConfig.verify_max_model_len`, `CacheConfig`, and the types of `EngineArgs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from trimtab.engine.flags import Flag
from trimtab.engine.settings import Setting
from trimtab.engine.values import read_integer, read_value
from trimtab.errors import InputError
from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import BY_FLAG, Target

#: whole numbers that are no tunables: lowest value, highest value
INTEGERS: Final = {
    "--port": (1, 65535),
    "--shutdown-timeout": (0, None),
    "--tensor-parallel-size": (1, None),
    "--pipeline-parallel-size": (1, None),
    "--data-parallel-size": (1, None),
    "--nnodes": (1, None),
    "--max-loras": (1, None),
    "--max-lora-rank": (1, None),
    "--max-cpu-loras": (None, None),
    "--api-server-count": (None, None),
    "--seed": (None, None),
    "--optimization-level": (0, 3),
}
#: flags that take one JSON object
_OBJECTS: Final = frozenset({
    "--override-generation-config", "--kv-transfer-config", "--speculative-config", "--default-chat-template-kwargs",
    "--kv-events-config", "--mm-processor-kwargs",
})  # fmt: skip


def unreadable(target: Target, options: Options) -> Iterator[Hit]:
    """Opaque values are not judged, and secrets are not looked at."""
    for flag in target.flags:
        if flag.opaque or flag.kind not in ("one", "many"):
            continue
        if not flag.value_positions:
            yield target.at(flag, f"{flag.name} has no value, so vLLM stops.", fix=f"Give {flag.name} a value.")
        elif flag.value is not None and (problem := _problem(flag)):
            yield target.at(
                flag, f"{_full(flag)} has the value {flag.value[:40]!r}, which vLLM does not take: {problem}."
            )


def _full(flag: Flag) -> str:
    return f"{flag.name}.{flag.path}" if flag.path else flag.name


def _problem(flag: Flag) -> str:
    assert flag.value is not None
    if flag.path:
        return ""
    if flag.name in BY_FLAG:
        return _tunable(BY_FLAG[flag.name], flag.value)
    if flag.name in INTEGERS:
        return _integer(flag.value, *INTEGERS[flag.name])
    return _object(flag.value) if flag.name in _OBJECTS else ""


def _tunable(setting: Setting, text: str) -> str:
    try:
        setting.check(read_value(setting, text))
    except InputError as error:
        return f"{error.problem}; {error.fix[:1].lower()}{error.fix[1:].removesuffix('.')}"
    except ValueError:
        if setting.kind == "choice":
            return f"not one of {', '.join(setting.choices)}"
        suffix = ", also as 8k or 8K" if setting.suffixes else ""
        return f"it takes {'a whole number' if setting.kind == 'integer' else 'a number'}{suffix}"
    return ""


def _integer(text: str, low: int | None, high: int | None) -> str:
    try:
        number = read_integer(text, suffixes=False)
    except ValueError:
        return "it takes a whole number"
    if low is not None and number < low:
        return f"at least {low}"
    return f"at most {high}" if high is not None and number > high else ""


def _object(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "it takes a JSON object, with names in double quotes"
    return "" if isinstance(value, dict) else "it takes a JSON object"


def batched_below_seqs(target: Target, options: Options) -> Iterator[Hit]:
    tokens, seqs = target.integer("--max-num-batched-tokens"), target.integer("--max-num-seqs")
    flag = target.flag("--max-num-batched-tokens")
    if flag and tokens is not None and seqs is not None and tokens < seqs:
        yield target.at(
            flag, f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {seqs}: vLLM does not start.",
            fix=f"Use at least {seqs} batched tokens, or at most {tokens} sequences.",
        )  # fmt: skip


def active_above_seqs(target: Target, options: Options) -> Iterator[Hit]:
    active, seqs = target.integer("--max-num-active-seqs"), target.integer("--max-num-seqs")
    flag = target.flag("--max-num-active-seqs")
    if flag and active is not None and seqs is not None and active > seqs:
        yield target.at(flag, f"--max-num-active-seqs {active} is above --max-num-seqs {seqs}: vLLM does not start.")


def batched_below_length(target: Target, options: Options) -> Iterator[Hit]:
    tokens, length = target.integer("--max-num-batched-tokens"), target.integer("--max-model-len")
    flag = target.flag("--max-num-batched-tokens")
    if target.switched("--enable-chunked-prefill") is not False or flag is None or tokens is None or length is None:
        return
    if 0 < tokens < length:
        yield target.at(
            flag,
            f"chunked prefill is off and --max-num-batched-tokens {tokens} is less than --max-model-len {length}: "
            "vLLM does not start.",
            fix=f"Leave out --no-enable-chunked-prefill, or use at least {length} batched tokens.",
        )


def bytes_replace_utilization(target: Target, options: Options) -> Iterator[Hit]:
    own, other = target.flag("--gpu-memory-utilization"), target.flag("--kv-cache-memory-bytes")
    if own and other:
        yield target.at(own, "--gpu-memory-utilization is not looked at: --kv-cache-memory-bytes decides alone.")
