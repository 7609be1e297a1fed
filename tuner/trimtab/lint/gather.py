"""Documents to targets: every container that runs vLLM, also where Trimtab would not edit it.

What a custom resource shows as a pod spec (LeaderWorkerSet, KServe, Ray) counts too: a trap is one, whoever makes the
pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trimtab.engine.command import EngineCommand, parse_template
from trimtab.engine.locate import Files, locate
from trimtab.errors import EngineError, EngineNotFound, InputError, RewriteRefused, TrimtabError
from trimtab.lint.finding import Options, Path
from trimtab.lint.target import Neighbours, Target, mapping
from trimtab.lint.view import tolerant_command, view
from trimtab.manifests.documents import Document
from trimtab.manifests.mounted import mounted_files
from trimtab.manifests.workload import Inventory, Unreadable, Workload


def objects(data: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The objects of a document with their paths, those inside a List too."""
    if not isinstance(data, Mapping):
        return
    items = data.get("items")
    if str(data.get("kind", "")).endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            yield from objects(item, (*path, "items", index))
    else:
        yield path, data


def neighbours_of(documents: Sequence[Document], found: Inventory) -> Neighbours:
    return Neighbours(found.config_maps, frozenset(_services(documents)))


def _services(documents: Sequence[Document]) -> Iterator[tuple[str, str]]:
    for document in documents:
        for _, body in objects(document.data):
            if body.get("kind") == "Service":
                metadata = mapping(body.get("metadata"))
                yield str(metadata.get("namespace") or ""), str(metadata.get("name"))


def targets_of(workload: Workload, neighbours: Neighbours, options: Options) -> Iterator[Target]:
    """The engines of an object that has a pod template."""
    data = workload.document.data
    root = next((p for p, b in objects(data) if b.get("metadata") is workload.metadata), ())
    yield from _in_pod(workload, root, (*workload.path, "spec"), neighbours, options)


def custom_root(custom: Unreadable) -> tuple[Path, Mapping[str, Any]]:
    """Where the custom resource is in its document, and what it holds."""
    found = [
        (path, body)
        for path, body in objects(custom.document.data)
        if body.get("kind") == custom.kind and str(mapping(body.get("metadata")).get("name")) == custom.name
    ]
    return found[0] if found else ((), mapping(custom.document.data))


def custom_targets(custom: Unreadable, neighbours: Neighbours, options: Options) -> Iterator[Target]:
    """The engines in pod specs anywhere in a custom resource; all are refused, because their owner makes the pods."""
    root, body = custom_root(custom)
    refusal = RewriteRefused(f"{custom.kind}: {custom.reason}", hint=custom.advice, code="SpecElsewhere")
    for path, pod in _pods(body, root, set()):
        workload = Workload(
            custom.kind, custom.api_version, custom.name, custom.namespace, path, {"spec": pod},
            mapping(body.get("metadata")), None, custom.document,
        )  # fmt: skip
        for target in _in_pod(workload, root, path, neighbours, options):
            yield replace(target, refusal=target.refusal or refusal, shape=None)


def _pods(value: Any, path: Path, walked: set[int]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every mapping with a list of containers, wherever it is; aliases are walked once."""
    if not isinstance(value, Mapping | list) or id(value) in walked:
        return
    walked.add(id(value))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _pods(item, (*path, index), walked)
        return
    if isinstance(value.get("containers"), list):
        yield path, value
    for key, item in value.items():
        yield from _pods(item, (*path, str(key)), walked)


def _in_pod(
    workload: Workload, root: Path, pod_path: Path, neighbours: Neighbours, options: Options
) -> Iterator[Target]:
    pod = mapping(workload.template.get("spec"))
    for path, body in _containers(pod, pod_path):
        blank = Target(
            workload, root, pod_path, path, pod, body, version=options.engine_version or _version(workload, body),
            neighbours=neighbours,
        )  # fmt: skip
        if (target := _read(blank)) is not None:
            yield target


def _containers(pod: Mapping[str, Any], pod_path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Containers and native sidecars: other init containers end before anything serves."""
    for group in ("containers", "initContainers"):
        bodies = pod.get(group)
        for index, body in enumerate(bodies if isinstance(bodies, list) else []):
            if isinstance(body, Mapping) and (group == "containers" or body.get("restartPolicy") == "Always"):
                yield (*pod_path, group, index), body


def _read(blank: Target) -> Target | None:
    """The target with its command line; None if the container runs no engine."""
    unquoted, body = _quoted(blank)
    files = mounted_files(blank.workload, blank.neighbours.config_maps, str(body.get("name") or "") or None)
    alone = _template(blank.workload, body)
    target = replace(blank, body=body, unquoted=unquoted)
    try:
        located = locate(alone, files=files, tolerant=True)
    except RewriteRefused as error:
        return replace(target, refusal=error)
    except EngineNotFound:
        return None
    seen = view(located.words, located.first, target.version)
    command, refusal = _strict(alone, files)
    return replace(
        target,
        seen=seen,
        command=command or tolerant_command(located, seen),
        program=located.program,
        shape=located.shape,
        refusal=refusal,
    )


def _strict(template: Mapping[str, Any], files: Files) -> tuple[EngineCommand | None, TrimtabError | None]:
    """What Trimtab itself makes of it; a value that it would not change is no obstacle to reading the rest."""
    try:
        command = parse_template(template, files=files)
    except EngineError as refusal:
        return None, refusal
    try:
        command.configuration()
    except (RewriteRefused, InputError) as refusal:
        return command, refusal
    return command, None


def _quoted(blank: Target) -> tuple[tuple[Path, ...], Mapping[str, Any]]:
    """Paths of items that are no text, and the container with all items as text."""
    body, odd = dict(blank.body), []
    for key in ("command", "args"):
        items = body.get(key)
        if isinstance(items, list):
            odd += [blank.of_container(key, i) for i, item in enumerate(items) if not isinstance(item, str)]
            body[key] = [item if isinstance(item, str) else _text(item) for item in items]
    return tuple(odd), body if odd else blank.body


def _text(item: Any) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


def _template(workload: Workload, body: Mapping[str, Any]) -> dict[str, Any]:
    """A pod template with this container alone."""
    return {"metadata": workload.template.get("metadata"), "spec": {"containers": [body]}}


def _version(workload: Workload, body: Mapping[str, Any]) -> str | None:
    """vLLM's version by image, labels and annotations, whatever the command line is."""
    plain = {"image": str(body.get("image") or ""), "command": ["vllm", "serve"]}
    return parse_template(_template(workload, plain)).version
