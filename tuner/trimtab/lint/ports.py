"""Ports: what the engine listens on, what the container declares, where probes go.

Source: a scan of public manifests: 43% declare no port, some another one (9000 declared, --port 8080).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target, mapping, mappings
from trimtab.text import whole_number

PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def mismatch(target: Target, options: Options) -> Iterator[Hit]:
    declared = [p.get("containerPort") for p in target.ports]
    if not declared or target.port is None or target.port in declared:
        return
    shown = ", ".join(str(p) for p in declared)
    yield Hit(
        f"the engine listens on {target.port}, but the container declares {shown}; a Service or scrape by name goes "
        f"nowhere.",
        target.of_container("ports"),
        fix=f"Declare containerPort {target.port}, or set --port.",
    )


def undeclared(target: Target, options: Options) -> Iterator[Hit]:
    if not target.ports and target.port is not None:
        yield Hit(
            f"the container declares no port; the engine listens on {target.port}.", target.of_container(),
            fix=f"Declare containerPort {target.port} with a name.",
        )  # fmt: skip


def probe_elsewhere(target: Target, options: Options) -> Iterator[Hit]:
    """A probe reaches the whole pod, so a port that another container declares is left alone."""
    for name in PROBES:
        probe = mapping(target.body.get(name))
        for handler in ("httpGet", "tcpSocket", "grpc"):
            port = mapping(probe.get(handler)).get("port")
            if port is None or target.port is None:
                continue
            number = _number(target, port)
            if number is None:
                message = (
                    f"{name} names the port {str(port)[:40]!r}, which the container does not declare: it always fails."
                )
            elif number != target.port and number not in _others(target):
                message = f"{name} asks port {number}, but the engine listens on {target.port}."
            else:
                continue
            yield Hit(message, target.of_container(name, handler, "port"), fix=f"Probe port {target.port}.")


def _number(target: Target, port: Any) -> int | None:
    text = str(port)
    if (number := whole_number(text)) is not None:
        return number
    found = next((p.get("containerPort") for p in target.ports if p.get("name") == text), None)
    return found if isinstance(found, int) else None


def _others(target: Target) -> set[Any]:
    """Ports of the pod's other containers."""
    pod: Mapping[str, Any] = target.pod
    bodies = [*mappings(pod.get("containers")), *mappings(pod.get("initContainers"))]
    return {p.get("containerPort") for b in bodies if b is not target.body for p in mappings(b.get("ports"))}
