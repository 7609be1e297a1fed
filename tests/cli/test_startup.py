"""What a person waits for before the first word. Seconds depend on the machine; which modules are loaded does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: each takes from 0.1 to 1 s to load
HEAVY = {"numpy", "scipy", "optuna", "aiohttp", "numba", "matplotlib", "jinja2", "torch", "sqlalchemy", "kubernetes",
         "kopf", "requests", "prometheus_api_client", "pandas"}  # fmt: skip
#: more than a list of commands needs
MIDDLE = {"pydantic", "typer", "rich", "yaml", "click", "asyncio"}
_RUN = """
import sys
from trimtab.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    """Top-level modules after the command, which must have printed something."""
    done = subprocess.run([sys.executable, "-c", _RUN, *words], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout
    return {m.partition(".")[0] for m in done.stderr.split()}


@pytest.mark.parametrize("words", [["--help"], ["--version"], []], ids=lambda w: " ".join(w) or "nothing")
def test_the_list_of_commands_loads_only_the_standard_library(words: list[str]) -> None:
    assert loaded(*words).isdisjoint(HEAVY | MIDDLE)


@pytest.mark.parametrize("command", ["tune", "report", "lint", "diagnose", "kv", "rewrite"])
def test_the_help_of_a_command_does_not_wait_for_what_runs_it(command: str) -> None:
    allowed = {"requests", "prometheus_api_client"} if command == "diagnose" else set()
    assert loaded(command, "--help").isdisjoint(HEAVY - allowed)


def test_the_help_of_tune_loads_no_models() -> None:
    assert "pydantic" not in loaded("tune", "--help")
