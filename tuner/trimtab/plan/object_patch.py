"""The change in a manifest of a custom resource that runs vLLM, without its Deployment at hand: KServe, the vLLM
production stack, Ray Serve. What `trimtab rewrite -o patch` prints. Pure; see `owner_patch` for the live way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from trimtab.engine.ownership import group_of
from trimtab.engine.patch import list_operations, value_operations, variables
from trimtab.engine.rewrite import rewrite
from trimtab.errors import InputError
from trimtab.plan.owner_patch import RUNTIME_FIELDS, Changes, Operation, flags, mapping, stated
from trimtab.plan.ray_serve import edited

Json = Mapping[str, Any]
_NAME: Final = "engine"


def object_patch(body: Json, changes: Changes, container: str | None = None) -> list[Operation] | None:
    """JSON-patch operations for the object; None where Trimtab does not know its kind.

    container: which of several containers, or of several models of a RayService. Raises `InputError` where the object
    has no place for the change, and what `rewrite` raises.
    """
    shape = _SHAPES.get((group_of(str(body.get("apiVersion", ""))), str(body.get("kind", ""))))
    return None if shape is None else shape(mapping(body, "spec"), changes, container)


def _inference_service(spec: Json, changes: Changes, container: str | None) -> list[Operation]:
    predictor = mapping(spec, "predictor")
    if predictor.get("workerSpec") is not None:
        raise InputError("spec.predictor.workerSpec", "several pods make one engine", "Change it by hand.")
    model = predictor.get("model")
    if isinstance(model, Mapping) and not model.get("command"):  # its args go behind the runtime's, and win
        args = model.get("args") or None
        return list_operations("/spec/predictor/model/args", args, flags(args or [], changes, None))
    if isinstance(model, Mapping):
        return _container("/spec/predictor/model", model, changes)
    at, body = _picked(predictor.get("containers"), container, "spec.predictor")
    return _container(f"/spec/predictor/containers/{at}", body, changes)


def _llm_inference_service(spec: Json, changes: Changes, container: str | None) -> list[Operation]:
    if spec.get("worker") is not None:
        raise InputError("spec.worker", "several pods make one engine", "Change it by hand.")
    at, body = _picked(mapping(spec, "template").get("containers"), container or "main", "spec.template")
    if not body.get("args") and not body.get("command"):
        fix = "Write the whole list there, or let a VLLMTuner look at the Deployment: it knows the list."
        raise InputError(f"spec.template.containers[{at}].args", "the flags are in a preset that is not here", fix)
    return _container(f"/spec/template/containers/{at}", body, changes)


def _vllm_runtime(spec: Json, changes: Changes, container: str | None) -> list[Operation]:
    del container
    extra = [str(item) for item in mapping(spec, "vllmConfig").get("extraArgs") or ()]
    fixed, operations, rest = stated(extra), list[Operation](), dict(changes)
    for name, (section, key) in RUNTIME_FIELDS.items():
        value = changes.get(name)
        if value is None or name in fixed:
            continue
        del rest[name]
        operations += value_operations(f"/spec/{section}/{key}", mapping(spec, section).get(key), value)
    if rest:
        operations += list_operations("/spec/vllmConfig/extraArgs", extra or None, flags(extra, rest, None))
    return operations


def _ray_service(spec: Json, changes: Changes, container: str | None) -> list[Operation]:
    text = spec.get("serveConfigV2")
    if not isinstance(text, str):
        raise InputError("spec.serveConfigV2", "is no text", "Give a RayService that serves an LLM.")
    after = edited(text, changes, container)
    return [] if after == text else value_operations("/spec/serveConfigV2", text, after)


def _picked(containers: object, name: str | None, where: str) -> tuple[int, Json]:
    bodies = [c for c in containers if isinstance(c, Mapping)] if isinstance(containers, list) else []
    found = [(i, c) for i, c in enumerate(bodies) if name is None or c.get("name") == name or len(bodies) == 1]
    if len(found) != 1:
        known = ", ".join(str(c.get("name")) for c in bodies) or "none"
        raise InputError(f"{where}.containers", f"there are: {known}", "Name the one that runs vLLM with --container.")
    return found[0]


def _container(path: str, body: Json, changes: Changes) -> list[Operation]:
    """The operations for a container that has its own command line."""
    named = {**body, "name": _NAME}
    written = rewrite({"spec": {"containers": [named]}}, changes, _NAME)["spec"]["containers"][0]
    operations: list[Operation] = []
    for where in ("command", "args"):
        operations += list_operations(f"{path}/{where}", body.get(where), written.get(where))
    for at, old, new in variables(named, written):
        operations += value_operations(f"{path}/env/{at}/value", old["value"], new["value"])
    return operations


_SHAPES: Final[Mapping[tuple[str, str], Callable[[Json, Changes, str | None], list[Operation]]]] = {
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("serving.kserve.io", "LLMInferenceService"): _llm_inference_service,
    ("production-stack.vllm.ai", "VLLMRuntime"): _vllm_runtime,
    ("ray.io", "RayService"): _ray_service,
}
