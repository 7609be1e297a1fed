"""Items and pairs of lists and maps in brackets, as in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import yaml

from trimtab.engine.values import Splice
from trimtab.errors import RewriteRefused
from trimtab.manifests.scalars import quote, value_start
from trimtab.manifests.style import Style, neighbours

_Spans = list[tuple[int, int]]


def insert(text: str, node: yaml.SequenceNode, at: int, values: Sequence[str], style: Style) -> Splice:
    """`values` before item `at`, separated as the others are."""
    new = [style.item(value, neighbours(node, at)) for value in values]
    spans = _spans(node)
    if not spans:
        place = value_start(text, node) + 1
        return Splice(place, place, ", ".join(new))
    between = _separator(text, node, spans)
    if at == 0:
        return Splice(spans[0][0], spans[0][0], "".join(item + between for item in new))
    place = spans[at - 1][1]
    return Splice(place, place, "".join(between + item for item in new))


def remove(text: str, node: yaml.Node, start: int, end: int) -> Splice:
    """Items `start` to `end` and their commas. RewriteRefused where a comment stands between them."""
    spans = _spans(node)
    if start > 0:
        splice = Splice(spans[start - 1][1], spans[end - 1][1], "")
    elif end < len(spans):
        splice = Splice(spans[0][0], spans[end][0], "")
    else:
        splice = Splice(value_start(text, node) + 1, int(node.end_mark.index) - 1, "")
    gaps = [text[a[1] : b[0]] for a, b in pairwise(spans)]
    if any("#" in gap for gap in gaps):
        raise RewriteRefused(
            f"line {node.start_mark.line + 1} of the document has a comment between items in brackets",
            hint="Write the list with one item per line, or make this change by hand.",
            code="CommentInBrackets",
        )
    return splice


def add_pair(text: str, node: yaml.MappingNode, after: int, key: str, values: Sequence[str], style: Style) -> Splice:
    spans = _spans(node)
    name = quote(key, node.value[after][0].style or "")
    colon = ":" if style.json and '":"' in text else ": "
    place = spans[after][1]
    return Splice(place, place, f"{_separator(text, node, spans)}{name}{colon}{inline(values)}")


def remove_pair(text: str, node: yaml.MappingNode, index: int) -> Splice:
    return remove(text, node, index, index + 1)


def inline(values: Sequence[str]) -> str:
    """A new list in brackets."""
    return "[" + ", ".join(quote(value, '"') for value in values) + "]"


def _spans(node: yaml.Node) -> _Spans:
    """From where to where each item, or each pair, is written."""
    if isinstance(node, yaml.MappingNode):
        return [(int(k.start_mark.index), int(v.end_mark.index)) for k, v in node.value]
    return [(int(item.start_mark.index), int(item.end_mark.index)) for item in node.value]


def _separator(text: str, node: yaml.Node, spans: _Spans) -> str:
    """What stands between the last two; with one item, a comma and the space before it."""
    if len(spans) > 1:
        between = text[spans[-2][1] : spans[-1][0]]
        return between if between.strip() == "," else ", "
    before = text[value_start(text, node) + 1 : spans[0][0]]
    return "," + before if "\n" in before and not before.strip() else ", "
