"""The chart's README is what values.yaml says, and every value is explained."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack/docs"))
import chart

del sys.path[0]


def test_the_page_is_what_the_values_say() -> None:
    assert chart.PAGE.read_text() == chart.text(), "run: python hack/docs/chart.py"


def test_every_value_is_explained() -> None:
    assert [v.path for v in chart.values((chart.CHART / "values.yaml").read_text()) if not v.text] == []
