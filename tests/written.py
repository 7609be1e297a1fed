"""Tables that a test or a benchmark writes into a page of docs/, between two comments that name the command."""

from __future__ import annotations

import re
from pathlib import Path


def _pattern(command: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- begin: {re.escape(command)} -->\n).*?(<!-- end -->)", re.S)


def rewrite(page: Path, command: str, text: str) -> None:
    """Replace what stands in the command's region; the page must have it."""
    before = page.read_text(encoding="utf-8")
    assert _pattern(command).search(before), f"{page.name} has no region of: {command}"
    page.write_text(_pattern(command).sub(lambda m: f"{m[1]}\n{text.strip()}\n\n{m[2]}", before), encoding="utf-8")


def region(page: Path, command: str) -> str:
    """What stands there now."""
    found = _pattern(command).search(page.read_text(encoding="utf-8"))
    assert found, f"{page.name} has no region of: {command}"
    return found[0].split("-->\n", 1)[1].rsplit("<!--", 1)[0].strip()
