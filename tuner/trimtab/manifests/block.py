"""Items and pairs of lists and maps written line by line. A comment stays with the line it stands on."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from trimtab.engine.values import Splice
from trimtab.errors import RewriteRefused
from trimtab.manifests.scalars import scalar_end
from trimtab.manifests.style import Style, is_flow, neighbours

Pair = tuple[yaml.Node, yaml.Node]


def insert(text: str, node: yaml.SequenceNode, at: int, values: Sequence[str], style: Style) -> Splice:
    """`values` as lines of their own behind item `at - 1`, or before the first."""
    model = node.value[max(0, at - 1)]
    dash, gap = _dash(text, model)
    indent = " " * (dash - _line_start(text, dash))
    lines = [f"{indent}-{gap}{style.item(value, neighbours(node, at))}" for value in values]
    if at == 0:
        place = _line_start(text, dash)
        return Splice(place, place, "".join(line + style.newline for line in lines))
    place = _line_end(text, end_of(text, model))
    return Splice(place, place, "".join(style.newline + line for line in lines))


def remove(text: str, node: yaml.SequenceNode, start: int, end: int) -> Splice:
    """The lines of items `start` to `end`, with the comments on them; those between them too."""
    first, _ = _dash(text, node.value[start])
    return _lines(text, _line_start(text, first), end_of(text, node.value[end - 1]))


def add_pair(
    text: str, node: yaml.MappingNode, after: int, key: str, values: Sequence[str], style: Style, containers: Pair
) -> Splice:
    """`key` with a list, on lines of its own behind the pair at index `after`."""
    model_key, model = node.value[after]
    column = int(node.value[0][0].start_mark.column)
    indent = " " * column
    place = _line_end(text, end_of(text, model))
    if is_flow(model) and isinstance(model, yaml.SequenceNode):
        items = [style.item(value, model.value) for value in values]
        return Splice(place, place, f"{style.newline}{indent}{key}: [{', '.join(items)}]")
    pairs = [(k, v) for k, v in ((model_key, model), *node.value, containers) if _is_block_list(v)]
    shift = _dash_shift(text, *pairs[0]) if pairs else 0
    known = model.value if isinstance(model, yaml.SequenceNode) else ()
    items = [f"{indent}{' ' * shift}- {style.item(value, known)}" for value in values]
    return Splice(place, place, style.newline + style.newline.join([f"{indent}{key}:", *items]))


def remove_pair(text: str, node: yaml.MappingNode, index: int) -> Splice:
    """The key's lines; where it shares its line with the list's dash, the next key moves up."""
    key, value = node.value[index]
    start, end = int(key.start_mark.index), end_of(text, value)
    if not text[_line_start(text, start) : start].strip():
        return _lines(text, _line_start(text, start), end)
    following = node.value[index + 1][0].start_mark.index if index + 1 < len(node.value) else end
    if "#" in text[end:following] or following == end:
        raise RewriteRefused(
            f"{key.value} shares its line with others and cannot be removed alone", hint="Make this change by hand."
        )
    return Splice(start, int(following), "")


def end_of(text: str, node: yaml.Node) -> int:
    """Where the node's own text ends; a block list's own mark lies behind the comments that follow it."""
    if isinstance(node, yaml.ScalarNode):
        return scalar_end(text, node)
    if is_flow(node) or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return end_of(text, last[1] if isinstance(node, yaml.MappingNode) else last)


def _is_block_list(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and not is_flow(node) and bool(node.value)


def _dash_shift(text: str, key: yaml.Node, node: yaml.Node) -> int:
    """How far a list's dashes stand to the right of its key."""
    dash, _ = _dash(text, node.value[0])
    return max(0, dash - _line_start(text, dash) - int(key.start_mark.column))


def _dash(text: str, item: yaml.Node) -> tuple[int, str]:
    """The place of the item's dash and the space behind it."""
    start = int(item.start_mark.index)
    before = text[:start].rstrip()
    if not before.endswith("-"):
        raise RewriteRefused(f"line {item.start_mark.line + 1} of the document: the item's dash was not found")
    dash = len(before) - 1
    if text[_line_start(text, dash) : dash].strip():
        raise RewriteRefused(f"line {item.start_mark.line + 1} of the document: the list begins on another's line")
    gap = text[dash + 1 : start]
    return dash, " " if "\n" in gap else gap


def _lines(text: str, start: int, end: int) -> Splice:
    """Whole lines; at the end of a text without a last line break, the break before them goes instead."""
    stop = _line_end(text, end)
    if stop < len(text):
        return Splice(start, text.index("\n", stop) + 1, "")
    before = start - 1 if start and text[start - 1] == "\n" else start
    return Splice(before - 1 if before and text[before - 1] == "\r" else before, len(text), "")


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    """The place before the line's break (`\\n` or `\\r\\n`)."""
    stop = text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    return stop - 1 if stop > at and text[stop - 1] == "\r" else stop
