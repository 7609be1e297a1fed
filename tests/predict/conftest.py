"""A Python with torch: this one, or that of the real vLLM's environment; and a small predictor made by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.predict.fitted import Fitted, to_bytes

sys.path.insert(0, str(Path(__file__).parent))
from predict_world import made_by_hand

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """torch from the index brings gigabytes of GPU libraries, so the development environment has none."""
    if importlib.util.find_spec("torch") is not None:
        return Path(sys.executable)
    built = subprocess.run(
        [ROOT / "hack/engine/build.sh"], stdout=subprocess.PIPE, text=True, check=True, timeout=900
    ).stdout
    return Path(built.splitlines()[0]) / "bin" / "python"


@pytest.fixture
def fitted() -> Fitted:
    return made_by_hand()


@pytest.fixture
def model_file(fitted: Fitted, tmp_path: Path) -> Path:
    path = tmp_path / "predictor.json"
    path.write_bytes(to_bytes(fitted, {"percentiles": [100.0, 200.0, 300.0, 400.0, 500.0]}))
    return path
