"""The manifests of data/manifests.yaml as parameters: `readable` and `refused`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CASES = yaml.safe_load((Path(__file__).parent / "data" / "manifests.yaml").read_text())


def _case(case: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "x", **case.get("labels", {})}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", **case["container"]}]}}
    return {**case, "template": template, "files": case.get("files", {})}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, key in (("readable", "expect"), ("refused", "refuse")):
        if fixture in metafunc.fixturenames:
            cases = [_case(c) for c in CASES if key in c]
            metafunc.parametrize(fixture, cases, ids=[c["name"].replace(" ", "-") for c in cases])
