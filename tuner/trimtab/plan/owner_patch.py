"""The change in the object that a Deployment's controller reads, as JSON-patch operations: KServe's InferenceService
and LLMInferenceService, the vLLM production stack's VLLMRuntime. Pure.

Each item that is replaced is tested first. What the controller will make of the new object is worked out and read
again; unless it is what was wanted there is no patch but a reason. Hazard: a controller that joins lists in another
way than its version of today would end in other flags; then vLLM's last flag wins, which is ours.
Sources: kserve/kserve pkg/controller/v1beta1/inferenceservice/utils (MergeRuntimeContainers: args of the runtime, then
of the model), pkg/controller/v1alpha2/llmisvc (config_merge*.go: args replace the preset's, or are appended by an
annotation); vllm-project/production-stack operator/internal/controller/vllmruntime_controller.go.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trimtab.engine.command import generation_rest, parse_template, scan_command
from trimtab.engine.locate import locate
from trimtab.engine.ownership import group_of
from trimtab.engine.patch import list_operations, value_operations, variables
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import SETTINGS, Value
from trimtab.errors import EngineError, InputError

Json = Mapping[str, Any]
Operation = dict[str, Any]
Changes = Mapping[str, Value | None]
#: fields of a VLLMRuntime that become a flag
RUNTIME_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "max_num_seqs": ("model", "maxNumSeqs"),
    "enable_prefix_caching": ("vllmConfig", "enablePrefixCaching"),
}
#: text that KServe fills in, such as {{.Name}}
_FILLED_IN: Final = re.compile(r"\{\{.*?\}\}")
_SEVERAL: Final = "several pods make one engine there, so its settings are not Trimtab's to change"


@dataclass(frozen=True)
class OwnerPatch:
    """operations: of the owner's object. note: what to know before they are applied. problem: why there are none."""

    operations: tuple[Operation, ...] = ()
    note: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Seen:
    """The Deployment's pod template as it is and as it should be, and the engine's container in both.

    changes: the settings between them, by name; None is back to vLLM's default. version: of the engine, if known.
    """

    template: Json = field(repr=False)
    wanted: Json = field(repr=False)
    old: Json = field(repr=False)
    new: Json = field(repr=False)
    changes: Changes
    version: str | None
    prefill: bool = False


class _NoPlaceError(Exception):
    """The owner's object has no place for the change; the text says why."""


def owner_patch(owner: Json, seen: Seen) -> OwnerPatch:
    """The change for the object `owner`, as read from the API server."""
    shape = SHAPES.get((group_of(str(owner.get("apiVersion", ""))), str(owner.get("kind", ""))))
    if shape is None:
        return OwnerPatch(problem="Trimtab does not know where its spec holds the engine's flags")
    spec = owner.get("spec")
    try:
        operations, note = shape(spec if isinstance(spec, Mapping) else {}, seen)
    except (_NoPlaceError, EngineError, InputError) as error:
        return OwnerPatch(problem=str(error))
    return OwnerPatch(tuple(operations), note)


def command(resource: str, name: str, namespace: str, operations: Sequence[Operation]) -> str:
    """One `kubectl patch` line. resource: plural and group, such as inferenceservices.serving.kserve.io."""
    patch = json.dumps(operations, separators=(",", ":")).replace("'", "\\u0027")
    where = f"{shlex.quote(name)} --namespace {shlex.quote(namespace)}"
    return f"kubectl patch {resource} {where} --type=json -p {shlex.quote(patch)}"


# --- KServe -----------------------------------------------------------------------------------------------------------
def _inference_service(spec: Json, seen: Seen) -> tuple[list[Operation], str]:
    predictor = mapping(spec, "predictor")
    if predictor.get("workerSpec") is not None:
        raise _NoPlaceError(_SEVERAL)
    if isinstance(predictor.get("model"), Mapping):
        return _container("/spec/predictor/model", predictor["model"], seen, absent="append"), ""
    at = _index(predictor.get("containers"), str(seen.old.get("name")))
    if at is None:
        raise _NoPlaceError("its predictor has neither model nor containers: a framework's own field is not known")
    return _container(f"/spec/predictor/containers/{at}", predictor["containers"][at], seen, absent="replace"), ""


