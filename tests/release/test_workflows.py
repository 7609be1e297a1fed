"""The workflows of the forge call make targets that exist, and nothing that needs more rights than it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(params=WORKFLOWS, ids=lambda p: p.name)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return read


def commands(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_every_make_target_it_calls_exists(workflow: dict[str, Any]) -> None:
    called = {t for c in commands(workflow) for line in re.findall(r"\bmake ([a-z -]+)", c) for t in line.split()}
    assert called <= TARGETS


def test_it_asks_for_rights_by_name_and_ends(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] and all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_every_file_it_names_exists(workflow: dict[str, Any]) -> None:
    named = {word for c in commands(workflow) for word in re.findall(r"(?:tuner|charts|\.ci)/[\w./-]+", c)}
    assert all((ROOT / name).exists() or name.startswith("charts/trimtab-") for name in named)


def test_actionlint_has_nothing_to_say() -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("no actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")
    done = subprocess.run([program, *map(str, WORKFLOWS)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
