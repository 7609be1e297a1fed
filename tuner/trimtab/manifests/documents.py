"""A text of manifests to its documents, each with its exact place in the text; joined again they are the text.

A line that starts with `---` or `...` ends a document in YAML wherever it stands, also inside a block scalar, so the
text is split by lines. Hazard: PyYAML reads YAML 1.1, Kubernetes nearly so; what differs (0o17, y) never gets edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

import yaml

from trimtab.errors import InputError

#: aliases may expand to this many values in one document: far over any manifest, far under a denial of service
MOST_VALUES: Final = 1_000_000
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_START = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_DIRECTIVES = re.compile(r"(?:\s*(?:%[^\n]*|#[^\n]*|\.\.\.[ \t\r]*)(?:\n|\Z))*\s*")
#: what Helm's templates use and what a program's own `{{ }}` (a chat template, an alert) does not
_HELM = re.compile(
    r"\{\{-?\s*(?:/\*|\$?\.(?:Values|Release|Chart|Capabilities|Template|Files)\b"
    r"|(?:include|template|toYaml|tpl|define)\s+[\"$.(]|(?:if|with|range)\s+[^}]*\.Values\b)"
)


@dataclass(frozen=True)
class Document:
    """One document. text: its part of the file, with comments around it. line: the file's line (from 0) it starts at.

    data: what it holds; None for an empty one.
    """

    source: str
    index: int
    line: int
    text: str
    data: Any


def read_documents(text: str, source: str) -> list[Document]:
    """The documents of a file; their texts joined are `text`.

    Raises `InputError` naming `source:line` for text that is no YAML or JSON, and for a Helm template.
    """
    documents: list[Document] = []
    line = 0
    for index, part in enumerate(_parts(text)):
        data = load(part, source, line)
        if isinstance(data, dict) and "kind" in data and (found := _HELM.search(part)):
            raise helm_template(f"{source}:{line + part.count(chr(10), 0, found.start()) + 1}")
        documents.append(Document(source, index, line, part, data))
        line += part.count("\n")
    return documents


def _parts(text: str) -> list[str]:
    """Cut before each `---`, but not between a document's directives and its `---`."""
    cuts = [0]
    for match in _START.finditer(text):
        before = text[cuts[-1] : match.start()]
        if match.start() and not ("%" in before and _DIRECTIVES.fullmatch(before)):
            cuts.append(match.start())
    return [text[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def load(text: str, source: str, line: int = 0) -> Any:
    """The one document in `text`. Raises `InputError` naming `source:line`."""
    try:
        data = yaml.load(untabbed(text), _LOADER)
        size = _size(data, {})
    except RecursionError:
        raise InputError(f"{source}:{line + 1}", "is nested too deeply", "Give plain Kubernetes manifests.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise _not_yaml(error, text, source, line) from None
    if size > MOST_VALUES:
        raise InputError(f"{source}:{line + 1}", "its aliases expand without end", "Write the values out.")
    return data


def _not_yaml(error: Exception, text: str, source: str, line: int) -> InputError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    at = f"{source}:{line + (mark.line if mark is not None else 0) + 1}"
    if _HELM.search(text):
        return helm_template(at)
    # The mark's own text shows the line, which may hold a secret; the problem names only characters.
    problem = getattr(error, "problem", None) or "a value cannot be read"
    return InputError(at, f"is neither YAML nor JSON ({problem})", "Correct the file, or name another one.")


def helm_template(at: str) -> InputError:
    return InputError(
        at,
        "this is a Helm template, not a manifest",
        "Render it first (helm template NAME CHART), or set the value in the chart's values.",
    )


def untabbed(text: str) -> str:
    """JSON may be indented by tabs, which PyYAML does not take. Inside JSON's strings no bare tab can stand, so each
    becomes one space and every other place stays.
    """
    return text.replace("\t", " ") if "\t" in text and is_json(text) else text


def is_json(text: str) -> bool:
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return False
    try:
        json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return False
    return True


def _size(value: Any, known: dict[Hashable, int]) -> int:
    """How many values there are once aliases are written out. An alias to its own parent counts as too many."""
    if not isinstance(value, dict | list):
        return 1
    key = id(value)
    if key not in known:
        known[key] = MOST_VALUES + 1  # seen again from inside: a cycle
        items = value.values() if isinstance(value, dict) else value
        known[key] = 1 + sum(_size(item, known) for item in items)
    return known[key]
