"""`--config`: the spelling that is never read, and what is lost of the file.

Source: vLLM 0.32 `FlexibleArgumentParser.load_config_file`: the flag is looked up as the word `--config`, only .yaml
and .yml are read, and a false boolean becomes `--no-KEY` only if the parser knows that: the outer one of `vllm serve`
knows none, the module's knows names with dashes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target, mapping
from trimtab.manifests.mounted import mounted_files


def never_read(target: Target, options: Options) -> Iterator[Hit]:
    for flag in target.flags:
        if flag.name == "--config" and flag.joined:
            yield target.at(flag, "--config=FILE is accepted and never read; none of the file's settings count.")


def extension(target: Target, options: Options) -> Iterator[Hit]:
    flag = target.flag("--config")
    if flag and flag.value and not flag.joined and not flag.value.endswith((".yaml", ".yml")):
        yield target.at(
            flag, f"--config reads only .yaml and .yml, not {posixpath.basename(flag.value)[:60]}: vLLM stops."
        )


def dropped(target: Target, options: Options) -> Iterator[Hit]:
    """Only where the file's ConfigMap is among the files given."""
    flag = target.flag("--config")
    if flag is None or flag.joined or not flag.value:
        return
    for key, value in _config(target, flag.value).items():
        if value is False and not (target.program == "module" and "_" not in str(key)):
            dashed = str(key).replace("_", "-")
            yield target.at(
                flag, f"{key}: false in the file of --config is dropped, so vLLM's default stays.",
                fix=f"Give --no-{dashed} on the command line.",
            )  # fmt: skip


def _config(target: Target, path: str) -> Mapping[str, Any]:
    """The file's content, {} if it is out of sight."""
    name = str(target.body.get("name") or "") or None
    text = mounted_files(target.workload, target.neighbours.config_maps, name).get(posixpath.normpath(path), "")
    try:
        return mapping(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
