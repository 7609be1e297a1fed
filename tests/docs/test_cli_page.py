"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack/docs"))
import cli

del sys.path[0]


@pytest.mark.slow
def test_the_page_is_what_the_commands_say() -> None:
    assert cli.PAGE.read_text() == cli.text(), "run: python hack/docs/cli.py"
