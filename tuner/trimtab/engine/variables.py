"""Variables in a container: the kubelet's `$(NAME)` and the literal values of `env`.

Source: Kubernetes third_party/forked/golang/expansion: `$(NAME)` is replaced where NAME is known,
else it stays; `$$` is `$`.
Hazard: values by `valueFrom`, `envFrom` and Service links are not in the template; such text is opaque, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: from name to literal value; None where the name is defined but the value is out of sight
Environment = Mapping[str, str | None]


@dataclass(frozen=True)
class Expansion:
    """The text after the kubelet, and whether a reference in it could not be resolved."""

    text: str
    opaque: bool


def entries(container: Mapping[str, Any]) -> Iterator[tuple[int, str, str | None]]:
    """(index, name, raw value) of each readable entry of `env`; the value is None where it is out of sight."""
    listed = container.get("env")
    for index, entry in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        value = entry.get("value", "")
        yield index, entry["name"], None if "valueFrom" in entry or not isinstance(value, str) else value


def environment(container: Mapping[str, Any]) -> dict[str, str | None]:
    """The container's variables in order, each literal expanded with those before it."""
    known: dict[str, str | None] = {}
    for _, name, value in entries(container):
        expansion = None if value is None else expand(value, known)
        known[name] = None if expansion is None or expansion.opaque else expansion.text
    return known


def editable_entry(container: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """Index and value of the one literal entry of that name, if the value has no references of its own."""
    found = [(index, value) for index, entry, value in entries(container) if entry == name]
    if len(found) != 1 or found[0][1] is None or "$" in found[0][1]:
        return None
    return found[0][0], found[0][1]


def references(container: Mapping[str, Any], name: str) -> int:
    """How often command, args and env mention the variable."""
    pattern = re.compile(rf"\$(?:\(|\{{)?{re.escape(name)}(?![A-Za-z0-9_])")
    texts = [i for where in ("command", "args") for i in container.get(where) or () if isinstance(i, str)]
    texts += [value for _, _, value in entries(container) if value is not None]
    return sum(len(pattern.findall(text)) for text in texts)


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
