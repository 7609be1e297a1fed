"""The table of admission models: whole, consistent, and the page shows it as it is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from trimtab.engine.admission import NEVER, TABLE, Admission, Model, admission, as_markdown, of_model
from trimtab.errors import InputError

PAGE = Path(__file__).resolve().parents[2] / "docs/engines.md"
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda r: r.engine)


def test_the_page_is_the_table() -> None:
    text = PAGE.read_text()
    begin, end = "<!-- table: trimtab.engine.admission -->\n\n", "\n<!-- end of table -->"
    assert text[text.index(begin) + len(begin) : text.index(end)] == as_markdown()


def test_the_engines_of_the_issue_are_there() -> None:
    names = [row.engine for row in TABLE]
    assert names == ["vLLM v0", "vLLM v1", "SGLang", "TGI v3", "TensorRT-LLM GUARANTEED_NO_EVICT",
                     "TensorRT-LLM MAX_UTILIZATION"]  # fmt: skip


@ROWS
def test_every_cell_is_filled_and_fits_a_table(row: Admission) -> None:
    for field in fields(row):
        value = str(getattr(row, field.name))
        assert value and "|" not in value and "\n" not in value, field.name


@ROWS
def test_who_reserves_all_never_preempts_and_others_do(row: Admission) -> None:
    assert row.preempts == (row.model is not Model.RESERVE)
    assert (row.victim == "nobody") == (row.preemption == NEVER)


def test_no_vllm_reserves() -> None:
    assert {row.model for row in TABLE if row.engine.startswith("vLLM")} == {Model.ON_DEMAND}
    assert [row.engine for row in of_model(Model.RESERVE)] == ["TGI v3", "TensorRT-LLM GUARANTEED_NO_EVICT"]


def test_rows_are_found_by_name() -> None:
    assert admission(" sglang ").model is Model.FRACTION
    with pytest.raises(InputError, match="Known are vLLM v0"):
        admission("orca")
