"""vLLM's command line, as far as an emulator needs it: spelling, defaults, cross-checks, and the way it fails.

Accepted like vLLM's own parser: `--a-b` or `--a_b`, `=` or space, unambiguous prefixes, last duplicate wins,
`--x/--no-x`, `8k` for two flags, `--config FILE` below the command line, dotted `--x.y v` for JSON flags. A bad
command line ends the process with code 2; a combination that vLLM's config refuses raises `StartupError` (code 1).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml

from trimtab.emulate.flag_table import ALIASES, IGNORED_LIST_FLAGS, IGNORED_SWITCHES, IGNORED_VALUE_FLAGS
from trimtab.errors import TrimtabError
from trimtab.simulate.config import EngineConfig

#: KV blocks of a made-up GPU, per unit of gpu_memory_utilization: 0.92 gives 2000 blocks of 16 tokens
KV_TOKENS_PER_UTILIZATION = 34_783
DEFAULT_MAX_MODEL_LEN = 4096
#: vLLM's for an API server on a GPU below 70 GiB
DEFAULT_MAX_NUM_SEQS, DEFAULT_MAX_NUM_BATCHED_TOKENS = 256, 2048
DEFAULT_UTILIZATION = 0.92
SUFFIXES = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


class StartupError(TrimtabError):
    """The engine would not start with this configuration. Exit code 1, as a failing vLLM has."""

    hint = "Correct the engine's flags."


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The parsed command line. `max_new_tokens` (from --override-generation-config) is default and silent hard cap."""

    model: str
    served_model_names: tuple[str, ...]
    host: str
    port: int
    limits: EngineConfig
    max_new_tokens: int | None = None
    shutdown_timeout_seconds: float = 0.0
    log_stats: bool = True
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    num_gpu_blocks_override: int | None = None
    #: import paths of --middleware, in the order given
    middleware: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


def parse_flags(args: Sequence[str]) -> ServerFlags:
    """Read vLLM's arguments, with or without a leading `serve`. Exits with code 2 on a bad command line."""
    parser = _build_parser()
    given = list(args)
    if given[:1] == ["serve"]:
        given = given[1:]
    given = _expand_config(parser, [_normal_spelling(arg) for arg in given])
    namespace = parser.parse_args(_fold_dotted(given))
    return _to_flags(namespace, parser)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm serve", description="vLLM look-alike. Flags are vLLM's; faults and timing: EMULATE_* env."
    )
    add = parser.add_argument
    add("model_tag", nargs="?")
    add("--model")
    add("--config")
    add("--served-model-name", nargs="+")
    add("--host", default="0.0.0.0")
    add("--port", type=int, default=8000)
    for name in ("block-size", "num-gpu-blocks-override", "max-num-active-seqs", "max-num-queued-reqs",
                 "max-num-queued-tokens", "long-prefill-token-threshold"):  # fmt: skip
        add(f"--{name}", type=_positive_int)
    add("--max-num-seqs", type=_positive_int, default=DEFAULT_MAX_NUM_SEQS)
    add("--max-num-batched-tokens", type=_human_int, default=DEFAULT_MAX_NUM_BATCHED_TOKENS)
    add("--max-model-len", type=_human_int, default=DEFAULT_MAX_MODEL_LEN)
    add("--watermark", type=float, default=0.0)
    add("--gpu-memory-utilization", type=float, default=DEFAULT_UTILIZATION)
    add("--shutdown-timeout", type=float, default=0.0)
    add("--override-generation-config", type=_json_object, default={})
    add("--middleware", action="append", default=[])
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    for name, default in (("enable-prefix-caching", True), ("enable-chunked-prefill", True),
                          ("scheduler-reserve-full-isl", True), ("disable-log-stats", False),
                          ("async-scheduling", True)):  # fmt: skip
        add(f"--{name}", action=argparse.BooleanOptionalAction, default=default)
    short = {long: alias for alias, long in ALIASES.items()}

    def ignore(name: str, **options: Any) -> None:
        spellings = [short[f"--{name}"]] if f"--{name}" in short else []
        add(*spellings, f"--{name}", default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)

    for name in IGNORED_VALUE_FLAGS:
        ignore(name)
    for name in IGNORED_LIST_FLAGS:
        ignore(name, nargs="+")
    for name in IGNORED_SWITCHES:
        ignore(name, action=argparse.BooleanOptionalAction)
    return parser


def _normal_spelling(arg: str) -> str:
    """`--a_b=c` -> `--a-b=c`; `-O3` -> `--optimization-level=3`; values stay untouched."""
    if arg.startswith("--"):
        name, equals, value = arg.partition("=")
        head, dot, rest = name.partition(".")
        return head.replace("_", "-") + dot + rest + equals + value
    if re.fullmatch(r"-O\.?\d", arg):
        return f"--optimization-level={arg[-1]}"
    return arg


def _expand_config(parser: argparse.ArgumentParser, args: list[str]) -> list[str]:
    """Put the flags of `--config FILE` before the others, so that the command line wins. Space form only."""
    if "--config" not in args:
        return args
    at = args.index("--config")
    if at + 1 >= len(args):
        parser.error("argument --config: expected one argument")
    try:
        content = yaml.safe_load(Path(args[at + 1]).read_text())
    except (OSError, yaml.YAMLError) as error:
        parser.error(f"argument --config: {error}")
    if not isinstance(content, dict):
        parser.error(f"argument --config: {args[at + 1]} holds no mapping of flags")
    flags: list[str] = []
    for key, value in content.items():
        name = "--" + str(key).replace("_", "-")
        if isinstance(value, bool):
            flags.append(name if value else "--no-" + name[2:])
        elif isinstance(value, list):
            flags += [name, *map(str, value)]
        else:
            flags += [name, json.dumps(value) if isinstance(value, dict) else str(value)]
    rest = args[:at] + args[at + 2 :]
    model = rest[:1] if rest and not rest[0].startswith("-") else []  # first, or a list flag would swallow it
    return [*model, *flags, *rest[len(model) :]]


