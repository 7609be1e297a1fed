"""What `--config file.yaml` adds to a command line, as vLLM inserts it: behind the model, before all other flags.

Source: vLLM 0.32 `FlexibleArgumentParser._pull_args_from_config` and `load_config_file`; seen on the real parser:
`--config=f` is never read, `x: false` is dropped under `vllm serve` and under both ways if spelt with underscores.
Hazard: the file is shared with the control and other Deployments, so its words are read and never edited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import yaml

from trimtab.engine.flag_table import KINDS
from trimtab.engine.words import Word
from trimtab.errors import RewriteRefused

_HINT = "Correct the ConfigMap behind --config: a mapping from flag names to values, in a .yaml or .yml file."


def config_path(words: Sequence[Word], first: int) -> str | None:
    """The path behind `--config`, None if there is none or it is out of sight."""
    for word, following in zip(words[first:], words[first + 1 :], strict=False):
        if word.text == "--config":
            return None if following.opaque else following.text
    return None


def config_words(text: str, path: str, program: Literal["serve", "module"]) -> tuple[Word, ...]:
    """The words that the file stands for. Raises `RewriteRefused` if vLLM could not read it."""
    if not path.endswith((".yaml", ".yml")):
        raise _bad(path, "is not called .yaml or .yml")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _bad(path, "is not YAML") from None
    if not isinstance(content, Mapping):
        raise _bad(path, "is not a mapping")
    items = [item for key, value in content.items() for item in _items(str(key), value, program)]
    return tuple(Word(item, "file", 0, item) for item in items)


def insert_at(words: Sequence[Word], first: int, program: Literal["serve", "module"]) -> int:
    """Where vLLM puts them: first under `python -m`, behind the model of `vllm serve MODEL`."""
    model = program == "serve" and len(words) > first and not words[first].text.startswith("-")
    return first + 1 if model else first


def _items(key: str, value: object, program: Literal["serve", "module"]) -> Iterator[str]:
    if isinstance(value, bool):
        if value:
            yield f"--{key}"
        elif program == "module" and KINDS.get(f"--{key}") == "boolean":
            yield f"--no-{key}"
    elif isinstance(value, list):
        if value:
            yield f"--{key}"
            yield from (str(item) for item in value)
    else:
        yield f"--{key}"
        yield json.dumps(value) if isinstance(value, dict) else str(value)


def _bad(path: str, problem: str) -> RewriteRefused:
    return RewriteRefused(f"the file behind --config, {path}, {problem}", hint=_HINT, code="ConfigFile")
