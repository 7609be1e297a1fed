"""Writes docs/fields.md from the CRDs: every field with its type, default, what is allowed and what it means.

Run `python hack/docs/fields.py`; a test compares.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/fields.md"
#: kind -> plural
KINDS: Final = {"VLLMTuner": "vllmtuners", "TuningTrial": "tuningtrials"}
_HEAD: Final = """# Every field

Made by `python hack/docs/fields.py` from the CRDs. `kubectl explain vllmtuner.spec --recursive` says the same on a
cluster. `[]` is an item of a list. The words in statuses (phases, reasons, findings) are in [reference](reference.md).
"""

Schema = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """path: dotted, below spec or status. needed: must be given where the object above it is."""

    path: str
    kind: str
    default: str
    allowed: str
    text: str
    needed: bool


def schema(plural: str) -> Schema:
    """The openAPIV3Schema of a CRD's only version."""
    (version,) = yaml.safe_load((ROOT / "crds" / f"{plural}.trimtab.dev.yaml").read_text())["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def fields(node: Schema, path: str = "") -> Iterator[Field]:
    """All fields under a schema, each before what is in it."""
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        text = " ".join(str(child.get("description", "")).split())
        kind, default = _kind(child), json.dumps(child["default"]) if "default" in child else ""
        yield Field(here, kind, default, _allowed(child), text, name in node.get("required", ()))
        yield from fields(child, here)
        if "items" in child:
            yield from fields(child["items"], f"{here}[]")


def rules(node: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, message) of what must hold between fields."""
    for rule in node.get("x-kubernetes-validations", ()):
        yield path or "the whole", str(rule.get("message") or rule["rule"])
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield from rules(child, here)
        if "items" in child:
            yield from rules(child["items"], f"{here}[]")


def _kind(node: Schema) -> str:
    if node["type"] == "array":
        return f"list of {_kind(node['items'])}"
    if node["type"] == "object" and "additionalProperties" in node:
        return "map"
    return str(node["type"])


def _allowed(node: Schema) -> str:
    """Values and limits in words; of a list's items where the list has none."""
    if "enum" in node:
        return ", ".join(f"`{v}`" for v in node["enum"])
    parts = _between(node)
    for least, most, unit in (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "items")):
        bounds = [str(node[k]) for k in (least, most) if k in node]
        if bounds:
            parts.append(f"{' to '.join(bounds) if least in node else f'up to {bounds[0]}'} {unit}")
    if "pattern" in node:  # brackets as entities: "](" would be taken for a link
        shown = html.escape(node["pattern"]).replace("[", "&#91;").replace("]", "&#93;")
        parts.append(f"<code>{shown}</code>")
    return "; ".join(parts) or (_allowed(node["items"]) if "items" in node else "")


def _between(node: Schema) -> list[str]:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and node.get("exclusiveMinimum"):
        return [f"above {low}" + (f", up to {high}" if high is not None else "")]
    if low is not None and high is not None:
        return [f"{low} to {high}"]
    return [f"from {low}"] if low is not None else [f"up to {high}"] if high is not None else []


def _row(field: Field) -> str:
    kind = field.kind + (", needed" if field.needed else "")
    value = [part for part in (kind, field.allowed, f"default `{field.default}`" if field.default else "") if part]
    cells = (f"`{field.path}`", "<br>".join(value), field.text)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def text() -> str:
    """The page."""
    parts = [_HEAD]
    for kind, plural in KINDS.items():
        for part in ("spec", "status"):
            node = schema(plural)["properties"][part]
            parts.append(f"\n## {kind}: {part}\n")
            parts.append("| field | type, what is allowed, default | meaning |\n|---|---|---|")
            parts += [_row(field) for field in fields(node)]
            told = list(rules(node))
            if told:
                parts.append("\nBetween fields:\n")
                parts += [f"- `{path}`: {message}" for path, message in told]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
