"""What the commands share: how errors end, where reports go, how a model's config is read. Light to import."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from rich.console import Console

from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError, TrimtabError

REPORT_COLUMNS = 120


def report_console(*, to_stderr: bool) -> Console:
    """Off a terminal (a file, a CI log) tables get a width of their own: rich's 80 columns would break words."""
    console = Console(stderr=to_stderr)
    return console if console.is_terminal else Console(stderr=to_stderr, width=REPORT_COLUMNS)


class errors:
    """Trimtab's errors end with a message and a hint: code 2 for bad input, 1 for anything else."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, TrimtabError):
            return
        print(f"error: {error.told}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, InputError) else 1)


def read_model_config(path: Path, field: str) -> ModelConfig:
    """A model's Hugging Face config.json, or the one in a folder. `field` is the option or argument that named it."""
    file = path / "config.json" if path.is_dir() else path
    try:
        return ModelConfig.from_hf(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        problem = f"{file} cannot be read ({error.strerror})"
        raise InputError(field, problem, "Name the model's Hugging Face config.json.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(field, f"{file} is no JSON", "Give the model's Hugging Face config.json.") from error
