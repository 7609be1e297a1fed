"""From a path in a document to the line and column where its value is written.

Hazard: a value that comes by an alias or a merge key has the place of the nearest value above it that is written there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import yaml

from trimtab.lint.finding import Path
from trimtab.manifests.documents import Document, untabbed

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def place(document: Document, path: Path, offset: int = 0) -> tuple[int, int]:
    """Line and column, both from 1, in the file. offset: characters into the text there, counted in a `|` block
    only."""
    node = _root(document.text)
    for part in path:
        below = _child(node, part)
        if below is None:
            break
        node = below
    if node is None:
        return document.line + 1, 1
    line, column = document.line + node.start_mark.line + 1, node.start_mark.column + 1
    if isinstance(node, yaml.ScalarNode) and node.style == "|":
        return line + 1 + node.value.count("\n", 0, offset), 1
    return line, column


@lru_cache(maxsize=8)
def _root(text: str) -> yaml.Node | None:
    """The document was read before, so it can be read; only its places are new."""
    found: yaml.Node | None = yaml.compose(untabbed(text), _LOADER)
    return found


def _child(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        values = [value for key, value in node.value if getattr(key, "value", None) == part]
        return values[-1] if values else None
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        found: yaml.Node = node.value[part]
        return found
    return None
