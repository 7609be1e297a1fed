"""Lists the metrics that a vLLM source tree defines, by reading its syntax trees: nothing of vLLM is imported.

    python hack/engine/metric_names.py FOLDER              one definition a line
    python hack/engine/metric_names.py 0.6.0 0.6.1 ...     the history over folders named by version, as one JSON

A folder holds `vllm/` (an unpacked source distribution, or a venv's site-packages). Hidden means: shown only with
--show-hidden-metrics-for-version. Tests compare trimtab/engine/metric_table.py with the history of 0.6.0 to 0.33.0,
which is tests/observe/data/vllm-metric-history.json.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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


def history(roots: Mapping[str, Path]) -> dict[str, object]:
    """Versions read (ascending) and per metric as /metrics spells it and engine: kind, own labels, and the versions in
    which it is shown and those in which it is hidden. roots: version -> folder."""
    versions = sorted(roots, key=lambda v: [int(part) for part in v.split(".")])
    found: dict[str, dict[str, dict[str, object]]] = defaultdict(dict)
    seen: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for version in versions:
        for d in definitions(roots[version]):
            name = d.name + ("_total" if d.kind == "counter" and not d.name.endswith("_total") else "")
            found[name][d.engine] = {"kind": d.kind, "labels": d.labels}
            if version not in seen[name, d.engine, d.hidden]:
                seen[name, d.engine, d.hidden].append(version)
    for (name, engine, hidden), at in seen.items():
        found[name][engine]["hidden" if hidden else "shown"] = at
    return {"versions": versions, "metrics": dict(sorted(found.items()))}


def main() -> None:
    folders = [Path(a) for a in sys.argv[1:]]
    if not folders:
        sys.exit("usage: metric_names.py FOLDER [FOLDER...]")
    if len(folders) > 1:
        print(json.dumps(history({f.name: f for f in folders}), separators=(",", ":")))
        return
    for found in definitions(folders[0]):
        print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
