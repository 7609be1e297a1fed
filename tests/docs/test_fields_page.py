"""docs/fields.md has every field of the CRDs, as the CRDs say it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack/docs"))
import fields

del sys.path[0]


def test_the_page_is_what_the_crds_say() -> None:
    assert fields.PAGE.read_text() == fields.text(), "run: python hack/docs/fields.py"


@pytest.mark.parametrize("kind", fields.KINDS)
def test_every_field_has_a_meaning_a_type_and_stands_in_the_page(kind: str) -> None:
    page = fields.PAGE.read_text()
    for part in ("spec", "status"):
        found = list(fields.fields(fields.schema(fields.KINDS[kind])["properties"][part]))
        assert len(found) > 10
        section = page.partition(f"## {kind}: {part}\n")[2].partition("\n## ")[0]
        assert [f.path for f in found if not f.text or f"| `{f.path}` |" not in section] == []


def test_limits_are_said_in_words() -> None:
    number = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 5}
    listed = {"type": "array", "maxItems": 3, "items": {"type": "string", "enum": ["a", "b"]}}
    node = {"properties": {"n": {**number, "default": 2}, "l": listed}, "required": ["l"]}
    one, two = fields.fields(node)
    assert (one.allowed, one.default, one.needed) == ("above 0, up to 5", "2", False)
    assert (two.kind, two.allowed, two.needed) == ("list of string", "up to 3 items", True)
