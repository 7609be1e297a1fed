"""Commands in the pages: every line of a `sh` or `console` block, and what a test does about it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: pages whose commands count
PAGES = [
    *(ROOT / name for name in ("README.md", "README.ko.md", "CONTRIBUTING.md", "charts/trimtab/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^( *)```(?:sh|bash|console)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One command as it is written, without its comment; a continued one, and one whose quotes go on, is whole."""

    page: str
    line: int
    text: str


# --- what is done about one -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """It is run by a shell. swap: text -> what stands for it here (a name of World.values, or text).

    more: words behind it. says: what it must print. code: its exit code. keep: it stays in force for the page's later
    commands (a variable, a function). server: it runs until the page's last command is done. seconds: after which it
    is ended at the latest, where it would go on for good. soak: it is run in the long tests.
    """

    swap: Mapping[str, str] = field(default_factory=dict)
    more: str = ""
    says: str = ""
    code: int = 0
    keep: bool = False
    server: bool = False
    seconds: float = 0.0
    soak: bool = False


@dataclass(frozen=True)
class By:
    """Another test does it: `node` is that test, and its file has each of `words`."""

    node: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Never:
    """It cannot be run here."""

    why: str


Way = Run | By | Never


def commands(page: Path) -> Iterator[Command]:
    """All commands of a page, in order."""
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        first = text[: block.start()].count("\n") + 2
        yield from _joined(str(page.relative_to(ROOT)), first, block[2].splitlines())


def _joined(page: str, first: int, lines: list[str]) -> Iterator[Command]:
    begun, at = "", first
    for number, line in enumerate(lines):
        if not begun:
            at = first + number
        begun = f"{begun}\n{line}" if begun else line
        if begun.endswith("\\") or not _closed(begun):
            continue
        whole, begun = _bare(begun), ""
        if whole:
            yield Command(page, at, whole)
    assert not begun, f"{page}:{at}: a command without an end"


def _closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _bare(text: str) -> str:
    """Without the comment at its end, outside quotes."""
    quote = ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (at == 0 or text[at - 1].isspace()):
            return text[:at].strip()
    return text.strip()


def missing(way: By) -> list[str]:
    """What `way` says and its test's file does not have."""
    path, _, name = way.node.partition("::")
    file = ROOT / path
    if not file.exists():
        return [path]
    source = file.read_text()
    tests = {n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    return [word for word in way.words if word not in source] + ([] if name in tests else [name])
