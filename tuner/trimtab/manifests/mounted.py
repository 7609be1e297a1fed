"""Files that a container gets from ConfigMaps in the same input: scripts it starts, `--config` files.

Source: Kubernetes volumes: configMap and projected volumes, items, subPath. Hazard: what is mounted over another path
hides it; only the ConfigMap's own files are told, nothing about the image's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.manifests.workload import Workload

ConfigMaps = Mapping[tuple[str, str], Mapping[str, str]]


def mounted_files(workload: Workload, config_maps: ConfigMaps, container: str | None = None) -> dict[str, str]:
    """Absolute path in the container -> text.

    Without a container's name the files of all; a path at which two containers see different texts is left out.
    """
    spec = workload.template["spec"]
    volumes = dict(_volumes(spec, workload.namespace, config_maps))
    found: dict[str, str] = {}
    unclear: set[str] = set()
    for body in _containers(spec):
        if container is not None and body.get("name") != container:
            continue
        for path, text in _container_files(body, volumes):
            if found.setdefault(path, text) != text:
                unclear.add(path)
    return {path: text for path, text in found.items() if path not in unclear}


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for group in ("containers", "initContainers"):
        yield from _maps(spec.get(group))


def _container_files(body: Mapping[str, Any], volumes: Mapping[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    for mount in _maps(body.get("volumeMounts")):
        root, sub = mount.get("mountPath"), mount.get("subPath") or ""
        files = volumes.get(str(mount.get("name")), {})
        if not isinstance(root, str) or not root.startswith("/") or not isinstance(sub, str) or "subPathExpr" in mount:
            continue
        if sub in files:
            yield posixpath.normpath(root), files[sub]
            continue
        prefix = f"{sub.rstrip('/')}/" if sub else ""
        for path, text in files.items():
            if path.startswith(prefix):
                yield posixpath.normpath(posixpath.join(root, path[len(prefix) :])), text


def _volumes(spec: Mapping[str, Any], namespace: str, config_maps: ConfigMaps) -> Iterator[tuple[str, dict[str, str]]]:
    for volume in _maps(spec.get("volumes")):
        sources = [volume.get("configMap")]
        projected = volume.get("projected")
        if isinstance(projected, Mapping):
            sources += [source.get("configMap") for source in _maps(projected.get("sources"))]
        files: dict[str, str] = {}
        for source in sources:
            if isinstance(source, Mapping):
                files.update(_source_files(source, namespace, config_maps))
        yield str(volume.get("name")), files


def _source_files(source: Mapping[str, Any], namespace: str, config_maps: ConfigMaps) -> dict[str, str]:
    data = config_maps.get((namespace, str(source.get("name"))), {})
    if source.get("items") is None:
        return dict(data)
    items = {str(i.get("path")): str(i.get("key")) for i in _maps(source.get("items"))}
    return {path: data[key] for path, key in items.items() if key in data}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
