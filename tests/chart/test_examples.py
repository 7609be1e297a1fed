"""The examples are what they say: tuners that parse, a target that ends its pods gently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.plan.spec import TunerSpec

ROOT = Path(__file__).resolve().parents[2]
TUNERS = sorted((ROOT / "examples").glob("tuner-*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


@pytest.mark.parametrize("path", TUNERS, ids=lambda p: p.stem)
def test_tuner_examples_parse_and_name_the_example_target(path: Path) -> None:
    (tuner,) = documents(path)
    spec = TunerSpec.parse(tuner["spec"])
    targets = [d for d in documents(ROOT / "examples/target.yaml") if d["kind"] == "Deployment"]
    assert [d["metadata"]["name"] for d in targets] == [spec.target_ref.name]
    assert spec.mode.lower() == path.stem.removeprefix("tuner-")


def test_the_first_example_is_short() -> None:
    lines = (ROOT / "examples/tuner-recommend.yaml").read_text().splitlines()
    assert len(lines) <= 10


def test_the_target_drains_before_it_ends() -> None:
    (target,) = [d for d in documents(ROOT / "examples/target.yaml") if d["kind"] == "Deployment"]
    pod = target["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    (drain,) = [int(a.partition("=")[2]) for a in container["args"] if a.startswith("--shutdown-timeout=")]
    assert pod["terminationGracePeriodSeconds"] > pre_stop + drain + 5
    assert target["spec"]["replicas"] >= 2
