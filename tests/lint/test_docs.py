"""docs/lint.md has every rule, no other, and says of each what the table says."""

from __future__ import annotations

import re
from pathlib import Path

from trimtab.lint.rules import RULES

PAGE = (Path(__file__).resolve().parents[2] / "docs/lint.md").read_text()
ROW = re.compile(r"^\| `(TT\d+)` `(\w+)` \| (\w+) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_each_rule_is_on_the_page_with_its_name_and_severity() -> None:
    said = {rule: (name, severity) for rule, name, severity, _, _ in ROW.findall(PAGE)}
    assert said == {r.id: (r.name, r.severity.value) for r in RULES.values()}


def test_each_rule_says_why_and_what_to_do() -> None:
    assert all(len(why) > 20 and len(fix) >= 9 for _, _, _, why, fix in ROW.findall(PAGE))
