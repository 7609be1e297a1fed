"""How a text is written: its line ends, JSON or not, and how a list's neighbours are quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from trimtab.manifests.documents import is_json
from trimtab.manifests.scalars import quote


@dataclass(frozen=True)
class Style:
    """newline: as most lines of the text end. json: everything is in double quotes."""

    newline: str
    json: bool

    def item(self, value: str, neighbours: Sequence[yaml.Node]) -> str:
        """A new item as its nearest neighbours are written; where plain will not do, as the nearest quoted one."""
        if self.json:
            return quote(value, '"')
        styles = [n.style or "" for n in neighbours if isinstance(n, yaml.ScalarNode) and n.style not in ("|", ">")]
        quoted = next((s for s in styles if s), "'" if '"' in value else '"')
        plain = quote(value, "") if not styles or styles[0] == "" else ""
        return plain if plain == value else quote(value, quoted)


def style_of(text: str) -> Style:
    crlf = text.count("\r\n")
    return Style("\r\n" if crlf * 2 > text.count("\n") else "\n", is_json(text))


def is_flow(node: yaml.Node) -> bool:
    """Whether a list or map is written in brackets."""
    return bool(getattr(node, "flow_style", False))


def neighbours(node: yaml.SequenceNode, at: int) -> list[yaml.Node]:
    """The items before index `at`, nearest first, then those behind it."""
    items: list[yaml.Node] = node.value
    return [*reversed(items[:at]), *items[at:]]
