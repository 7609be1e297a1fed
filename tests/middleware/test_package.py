"""The package can be mounted: flat, small, alone, on Python 3.9; its metrics and settings are documented."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

import trimtab
from trimtab.middleware import VERSION
from trimtab.middleware.metrics import ENDINGS, Metrics
from trimtab.middleware.policy_file import Policy, parse
from trimtab.middleware.table import kinds

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tuner" / "trimtab" / "middleware"
FILES = sorted(PACKAGE.glob("*.py"))
DOC = ROOT / "docs" / "middleware.md"


def test_it_is_one_flat_folder_that_fits_a_configmap() -> None:
    assert not [p for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert sum(len(p.read_bytes()) for p in FILES) < 300_000  # of 1 MiB


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_it_imports_only_itself_the_standard_library_and_prometheus_client(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top == "prometheus_client", f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_it_parses_as_python_3_9_and_uses_nothing_newer(path: Path) -> None:
    text = path.read_text()
    ast.parse(text, feature_version=(3, 9))
    assert "from __future__ import annotations" in text
    newer = (
        r"\bzip\([^\n]*strict=|slots=True|kw_only=True|\bTypeAlias\b|asyncio\.(TaskGroup|timeout)\b"
        r"|tomllib|StrEnum|itertools\.pairwise|\banext\("
    )
    assert not re.search(newer, text)


def test_unions_with_a_bar_are_only_in_annotations_which_are_never_evaluated() -> None:
    """`int | None` outside an annotation needs Python 3.10."""
    for path in FILES:
        tree = ast.parse(path.read_text())
        inside: set[int] = set()
        for node in ast.walk(tree):
            notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
            for note in filter(None, notes):
                inside.update(id(n) for n in ast.walk(note))
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in inside:
                sides = (node.left, node.right)
                assert not any(isinstance(s, ast.Constant) and s.value is None for s in sides), (
                    f"{path.name}:{node.lineno}"
                )


def test_it_loads_under_another_name_from_a_folder_without_trimtab(tmp_path: Path) -> None:
    target = tmp_path / "other_name"
    target.mkdir()
    for path in FILES:
        (target / path.name).write_text(path.read_text())
    code = (
        "import sys, prometheus_client, other_name\n"
        "app = other_name.Middleware(lambda *a: None)\n"
        "assert app.core is not None and app.core.watch.problem == ''\n"
        "other_name.Middleware(lambda *a: None)\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('trimtab', 'torch', 'numpy', 'pydantic')]\n"
        "assert b'llm_useful_tokens_total' in prometheus_client.generate_latest()\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRIMTAB")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_it_counts_over_several_processes_as_vllm_does_with_many_api_servers(tmp_path: Path) -> None:
    """PROMETHEUS_MULTIPROC_DIR: counters add up, the generation is the lowest that any process has taken."""
    code = (
        "import asyncio, os, sys\n"
        "from trimtab.middleware.core import Core\n"
        "core = Core(os.environ)\n"
        "core.metrics.useful.inc(5)\n"
        "core.metrics.policy_generation.set(int(sys.argv[1]))\n"
        "core.metrics.running.set(2)\n"
    )
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for generation in ("3", "4"):
        subprocess.run([sys.executable, "-c", code, generation], env=env, check=True, timeout=60)
    from prometheus_client import multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    assert registry.get_sample_value("llm_useful_tokens_total") == 10
    values = {s.name: s.value for m in registry.collect() for s in m.samples if not s.labels}
    assert values["trimtab_mw_policy_generation"] == 3 and values["trimtab_mw_running_sequences"] == 4


def test_the_version_is_trimtabs() -> None:
    assert trimtab.__version__ == VERSION


def names() -> list[str]:
    registry = CollectorRegistry()
    Metrics(registry)
    collectors: list[Collector] = list(registry._collector_to_names)  # type: ignore[attr-defined]
    found = []
    for collector in collectors:
        described = collector.describe()  # type: ignore[attr-defined]
        found += [metric.name + ("_total" if metric.type == "counter" else "") for metric in described]
    return found


def test_each_metric_ending_and_setting_is_in_the_docs() -> None:
    text = DOC.read_text()
    missing = [name for name in names() if f"`{name}`" not in text]
    missing += [ending for ending in ENDINGS if f"`{ending}`" not in text]
    missing += [
        setting
        for setting in ("TRIMTAB_POLICY_FILE", "TRIMTAB_DRAIN_TOKEN", "TRIMTAB_HOST_IP", "POD_NAME")
        if setting not in text
    ]
    assert missing == []


def test_each_field_of_the_policy_file_is_in_the_docs() -> None:
    text = DOC.read_text()

    def fields(cls: type, prefix: str) -> list[str]:
        found = []
        for name, kind in kinds(cls).items():
            found.append(name)
            if kind.of is not None:
                found += fields(kind.of, name)
        return found

    assert [name for name in fields(Policy, "") if f"`{name}`" not in text] == []


def test_the_examples_in_the_docs_are_valid_policies() -> None:
    blocks = re.findall(r"```json\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        parse(block.encode())
        json.loads(block)
