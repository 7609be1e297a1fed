"""The edit of a manifest's text that turns one pod template into another: order, comments and quoting stay.

Places come from PyYAML's node marks. Every result is loaded and compared with what was wanted before it is used, so a
place read wrongly ends in a refusal, never in a wrong manifest. Only command, args and env values may differ.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from trimtab.engine.values import Splice
from trimtab.errors import InputError, RewriteRefused
from trimtab.manifests import block, flow
from trimtab.manifests.documents import Document, load, untabbed
from trimtab.manifests.scalars import VARIANTS, scalar_splices
from trimtab.manifests.style import Style, is_flow, style_of

Path = tuple[str | int, ...]
_LISTS: Final = ("command", "args")
_GROUPS: Final = ("containers", "initContainers")


@dataclass(frozen=True)
class _Change:
    """At `path` the value `before` becomes `after`; None for a key that is not there."""

    path: Path
    before: Any
    after: Any


def edit_document(document: Document, path: Path, after: Mapping[str, Any]) -> str:
    """The document's text with the pod template at `path` changed to `after`; the text itself if nothing differs.

    Raises `RewriteRefused` where the text cannot be edited without touching anything else (a shared anchor, a merged
    key), `InputError` for a key that is there twice.
    """
    changes = list(_changes(_at(document.data, path), after, path))
    if not changes:
        return document.text
    root = _compose(document)
    wanted = _with(document.data, path, after)
    refusal: RewriteRefused | None = None
    for variant in VARIANTS:
        try:
            splices = [s for change in changes for s in _splices(document, root, change, variant)]
        except RewriteRefused as error:
            refusal = refusal or error
            continue
        edited = _applied(document.text, splices)
        if _loads_as(edited, wanted):
            return edited
    raise refusal or RewriteRefused(
        f"{_where(document, root)}: the edited text does not read back as wanted, so it was not used",
        hint="Make this change by hand.",
        code="NotReadBack",
    )


def _changes(before: Any, after: Any, path: Path) -> Iterator[_Change]:
    """What differs, down to lists of text and single values; refused outside of what a rewrite may change."""
    if before == after and type(before) is type(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _changes(before.get(key), after.get(key), (*path, key))
        return
    inside_list = path[-1] not in _LISTS and isinstance(before, list) and isinstance(after, list)
    if inside_list and len(before) == len(after):
        for index, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from _changes(left, right, (*path, index))
        return
    if not _editable(path):
        raise RewriteRefused(f"{'.'.join(map(str, path))} would change, which a rewrite never does")
    yield _Change(path, before, after)


def _editable(path: Path) -> bool:
    """spec.containers[i].command or .args, or the value of one of its env entries."""
    if len(path) >= 3 and path[-1] in _LISTS:
        return path[-3] in _GROUPS
    return len(path) >= 5 and path[-1] == "value" and path[-3] == "env" and path[-5] in _GROUPS


# --- nodes ------------------------------------------------------------------------------------------------------------
def _compose(document: Document) -> yaml.Node:
    """With PyYAML's own parser, whose marks are tested here; libyaml's differ."""
    try:
        root = yaml.compose(untabbed(document.text), yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        root = None
    if root is None:
        raise RewriteRefused(f"{document.source}:{document.line + 1}: the places of its values cannot be told")
    return root


def _where(document: Document, node: yaml.Node) -> str:
    return f"{document.source}:{document.line + node.start_mark.line + 1}"


def _find(document: Document, root: yaml.Node, path: Path) -> tuple[yaml.Node, yaml.Node | None]:
    """The node at `path` and its key's node. RewriteRefused if it is shared with another place."""
    shared = _shared(root)
    node, key_node = root, None
    for key in path:
        _not_shared(document, node, shared)
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node, key_node = node.value[key], None
        elif isinstance(node, yaml.MappingNode):
            key_node, node = _pair(document, node, str(key))
        else:
            raise RewriteRefused(f"{_where(document, node)}: {key} was not found in the text")
    _not_shared(document, node, shared)
    return node, key_node


def _pair(document: Document, node: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node]:
    same = [(k, v) for k, v in node.value if isinstance(k, yaml.ScalarNode) and k.value == key]
    if len(same) > 1:
        at = f"{_where(document, same[1][0])}"
        raise InputError(at, f"{key} is there twice in one mapping", "Remove one: readers differ in which they take.")
    if same:
        return same[0]
    hint = f"Write {key} out in this container, or change it at its anchor by hand."
    raise RewriteRefused(
        f"{_where(document, node)}: {key} comes from a YAML merge (<<)", hint=hint, code="SharedAnchor"
    )


def _shared(root: yaml.Node) -> set[int]:
    """Nodes that stand at more than one place: those that an alias uses."""
    seen: set[int] = set()
    shared: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            shared.add(id(node))
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            todo += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
    return shared


