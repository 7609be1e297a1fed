"""docs/metrics.md is what the table says; hack/engine/metric_page.py writes it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from trimtab.engine.metric_table import METRICS, READ, parse_version

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metric_page", ROOT / "hack/engine/metric_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_data(writer: ModuleType) -> None:
    assert writer.render(PAGE) == PAGE, "run hack/engine/metric_page.py"


def test_a_page_without_its_markers_is_refused(writer: ModuleType) -> None:
    with pytest.raises(ValueError):
        writer.render("# nothing")


def test_the_renames_that_are_told_are_those_of_the_data() -> None:
    section = PAGE.split("## What became of names")[1].split("##")[0]
    for metric in (m for m in METRICS.values() if m.renamed_from):
        stem, older = (n.removeprefix("vllm:") for n in (metric.name, metric.renamed_from))
        (row,) = [line for line in section.splitlines() if f"`{stem}`" in line and f"`{older}`" in line]
        both = [
            v for v in READ if metric.standing(v, "v1") == METRICS[metric.renamed_from].standing(v, "v1") == "shown"
        ]
        hidden = [v for v in READ if METRICS[metric.renamed_from].standing(v, "v1") == "hidden"]
        said = [parse_version(v) for v in re.findall(r"\d+\.\d+(?:\.\d+)?", row)]
        if said:
            assert said[:2] == [both[0], both[-1]] and said[2][:2] == hidden[-1][:2]
