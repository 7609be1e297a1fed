"""Reads Markdown (links, anchors, tables, code blocks) and, from the source, the reasons and phases that docs name."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / n for n in ("README.md", "README.ko.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
PLAN = ROOT / "tuner/trimtab/plan"
JUDGE = ROOT / "tuner/trimtab/judge"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# --- Markdown ---------------------------------------------------------------------------------------------------------
def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(text) if found == language]


def prose(text: str) -> str:
    """Without code blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Targets of links that stay in the repository."""
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(text))
    return [t for t in targets if not re.match(r"[a-z]+:", t)]


def anchors(text: str) -> set[str]:
    """GitHub's anchors of the headings."""
    heads = re.findall(r"^#+\s+(.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower().replace("`", "")).replace(" ", "-") for h in heads}


def section(text: str, heading: str) -> str:
    """From a heading to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Cells of all table rows but the rulers. A bar inside a cell is written \\|."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [r for r in cells if not all(re.fullmatch(r":?-+:?", c) for c in r)]


def names(text: str) -> list[str]:
    """Words in backquotes in the first cell of each table row."""
    return [name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])]


# --- the source -------------------------------------------------------------------------------------------------------
def _text(node: ast.expr | None) -> list[str]:
    """The constants an expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [*_text(node.body), *_text(node.orelse)] if isinstance(node, ast.IfExp) else []


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def given(path: Path, calls: Mapping[str, int]) -> set[str]:
    """Texts passed to `calls` (name -> place of the argument), or as `reason=`, or assigned to `reason`, or returned
    behind a `Kind.X`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            place = calls.get(_called(node))
            if place is not None and len(node.args) > place:
                found.update(_text(node.args[place]))
            found.update(t for k in node.keywords if k.arg == "reason" for t in _text(k.value))
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "reason" for t in node.targets):
            found.update(_text(node.value))
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            kind = node.value.elts[0]
            if isinstance(kind, ast.Attribute) and isinstance(kind.value, ast.Name) and kind.value.id == "Kind":
                found.update(_text(node.value.elts[1]))
    return found


def block_kinds() -> dict[str, bool]:
    """Reason -> hard, in the order of the functions; reasons that are texts in the source."""
    found: dict[str, bool] = {}
    files = [PLAN / f"{name}.py" for name in ("preconditions", "around", "way", "budgets")]
    for file in (*files, ROOT / "operator/trimtab_operator/reconcile.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and _called(node) == "Block":
                hard = any(
                    k.arg == "hard" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords
                )
                found.update(dict.fromkeys(_text(node.args[0]), hard))
    return found


def said_by_the_search() -> set[str]:
    """Reasons of the events that the search's process asks for."""
    tree = ast.parse((ROOT / "tuner/trimtab/tune/apart.py").read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _called(n) == "Said"]
    return {reason for call in calls for reason in _text(call.args[0])}


# --- the state machine ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Machine:
    """The functions of plan/trial.py: which phases each goes to, with what it calls."""

    functions: Mapping[str, ast.FunctionDef]

    @classmethod
    def read(cls) -> Machine:
        tree = ast.parse((PLAN / "trial.py").read_text())
        return cls({n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)})

    def goes_to(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Names of phases in `.to(Phase.X, ...)`, followed through calls within the module."""
        found: set[str] = set()
        for node in ast.walk(self.functions[name]):
            if not isinstance(node, ast.Call):
                continue
            called = _called(node)
            if called == "to" and node.args and isinstance(node.args[0], ast.Attribute):
                found.add(node.args[0].attr)
            elif called in self.functions and called not in seen:
                found |= self.goes_to(called, seen | {name})
        return found
