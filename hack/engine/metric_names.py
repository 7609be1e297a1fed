"""Lists the metrics that a vLLM source tree defines, by reading its syntax trees: nothing of vLLM is imported.

    python hack/engine/metric_names.py FOLDER                        prints one definition a line
    python hack/engine/metric_names.py HISTORY.json 0.32.0 0.33.0    adds folders named by version to the history

A folder holds `vllm/` (an unpacked source distribution, or a venv's site-packages). Hidden means: shown only with
--show-hidden-metrics-for-version. Tests compare trimtab/engine/metric_table.py with the history of 0.6.0 to 0.33.0,
which is tests/observe/data/vllm-metric-history.json.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_KINDS = ("gauge", "counter", "histogram", "info")


@dataclass(frozen=True)
class Definition:
    """One metric as a source file defines it; `labels` are those beside the base labels, sorted."""

    name: str
    kind: str
    engine: str
    hidden: bool
    labels: tuple[str, ...]
    buckets: str
    file: str


def definitions(root: Path) -> list[Definition]:
    """All definitions below root/vllm, sorted by name. Files that Python cannot parse raise SyntaxError."""
    paths = set((root / "vllm").rglob("*.py"))
    users = root / "vllm/engine/llm_engine.py"
    if not users.is_file() or "engine.metrics" not in users.read_text(encoding="utf-8"):
        paths.discard(root / "vllm/engine/metrics.py")  # 0.11.0 has the file of the v0 engine, but no v0 engine
    found = {d for path in paths for d in _of_file(path, path.relative_to(root))}
    return sorted(found, key=lambda d: (d.name, d.engine, d.hidden, d.file))


def _of_file(path: Path, place: Path) -> Iterator[Definition]:
    text = path.read_text(encoding="utf-8")
    if "vllm:" in text:
        yield from _walk(ast.parse(text), place, hidden=False)


def _walk(node: ast.AST, place: Path, *, hidden: bool) -> Iterator[Definition]:
    if (found := _listed(node, place, hidden)) is not None:
        yield found
    if isinstance(node, ast.Call) and (found := _definition(node, place, hidden)) is not None:
        yield found
    if isinstance(node, ast.If) and "show_hidden_metrics" in ast.unparse(node.test):
        hidden = True
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, place, hidden=hidden)


def _definition(call: ast.Call, place: Path, hidden: bool) -> Definition | None:
    kind = next((k for k in _KINDS if k in ast.unparse(call.func).lower()), None)
    given = {k.arg: k.value for k in call.keywords if k.arg} | dict(
        zip(("name", "documentation", "labelnames"), call.args, strict=False)
    )
    name = given.get("name")
    if kind is None or not isinstance(name, ast.Constant) or not str(name.value).startswith("vllm:"):
        return None
    labels = given.get("labelnames")
    buckets = ast.unparse(given["buckets"]) if "buckets" in given else ""
    return Definition(str(name.value), kind, _engine(place), hidden, _labels(labels), buckets, str(place))


def _listed(node: ast.AST, place: Path, hidden: bool) -> Definition | None:
    """`name = "vllm:cache_config_info"`, and the ("vllm:...", "help") pairs from which counters are made in a loop."""
    match node:
        case ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=str(name))):
            kind = "info"
        case ast.Tuple(elts=[ast.Constant(value=str(name)), ast.Constant(value=str())]):
            kind = "counter"
        case _:
            return None
    return Definition(name, kind, _engine(place), hidden, (), "", str(place)) if re.match("vllm:[a-z]", name) else None


def _engine(place: Path) -> str:
    """The v0 engine defines its metrics in vllm/engine/; the rest is v1's or serves both."""
    return "v0" if place.parts[1] == "engine" else "v1"


def _labels(node: ast.expr | None) -> tuple[str, ...]:
    """The words in `labelnames + [...]`; a constant of a class is given by its last name."""
    if node is None:
        return ()
    words = {str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant)}
    words |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return tuple(sorted(words))


def _order(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def history(old: Mapping[str, Any], roots: Mapping[str, Path]) -> dict[str, Any]:
    """`old`, which may be empty, with the versions in `roots` (version -> folder) read anew.

    versions: ascending. metrics: by the name on /metrics and by engine: kind, own labels, and the versions in which it
    is shown and those in which it is hidden.
    """
    found: dict[str, Any] = {name: dict(engines) for name, engines in old.get("metrics", {}).items()}
    for engines in found.values():
        for row in engines.values():
            row.update({k: [v for v in row[k] if v not in roots] for k in ("shown", "hidden") if k in row})
    for version, root in roots.items():
        for d in definitions(root):
            name = d.name + ("_total" if d.kind == "counter" and not d.name.endswith("_total") else "")
            row = found.setdefault(name, {}).setdefault(d.engine, {})
            row |= {"kind": d.kind, "labels": d.labels}
            at = row.setdefault("hidden" if d.hidden else "shown", [])
            at[:] = sorted({*at, version}, key=_order)
    versions = sorted({*old.get("versions", ()), *roots}, key=_order)
    return {"versions": versions, "metrics": dict(sorted(found.items()))}


def main() -> None:
    match sys.argv[1:]:
        case [folder]:
            for found in definitions(Path(folder)):
                print(json.dumps(asdict(found)))
        case [old, *folders] if old.endswith(".json"):
            path = Path(old)
            known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            made = history(known, {Path(f).name: Path(f) for f in folders})
            path.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
        case _:
            sys.exit("usage: metric_names.py FOLDER | metric_names.py HISTORY.json FOLDER...")


if __name__ == "__main__":
    main()
