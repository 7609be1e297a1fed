"""Runs inside vLLM's venv: vLLM's own argument parsers; one JSON text in a line, one out.

    python vllm_parser.py PATH_FOR_CONFIG_FILES

A list of {"argv": [...], "form": "serve" | "module", "config": text or null, "names": [dest]} gives a list of
{"values": {dest: value}, "refused": [dest]} or {"error": [text]}. Only flags that were given have a value; `refused`
are values that vLLM's config classes reject. {"dump": true} gives every server flag. {"limits": [[dest, value], ...]}
gives whether the config classes take each. {"defaults": model} gives what an engine without flags runs with.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

from pydantic import TypeAdapter, ValidationError
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from yaml import YAMLError

CONFIGS = (SchedulerConfig, CacheConfig, ModelConfig)
#: the argument's name where it is not the field's
FIELDS = {"scheduling_policy": "policy", "kv_cache_dtype": "cache_dtype"}


def field_of(dest: str) -> Any:
    """Pydantic's field behind an argument, None if there is none."""
    name = FIELDS.get(dest, dest)
    return next((c.__pydantic_fields__[name] for c in CONFIGS if name in c.__pydantic_fields__), None)


def accepts(dest: str, value: Any) -> bool:
    """Whether the config class takes the value for this field alone."""
    field = field_of(dest)
    if field is None or field.annotation is None:
        return True
    try:
        TypeAdapter(
            Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        ).validate_python(value)
    except ValidationError:
        return False
    return True


def parsers() -> dict[str, FlexibleArgumentParser]:
    """As `vllm serve` and `python -m vllm.entrypoints.openai.api_server` build them."""
    module = make_arg_parser(FlexibleArgumentParser())
    top = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(top.add_subparsers(required=False, dest="subparser"))
    return {"serve": top, "module": module}


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The server's actions, also behind a subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return actions(action.choices["serve"])
    return parser._actions


def dump(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    return [
        {
            "options": a.option_strings,
            "dest": a.dest,
            "nargs": a.nargs,
            "action": type(a).__name__,
            "type": getattr(a.type, "__name__", str(a.type)),
            "choices": [str(c) for c in a.choices] if a.choices else None,
            "default": a.default if isinstance(a.default, int | float | str | None) else repr(a.default),
        }
        for a in actions(parser)
    ]


def resolved(model: str) -> dict[str, Any]:
    """What an API server without any of the flags runs with on this machine."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        args = AsyncEngineArgs(model=model, load_format="dummy", enforce_eager=True)
        config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    found = {**vars(config.scheduler_config), **vars(config.cache_config)}
    return {dest: found.get(FIELDS.get(dest, dest)) for dest in (*FIELDS, *found)}


def answer(parser: FlexibleArgumentParser, request: dict[str, Any], path: Path) -> dict[str, Any]:
    if request["config"] is not None:
        path.write_text(request["config"])
    argv = [str(path) if word == "@CONFIG@" else word for word in request["argv"]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            namespace = vars(parser.parse_args(["serve", *argv] if request["form"] == "serve" else argv))
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1:] or ["exit"]}
    except (ValueError, AssertionError, TypeError, OSError, IndexError, AttributeError, YAMLError) as error:
        return {"error": [f"{type(error).__name__}: {error}"]}
    given = {k: v for k, v in namespace.items() if k in request["names"]}
    return {"values": given, "refused": [k for k, v in given.items() if not accepts(k, v)]}


def main() -> None:
    path = Path(sys.argv[1])
    made = parsers()
    flags = dump(made["module"])
    for parser in made.values():
        for action in actions(parser):
            action.default = argparse.SUPPRESS
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            reply: Any = [answer(made[one["form"]], one, path) for one in request]
        elif "dump" in request:
            reply = {"flags": flags}
        elif "defaults" in request:
            reply = resolved(request["defaults"])
        elif "limits" in request:
            reply = [accepts(name, value) for name, value in request["limits"]]
        else:
            raise ValueError(f"unknown request {line}")
        sys.__stdout__.write(json.dumps(reply, default=repr) + "\n")
        sys.__stdout__.flush()


if __name__ == "__main__":
    main()