def _llm_inference_service(spec: Json, seen: Seen) -> tuple[list[Operation], str]:
    part, path = (mapping(spec, "prefill"), "/spec/prefill") if seen.prefill else (spec, "/spec")
    if part.get("worker") is not None:
        raise _NoPlaceError(_SEVERAL)
    name = str(seen.old.get("name"))
    template = part.get("template")
    if not isinstance(template, Mapping):
        added = _whole(seen)
        return [{"op": "add", "path": f"{path}/template", "value": {"containers": [{"name": name, **added}]}}], _PRESET
    containers = template.get("containers")
    at = _index(containers, name, alone=False)
    if at is None:
        body = {"name": name, **_whole(seen)}
        operation: Operation = {"op": "add", "path": f"{path}/template/containers/-", "value": body}
        if not containers:
            operation = {**operation, "path": f"{path}/template/containers", "value": [body]}
        return [operation], _PRESET
    own = template["containers"][at]
    note = _PRESET if not own.get("args") and not own.get("command") else ""
    return _container(f"{path}/template/containers/{at}", own, seen, absent="replace"), note


_PRESET: Final = (
    "The flags came from a preset (LLMInferenceServiceConfig); from then on the object's own list counts, and later "
    "changes of the preset's list do not reach it."
)


# --- the vLLM production stack's operator -----------------------------------------------------------------------------
def _vllm_runtime(spec: Json, seen: Seen) -> tuple[list[Operation], str]:
    config = mapping(spec, "vllmConfig")
    extra = [str(item) for item in config.get("extraArgs") or ()]
    fixed, before = stated(extra), parse_template(seen.template, str(seen.old.get("name"))).configuration()
    operations: list[Operation] = []
    rest: dict[str, Value | None] = {}
    for name, value in seen.changes.items():
        place = RUNTIME_FIELDS.get(name)
        if place is None or name in fixed:  # a flag in extraArgs stands behind the field's own and wins
            rest[name] = value
            continue
        if value is None:
            raise _NoPlaceError(f"its spec always sets {name}, so vLLM's default cannot be asked for")
        section, key = place
        found = mapping(spec, section).get(key)
        if found is not None and found != before.get(name):
            raise _NoPlaceError(f"spec.{section}.{key} differs from the Deployment's flag: it is being changed now")
        operations += value_operations(f"/spec/{section}/{key}", found, value)
    if rest:
        edited = flags(extra, rest, seen.version)
        operations += list_operations("/spec/vllmConfig/extraArgs", extra or None, edited)
    return operations, ""


def stated(items: Sequence[str]) -> set[str]:
    """Names of the settings that a list of flags sets."""
    configuration = parse_template(_alone(items), _ALONE).configuration()
    return {name for name in SETTINGS if configuration.get(name) is not None}


# --- one container ----------------------------------------------------------------------------------------------------
def _container(path: str, own: Json, seen: Seen, *, absent: Literal["append", "replace"]) -> list[Operation]:
    """The operations that change the owner's container. absent: what args are to a list that is not there: behind the
    controller's own, or instead of them.
    """
    operations: list[Operation] = []
    made = copy.deepcopy(dict(seen.old))
    for where in ("command", "args"):
        old, new = _texts(seen.old.get(where)), _texts(seen.new.get(where))
        if old == new:
            continue
        target, mine, edited = _edited(own, where, old, new, seen, absent)
        operations += list_operations(f"{path}/{target}", mine, edited)
        if target == where:
            keep = len(old) - len(mine or ()) if mine is not None or absent == "append" else 0
            made[where] = [*old[:keep], *_filled(edited, mine, old[keep:])]
        else:
            made[target] = [*_texts(seen.old.get(target)), *edited]
    operations += _environment(path, own, seen)
    made["env"] = seen.new.get("env")
    _check(made, seen)
    return operations


def _edited(
    own: Json, where: str, old: list[str], new: list[str], seen: Seen, absent: str
) -> tuple[str, list[str] | None, list[str]]:
    """Which of the owner's lists changes, what it is (None: absent) and what it becomes."""
    mine = _texts(own[where]) if own.get(where) else None
    if mine == old:
        return where, mine, new
    if where == "args" and mine is not None and _is_end(mine, old, absent):
        return where, mine, flags(mine, seen.changes, seen.version)
    if where == "args" and mine is None:
        return where, None, flags([], seen.changes, seen.version) if absent == "append" else new
    if where == "command" and mine is None and not own.get("args") and new[: len(old)] == old:
        return "args", None, new[len(old) :]
    raise _NoPlaceError(f"its {where} are not those of the Deployment: somebody changes them on the way")