def _not_shared(document: Document, node: yaml.Node, shared: set[int]) -> None:
    if id(node) not in shared:
        return
    text = document.text[node.start_mark.index :]
    name = text.split(maxsplit=1)[0] if text.startswith("&") else "an anchor"
    raise RewriteRefused(
        f"{_where(document, node)}: {name} is used by an alias elsewhere, so the edit would change that place too",
        hint="Write the values out instead of the alias, or change the anchor by hand.",
        code="SharedAnchor",
    )


# --- splices ----------------------------------------------------------------------------------------------------------
def _splices(document: Document, root: yaml.Node, change: _Change, variant: str) -> list[Splice]:
    text, style = document.text, style_of(document.text)
    if change.before is None and not _has_key(document, root, change.path):
        return _add_key(document, root, change, style)
    node, key_node = _find(document, root, change.path)
    if change.after is None:
        return _remove_key(document, root, change)
    if isinstance(node, yaml.ScalarNode) and isinstance(change.after, str):
        return scalar_splices(text, node, change.after, variant, style.newline)
    if isinstance(node, yaml.ScalarNode):  # args: null
        space = "" if node.value else " "
        items = flow.inline(change.after)
        return [Splice(node.start_mark.index, node.end_mark.index, f"{space}{items}")]
    if not isinstance(node, yaml.SequenceNode) or key_node is None:
        raise RewriteRefused(f"{_where(document, node)}: {change.path[-1]} is not written as a list")
    return _list_splices(document, root, node, change, variant)


def _has_key(document: Document, root: yaml.Node, path: Path) -> bool:
    parent, _ = _find(document, root, path[:-1])
    pairs = parent.value if isinstance(parent, yaml.MappingNode) else ()
    return any(isinstance(k, yaml.ScalarNode) and k.value == path[-1] for k, _ in pairs)


def _list_splices(
    document: Document, root: yaml.Node, node: yaml.SequenceNode, change: _Change, variant: str
) -> list[Splice]:
    text, style = document.text, style_of(document.text)
    way = flow if is_flow(node) else block
    splices: list[Splice] = []
    for replaced, removed, at, added in _runs(change.before, change.after):
        for index, value in replaced:
            item, _ = _find(document, root, (*change.path, index))
            if not isinstance(item, yaml.ScalarNode):
                raise RewriteRefused(f"{_where(document, item)}: the item is not text")
            splices += scalar_splices(text, item, value, variant, style.newline)
        if removed:
            for index in range(*removed):
                _find(document, root, (*change.path, index))
            splices.append(way.remove(text, node, *removed))
        if added:
            splices.append(way.insert(text, node, at, added, style))
    return splices


_Run = tuple[list[tuple[int, str]], tuple[int, int] | None, int, list[str]]


def _runs(before: Sequence[str], after: Sequence[str]) -> Iterator[_Run]:
    """Per difference: items to replace in place, a range to remove, the index to insert before, items to insert."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        both = min(b - a, d - c)
        replaced = [(a + i, after[c + i]) for i in range(both)]
        yield replaced, (a + both, b) if b > a + both else None, a + both, list(after[c + both : d])


def _add_key(document: Document, root: yaml.Node, change: _Change, style: Style) -> list[Splice]:
    parent, _ = _find(document, root, change.path[:-1])
    key = str(change.path[-1])
    if not isinstance(parent, yaml.MappingNode) or not parent.value or key not in _LISTS:
        raise RewriteRefused(f"{_where(document, parent)}: {key} cannot be added here")
    names = [k.value for k, _ in parent.value]
    after = next((names.index(n) for n in ("command", "image", "name") if n in names), len(names) - 1)
    if is_flow(parent):
        return [flow.add_pair(document.text, parent, after, key, change.after, style)]
    containers, own_key = _find(document, root, change.path[:-2])
    model = (own_key, containers)
    return [block.add_pair(document.text, parent, after, key, change.after, style, model)]


def _remove_key(document: Document, root: yaml.Node, change: _Change) -> list[Splice]:
    parent, _ = _find(document, root, change.path[:-1])
    if not isinstance(parent, yaml.MappingNode):
        raise RewriteRefused(f"{_where(document, parent)}: {change.path[-1]} cannot be removed here")
    index = next(i for i, (k, _) in enumerate(parent.value) if k.value == change.path[-1])
    way = flow if is_flow(parent) else block
    return [way.remove_pair(document.text, parent, index)]


def _applied(text: str, splices: Sequence[Splice]) -> str:
    """From the end, so that places stay right; of two at one place the later one given comes out behind."""
    for _, splice in sorted(enumerate(splices), key=lambda e: (e[1].start, e[1].end, e[0]), reverse=True):
        text = splice.apply(text)
    return text


# --- proof ------------------------------------------------------------------------------------------------------------
def _loads_as(text: str, wanted: Any) -> bool:
    try:
        return bool(load(text, "the edited text") == wanted)
    except InputError:
        return False


def _at(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def _with(data: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    out = copy.copy(data)
    out[path[0]] = _with(data[path[0]], path[1:], value)
    return out
