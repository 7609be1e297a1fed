"""Variables in a container: the kubelet's `$(NAME)` and the literal values of `env`.

Source: Kubernetes third_party/forked/golang/expansion: `$(NAME)` is replaced where NAME is known,
else it stays; `$$` is `$`.
Hazard: values by `valueFrom`, `envFrom` and Service links are not in the template; such text is opaque, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: from name to literal value; None where the name is defined but the value is out of sight
Environment = Mapping[str, str | None]


@dataclass(frozen=True)
class Expansion:
    """The text after the kubelet, and whether a reference in it could not be resolved."""

    text: str
    opaque: bool


def environment(container: Mapping[str, Any]) -> dict[str, str | None]:
    """The container's variables in order, each literal expanded with those before it."""
    known: dict[str, str | None] = {}
    entries = container.get("env")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        value = entry.get("value", "")
        if "valueFrom" in entry or not isinstance(value, str):
            known[entry["name"]] = None
            continue
        expansion = expand(value, known)
        known[entry["name"]] = None if expansion.opaque else expansion.text
    return known


def expand(text: str, known: Environment) -> Expansion:
    """`text` as the kubelet passes it on."""
    parts: list[str] = []
    opaque = False
    at = 0
    while at < len(text):
        if text[at] != "$":
            stop = text.find("$", at)
            stop = len(text) if stop < 0 else stop
            parts.append(text[at:stop])
            at = stop
        elif text.startswith("$$", at):
            parts.append("$")
            at += 2
        elif text.startswith("$(", at) and (close := text.find(")", at)) > 0:
            value = known.get(text[at + 2 : close])
            opaque = opaque or value is None
            parts.append(text[at : close + 1] if value is None else value)
            at = close + 1
        else:
            parts.append("$")
            at += 1
    return Expansion("".join(parts), opaque)


def escape(text: str) -> str:
    """`text` written so that the kubelet passes it on unchanged."""
    return text.replace("$", "$$")
