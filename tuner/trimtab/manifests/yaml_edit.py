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


def edit_document(document: Document, edits: Mapping[Path, Mapping[str, Any]]) -> str:
    """The document's text with the pod template at each path changed to the one given; itself if nothing differs.

    Raises `RewriteRefused` where the text cannot be edited without touching anything else (a shared anchor, a merged
    key), `InputError` for a key that is there twice.
    """
    changes = [c for path, after in edits.items() for c in _changes(_at(document.data, path), after, path)]
    if not changes:
        return document.text
    tree = _Tree.of(document)
    wanted = document.data
    for path, after in edits.items():
        wanted = _with(wanted, path, after)
    refusal: RewriteRefused | None = None
    for variant in VARIANTS:
        try:
            splices = [s for change in changes for s in tree.splices(change, variant)]
        except RewriteRefused as error:
            refusal = refusal or error
            continue
        edited = _applied(document.text, splices)
        if _loads_as(edited, wanted):
            return edited
    raise refusal or RewriteRefused(
        f"{tree.where(tree.root)}: the edited text does not read back as wanted, so it was not used",
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
@dataclass(frozen=True)
class _Tree:
    """A document's nodes with their places. shared: ids of nodes that stand at more than one place."""

    document: Document
    root: yaml.Node
    shared: frozenset[int]
    style: Style

    @classmethod
    def of(cls, document: Document) -> _Tree:
        """With PyYAML's own parser, whose marks are tested here; libyaml's differ."""
        try:
            root = yaml.compose(untabbed(document.text), yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError):
            root = None
        if root is None:
            raise RewriteRefused(f"{document.source}:{document.line + 1}: the places of its values cannot be told")
        return cls(document, root, _shared(root), style_of(document.text))

    @property
    def text(self) -> str:
        return self.document.text

    def where(self, node: yaml.Node) -> str:
        return f"{self.document.source}:{self.document.line + node.start_mark.line + 1}"

    def find(self, path: Path) -> yaml.Node:
        """The node at `path`. RewriteRefused if it, or what holds it, stands at another place too."""
        node = self.root
        for key in path:
            self._refuse_shared(node)
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                node = node.value[key]
            elif isinstance(node, yaml.MappingNode):
                node = self.pair(node, str(key))[1]
            else:
                raise RewriteRefused(f"{self.where(node)}: {key} was not found in the text")
        self._refuse_shared(node)
        return node

    def mapping(self, path: Path) -> yaml.MappingNode:
        node = self.find(path)
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise RewriteRefused(f"{self.where(node)}: {path[-1]} is not written as a mapping")
        return node

    def pair(self, node: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node]:
        same = [(k, v) for k, v in node.value if isinstance(k, yaml.ScalarNode) and k.value == key]
        if len(same) > 1:
            problem = f"{key} is there twice in one mapping"
            raise InputError(self.where(same[1][0]), problem, "Remove one: readers differ in which they take.")
        if same:
            return same[0]
        hint = f"Write {key} out in this container, or change it at its anchor by hand."
        message = f"{self.where(node)}: {key} comes from a YAML merge (<<)"
        raise RewriteRefused(message, hint=hint, code="SharedAnchor")

    def _refuse_shared(self, node: yaml.Node) -> None:
        if id(node) not in self.shared:
            return
        text = self.text[node.start_mark.index :]
        name = text.split(maxsplit=1)[0] if text.startswith("&") else "an anchor"
        raise RewriteRefused(
            f"{self.where(node)}: {name} is used by an alias elsewhere, so the edit would change that place too",
            hint="Write the values out instead of the alias, or change the anchor by hand.",
            code="SharedAnchor",
        )

    # --- splices ------------------------------------------------------------------------------------------------------
    def splices(self, change: _Change, variant: str) -> list[Splice]:
        key = change.path[-1]
        if isinstance(key, str) and change.before is None:
            parent = self.mapping(change.path[:-1])
            if not any(k.value == key for k, _ in parent.value):
                return [self._add_key(parent, change)]
        node = self.find(change.path)
        if change.after is None:
            parent = self.mapping(change.path[:-1])
            index = next(i for i, (k, _) in enumerate(parent.value) if k.value == key)
            return [(flow if is_flow(parent) else block).remove_pair(self.text, parent, index)]
        if isinstance(node, yaml.ScalarNode) and isinstance(change.after, str):
            return scalar_splices(self.text, node, change.after, variant, self.style.newline)
        if isinstance(node, yaml.ScalarNode) and change.before is None:  # args: null
            space = "" if node.value else " "
            return [Splice(node.start_mark.index, node.end_mark.index, space + flow.inline(change.after))]
        if not isinstance(node, yaml.SequenceNode) or not isinstance(change.after, list):
            raise RewriteRefused(f"{self.where(node)}: {key} is not written as a list")
        return self._list_splices(node, change, variant)

    def _list_splices(self, node: yaml.SequenceNode, change: _Change, variant: str) -> list[Splice]:
        way = flow if is_flow(node) else block
        splices: list[Splice] = []
        for replaced, removed, at, added in _runs(change.before, change.after):
            for index, value in replaced:
                item = self.find((*change.path, index))
                if not isinstance(item, yaml.ScalarNode):
                    raise RewriteRefused(f"{self.where(item)}: the item is not text")
                splices += scalar_splices(self.text, item, value, variant, self.style.newline)
            for index in range(*removed):
                self.find((*change.path, index))
            if removed != (0, 0):
                splices.append(way.remove(self.text, node, *removed))
            if added:
                splices.append(way.insert(self.text, node, at, added, self.style))
        return splices

    def _add_key(self, parent: yaml.MappingNode, change: _Change) -> Splice:
        key = str(change.path[-1])
        if key not in _LISTS:
            raise RewriteRefused(f"{self.where(parent)}: {key} cannot be added here")
        names = [k.value for k, _ in parent.value]
        after = next((names.index(n) for n in ("command", "image", "name") if n in names), len(names) - 1)
        if is_flow(parent):
            return flow.add_pair(self.text, parent, after, key, change.after, self.style)
        model = self.pair(self.mapping(change.path[:-3]), str(change.path[-3]))
        return block.add_pair(self.text, parent, after, key, change.after, self.style, model)


def _shared(root: yaml.Node) -> frozenset[int]:
    """Nodes that an alias uses."""
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
    return frozenset(shared)


_Run = tuple[list[tuple[int, str]], tuple[int, int], int, list[str]]


def _runs(before: Sequence[str], after: Sequence[str]) -> Iterator[_Run]:
    """Per difference: items to replace in place, a range to remove ((0, 0): none), where to insert, and what.

    What both begin and end with is left out first: among equal items the matcher may pair others than those that stay.
    """
    same = [left == right for left, right in zip(before, after, strict=False)]
    head = same.index(False) if False in same else len(same)
    rest = min(len(before), len(after)) - head
    tail = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        both = min(b - a, d - c)
        at = head + a + both
        replaced = [(head + a + i, new[c + i]) for i in range(both)]
        yield replaced, (at, head + b) if head + b > at else (0, 0), at, list(new[c + both : d])


# --- proof ------------------------------------------------------------------------------------------------------------
def _applied(text: str, splices: Sequence[Splice]) -> str:
    """From the end, so that places stay right; of two at one place the later one given comes out behind."""
    for _, splice in sorted(enumerate(splices), key=lambda e: (e[1].start, e[1].end, e[0]), reverse=True):
        text = splice.apply(text)
    return text


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