def _fold_dotted(args: list[str]) -> list[str]:
    """Turn `--x.y 5` into `--x '{"y": 5}'`, merged with an `--x '{...}'` before it as vLLM does."""
    result: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    index = 0
    while index < len(args):
        name, equals, value = args[index].partition("=")
        index += 1
        if not (name.startswith("--") and "." in name):
            result.append(args[index - 1])
            continue
        if not equals and index < len(args) and not args[index].startswith("--"):
            value, index = args[index], index + 1
        head, _, path = name.partition(".")
        target = objects.setdefault(head, {})
        *parents, leaf = path.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = _json_or_text(value)
    for head, content in objects.items():
        result += [f"{head}={json.dumps(content)}"]
    return result


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return value


def _human_int(text: str) -> int:
    """`8192`, `8k` (thousands) or `8K` (1024s), as vLLM reads max-model-len and max-num-batched-tokens."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", text)
    if match:
        return int(float(match[1]) * SUFFIXES[match[2]])
    return _positive_int(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to json: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object")
    return value


def _to_flags(namespace: argparse.Namespace, parser: argparse.ArgumentParser) -> ServerFlags:
    model = namespace.model_tag or namespace.model
    if not model:
        parser.error("a model is needed: `serve MODEL` or `--model MODEL`")
    block_size = namespace.block_size or 16
    by_memory = int(KV_TOKENS_PER_UTILIZATION * namespace.gpu_memory_utilization) // block_size
    _check_combination(namespace, by_memory, block_size)
    limits = EngineConfig(
        num_gpu_blocks=namespace.num_gpu_blocks_override or by_memory,
        max_num_seqs=namespace.max_num_seqs,
        max_num_batched_tokens=namespace.max_num_batched_tokens,
        block_size=block_size,
        max_model_len=namespace.max_model_len,
        enable_prefix_caching=namespace.enable_prefix_caching,
        watermark=namespace.watermark,
        max_num_active_seqs=namespace.max_num_active_seqs,
        reserve_full_prompt=namespace.scheduler_reserve_full_isl,
        enable_chunked_prefill=namespace.enable_chunked_prefill,
        long_prefill_token_threshold=namespace.long_prefill_token_threshold or 0,
        policy=namespace.scheduling_policy,
        async_scheduling=namespace.async_scheduling,
        max_num_queued_reqs=namespace.max_num_queued_reqs,
        max_num_queued_tokens=namespace.max_num_queued_tokens,
    )
    values = vars(namespace)
    known = {name.replace("-", "_") for name in (*IGNORED_VALUE_FLAGS, *IGNORED_LIST_FLAGS, *IGNORED_SWITCHES)}
    return ServerFlags(
        model=model,
        served_model_names=tuple(namespace.served_model_name or [model]),
        host=namespace.host,
        port=namespace.port,
        limits=limits,
        max_new_tokens=_max_new_tokens(namespace.override_generation_config),
        shutdown_timeout_seconds=namespace.shutdown_timeout,
        log_stats=not namespace.disable_log_stats,
        gpu_memory_utilization=namespace.gpu_memory_utilization,
        num_gpu_blocks_override=namespace.num_gpu_blocks_override,
        middleware=tuple(namespace.middleware),
        ignored=tuple(sorted(name for name in values if name in known)),
        values=_effective_values(values, limits),
    )


def _effective_values(values: dict[str, Any], limits: EngineConfig) -> dict[str, Any]:
    """Flag values with defaults filled in, for EMULATE_CRASH_IF."""
    filled = {field.name: getattr(limits, field.name) for field in fields(EngineConfig)}
    return {**values, **filled, "max_num_active_seqs": limits.active_limit}


def _max_new_tokens(generation_config: dict[str, Any]) -> int | None:
    """Only `max_new_tokens` has an effect; vLLM ignores `max_tokens` here without a word, and so do we."""
    value = generation_config.get("max_new_tokens")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        _refuse(f"max_new_tokens in --override-generation-config must be at least 1, got {value!r}.")
    return value


def _check_combination(given: argparse.Namespace, by_memory: int, block_size: int) -> None:
    """StartupError for what vLLM's own configuration refuses, in its words."""
    batched, seqs, length = given.max_num_batched_tokens, given.max_num_seqs, given.max_model_len
    if batched < seqs:
        _refuse(f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs}).")
    if not given.enable_chunked_prefill and batched < length:
        _refuse(f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({length}) without chunked prefill.")
    if given.max_num_active_seqs is not None and given.max_num_active_seqs > seqs:
        _refuse(f"max_num_active_seqs ({given.max_num_active_seqs}) must not be above max_num_seqs ({seqs}).")
    if not 0 < given.gpu_memory_utilization <= 1:
        _refuse(f"GPU memory utilization must be in (0, 1]. Got {given.gpu_memory_utilization}.")
    if not 0 <= given.watermark < 1:
        _refuse(f"watermark must be in [0, 1). Got {given.watermark}.")
    if given.num_gpu_blocks_override is None and by_memory * block_size < length:
        _refuse(
            f"To serve at least one request with the models's max seq len ({length}), more KV cache memory is "
            f"needed than available ({by_memory * block_size} tokens). Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    if (given.num_gpu_blocks_override or by_memory) < 2:
        _refuse("num_gpu_blocks must be at least 2: one block is reserved.")


def _refuse(message: str) -> NoReturn:
    raise StartupError(f"Value error, {message}")
