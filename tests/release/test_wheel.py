"""What people install: the built wheel, in an environment that has the dependencies and nothing of this checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from trimtab import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new environment's commands. The dependencies are those that run this test."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python")
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "bin"


def test_every_command_of_the_wheel_starts(clean: Path) -> None:
    for name in PROJECT["scripts"].keys() - {"kubectl_complete-trimtab"}:  # kubectl calls it, it has no help
        assert "usage" in run(clean / name, "--help", cwd=clean).lower()


def test_the_wheel_is_what_runs_and_tells_its_version(clean: Path) -> None:
    where = run(clean / "python", "-c", "import trimtab; print(trimtab.__file__)", cwd=clean)
    assert where.startswith(str(clean.parent))
    assert run(clean / "trimtab", "--version", cwd=clean) == f"trimtab {__version__}\n"


def test_the_wheel_works_with_its_data_files(clean: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text((ROOT / "examples/target.yaml").read_text())
    assert run(clean / "trimtab", "rewrite", "--set", "max_num_seqs=48", manifest, cwd=tmp_path)


def test_all_that_the_packages_hold_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = run("git", "ls-files", "tuner/trimtab", "operator/trimtab_operator", cwd=ROOT).split()
    wanted = {re.sub(r"^(tuner|operator)/", "", name) for name in tracked if (ROOT / name).exists()}
    assert wanted <= packed


def test_there_is_one_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/trimtab/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {__version__}
    newest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest in {"Unreleased", __version__}