def _is_end(mine: list[str], old: list[str], absent: str) -> bool:
    """Whether the owner's list is the Deployment's, or the end of it; text that KServe fills in may differ."""
    if len(mine) > len(old) or (absent == "replace" and len(mine) < len(old) and mine != old[-len(mine) :]):
        return False
    return all(a == b or _FILLED_IN.search(a) for a, b in zip(mine, old[-len(mine) :], strict=True))


def _filled(edited: list[str], mine: list[str] | None, old: list[str]) -> list[str]:
    """The edited list as the controller will write it: what it filled in before it fills in again."""
    known = dict(zip(mine or (), old, strict=False))
    return [known.get(item, item) if _FILLED_IN.search(item) else item for item in edited]


def _environment(path: str, own: Json, seen: Seen) -> list[Operation]:
    """Variables that hold flags; one that the owner's object does not name yet is added, and wins."""
    operations: list[Operation] = []
    entries = own.get("env") or []
    for _, old, new in variables(seen.old, seen.new):
        at = next((i for i, e in enumerate(entries) if e.get("name") == old["name"]), None)
        if at is not None:
            operations += value_operations(f"{path}/env/{at}/value", old["value"], new["value"])
            continue
        body = {"name": new["name"], "value": new["value"]}
        whole = {"op": "add", "path": f"{path}/env", "value": [body]}
        operations.append({"op": "add", "path": f"{path}/env/-", "value": body} if entries else whole)
    return operations


def _whole(seen: Seen) -> dict[str, Any]:
    """What an entry for the container must say where the owner's object has none: it is merged into the preset's."""
    added: dict[str, Any] = {}
    old, new = _texts(seen.old.get("args")), _texts(seen.new.get("args"))
    if old != new:
        added["args"] = new
    command_before, command_after = _texts(seen.old.get("command")), _texts(seen.new.get("command"))
    if command_before != command_after:
        if command_after[: len(command_before)] != command_before or old:
            raise _NoPlaceError("the preset's command holds the flags: change the preset")
        added["args"] = command_after[len(command_before) :]
    env = [{"name": n["name"], "value": n["value"]} for _, _, n in variables(seen.old, seen.new)]
    return {**added, "env": env} if env else added


def _check(made: Json, seen: Seen) -> None:
    """Whether the container that the controller will write has the settings that were wanted."""
    name = str(made["name"])
    template = copy.deepcopy(dict(seen.template))
    for group in ("containers", "initContainers"):
        bodies = template["spec"].get(group)
        if bodies:
            shown = {k: v for k, v in made.items() if v is not None}
            template["spec"][group] = [shown if body.get("name") == name else body for body in bodies]
    if _read(template, name) != _read(seen.wanted, name):
        raise _NoPlaceError("the change, read again as the controller would write it, gives other settings")


def _read(template: Json, name: str) -> tuple[object, ...]:
    """The settings on a command line, and what stands beside them in the same JSON value."""
    flags_found = scan_command(locate(template, name)).flags
    return parse_template(template, name).configuration(), generation_rest(flags_found)


_ALONE: Final = "engine"


def _alone(items: Sequence[str]) -> dict[str, Any]:
    """A pod template for a list of flags that stands alone; the model is named, as vLLM wants it."""
    return {"spec": {"containers": [{"name": _ALONE, "args": ["--model=model", *items]}]}}


def flags(items: Sequence[str], changes: Changes, version: str | None) -> list[str]:
    """A list of flags with the changes; the errors of `rewrite`."""
    written = rewrite(_alone(items), changes, _ALONE, version=version)
    return _texts(written["spec"]["containers"][0]["args"])[1:]


def _index(containers: object, name: str, *, alone: bool = True) -> int | None:
    """The container called so; with `alone` also the only one, which KServe renames."""
    bodies = containers if isinstance(containers, list) else []
    found = next((i for i, c in enumerate(bodies) if isinstance(c, Mapping) and c.get("name") == name), None)
    return 0 if found is None and alone and len(bodies) == 1 else found


def mapping(body: Json, key: str) -> Json:
    value = body.get(key)
    return value if isinstance(value, Mapping) else {}


def _texts(items: object) -> list[str]:
    return [str(item) for item in items] if isinstance(items, list) else []


Shape = Callable[[Json, Seen], tuple[list[Operation], str]]
#: (API group, kind) -> how its spec becomes the container
SHAPES: Final[Mapping[tuple[str, str], Shape]] = {
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("serving.kserve.io", "LLMInferenceService"): _llm_inference_service,
    ("production-stack.vllm.ai", "VLLMRuntime"): _vllm_runtime,
}
