"""Writes docs/cli.md: what `trimtab COMMAND --help` says. Run `python hack/docs/cli.py`; a test compares."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from trimtab.cli.main import COMMANDS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/cli.md"
_WIDTH: Final = "100"
_RUN: Final = "from trimtab.cli.main import main; main()"
_HEAD: Final = """# The commands

Made by `python hack/docs/cli.py` from the commands themselves. `trimtab COMMAND --help` says the same.
"""


def text() -> str:
    """The page."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        helps = pool.map(_help, COMMANDS)
        parts = [f"\n## trimtab {name}\n\n```text\n{told}\n```\n" for name, told in zip(COMMANDS, helps, strict=True)]
    return _HEAD + "".join(parts)


def _help(name: str) -> str:
    command = [sys.executable, "-c", _RUN, name, "--help"]
    environ = os.environ | {"COLUMNS": _WIDTH, "TERMINAL_WIDTH": _WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


if __name__ == "__main__":
    PAGE.write_text(text())
