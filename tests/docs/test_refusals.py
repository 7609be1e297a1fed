"""The reasons for refusals in docs/targets.md are those of the code, both ways."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_IN_CODE = re.compile(
    r"code(?:: str)?\s*=\s*\"(?P<keyword>[A-Z][A-Za-z]+)\"|\"(?P<positional>[A-Z][A-Za-z]+)\" if \"background\""
)
_POSITIONAL = re.compile(r"\brefused\((?:[^()]|\([^()]*\))*, \"([A-Z][A-Za-z]+)\"")


def test_reasons_of_refusals_are_the_codes() -> None:
    page = (ROOT / "docs" / "targets.md").read_text()
    listed = set(re.findall(r"^\| `([A-Z][A-Za-z]+)` \|", page, re.MULTILINE))
    used: set[str] = set()
    for path in [*(ROOT / "tuner").rglob("*.py"), *(ROOT / "operator").rglob("*.py")]:
        text = path.read_text()
        if "RewriteRefused" not in text and "refused(" not in text:
            continue
        used |= {m["keyword"] or m["positional"] for m in _IN_CODE.finditer(text)} | set(_POSITIONAL.findall(text))
    assert used == listed
