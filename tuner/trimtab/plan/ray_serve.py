"""The change in a RayService: `engine_kwargs` of Ray Serve LLM inside the text `spec.serveConfigV2`. Pure.

Ray's pods belong to no Deployment, so there is nothing to watch or to compare: this edits a manifest, by `trimtab
rewrite -o patch`. Every other line of the text stays. The result is loaded and compared with what was wanted.
Source: ray.serve.llm, LLMConfig (model_loading_config, engine_kwargs); kuberay ray-service.llm-serve.yaml.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from trimtab.engine.settings import Value
from trimtab.errors import InputError

Json = Mapping[str, Any]
_FIELD: Final = "spec.serveConfigV2"
_KEY: Final = "engine_kwargs"


def edited(text: str, changes: Mapping[str, Value | None], model: str | None = None) -> str:
    """`text` with the settings in engine_kwargs of the one LLM config, or of the one whose model_id is `model`.

    Raises `InputError` where the text holds none, more than one, or cannot be edited line by line.
    """
    if "max_new_tokens" in changes:
        raise InputError(_FIELD, "max_new_tokens is no engine argument of Ray Serve", "Change the other settings.")
    wanted = yaml.safe_load(text)
    found = list(_configs(wanted))
    picked = [c for c in found if model is None or _model_of(c) == model]
    if len(picked) != 1:
        names = ", ".join(sorted(_model_of(c) for c in found)) or "none"
        problem = f"{len(picked)} LLM configs match; there are: {names}"
        raise InputError(_FIELD, problem, "Name one model_id with --container.")
    at = next(i for i, c in enumerate(found) if c is picked[0])
    before = copy.deepcopy(picked[0].get(_KEY) or {})
    picked[0][_KEY] = {**{k: v for k, v in before.items() if changes.get(k, 0) is not None},
                       **{k: v for k, v in changes.items() if v is not None}}  # fmt: skip
    out = text
    for name, value in changes.items():
        out = _with(out, at, name, value)
    if yaml.safe_load(out) != wanted:
        raise InputError(_FIELD, "it is written in a way that cannot be edited in place", "Set engine_kwargs by hand.")
    return out


def _configs(body: Any) -> Iterator[dict[str, Any]]:
    applications = body.get("applications") if isinstance(body, dict) else None
    for application in applications if isinstance(applications, list) else ():
        args = application.get("args") if isinstance(application, dict) else None
        configs = args.get("llm_configs") if isinstance(args, dict) else None
        yield from (c for c in configs if isinstance(c, dict)) if isinstance(configs, list) else ()


def _model_of(config: Json) -> str:
    loading = config.get("model_loading_config")
    return str(loading.get("model_id", "")) if isinstance(loading, Mapping) else ""


def _nodes(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """The LLM configs of the text, in order, with their places."""
    applications = _child(root, "applications")
    for application in applications.value if isinstance(applications, yaml.SequenceNode) else ():
        args = _child(application, "args")
        configs = _child(args, "llm_configs") if args is not None else None
        for config in configs.value if isinstance(configs, yaml.SequenceNode) else ():
            if isinstance(config, yaml.MappingNode):
                yield config


def _child(node: yaml.Node, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if name.value == key), None)


def _with(text: str, at: int, name: str, value: Value | None) -> str:
    """One setting put in, replaced or taken out."""
    root = yaml.compose(text)
    assert root is not None  # it was loaded
    config = list(_nodes(root))[at]
    kwargs = _child(config, _KEY)
    line = f"{name}: {str(value).lower() if isinstance(value, bool) else value}"
    found = None if kwargs is None else _child(kwargs, name)
    if value is None:
        return text if kwargs is None or found is None else _without(text, kwargs, name)
    if kwargs is None:
        first = config.value[0][0].start_mark
        lines = f"{_KEY}:\n{_pad(first.column + 2)}{line}\n{_pad(first.column)}"
        return text[: first.index] + lines + text[first.index :]
    if found is not None:
        return text[: found.start_mark.index] + line.partition(": ")[2] + text[found.end_mark.index :]
    if not isinstance(kwargs, yaml.MappingNode) or not kwargs.value:  # nothing in it yet
        return f"{text[: kwargs.start_mark.index]}{{{line}}}{text[kwargs.end_mark.index :]}"
    first = kwargs.value[0][0].start_mark
    gap = ", " if kwargs.flow_style else f"\n{_pad(first.column)}"
    return text[: first.index] + line + gap + text[first.index :]


def _without(text: str, kwargs: yaml.Node, name: str) -> str:
    """The line of one key taken out; in {...} or as the only key it stays, and the caller's comparison refuses."""
    lines = text.splitlines(keepends=True)
    line = next(key.start_mark.line for key, _ in kwargs.value if key.value == name)
    alone = len(kwargs.value) == 1 or bool(getattr(kwargs, "flow_style", False))
    return text if alone else "".join(lines[:line] + lines[line + 1 :])


def _pad(columns: int) -> str:
    return " " * columns
