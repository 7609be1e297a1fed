"""A Deployment without faults (the one of examples/) to break one thing at a time, and the lint of what results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from lint_cases import HEALTHY

from trimtab.lint.finding import Options
from trimtab.lint.report import Report, lint
from trimtab.manifests.documents import read_documents

Manifest = dict[str, Any]
Lint = Callable[..., list[Report]]


@pytest.fixture
def healthy() -> Manifest:
    return deepcopy(HEALTHY)


@pytest.fixture
def lint_text() -> Lint:
    def run(text: str, options: Options | None = None, **more: Any) -> list[Report]:
        return lint(read_documents(text, "x.yaml"), options or Options(), **more)

    return run


@pytest.fixture
def lint_of(lint_text: Lint) -> Lint:
    """Reports of objects."""

    def run(*objects: Manifest, **more: Any) -> list[Report]:
        return lint_text(yaml.safe_dump_all(objects, sort_keys=False), **more)

    return run
