"""`trimtab predict` as a person runs it; training in a Python with torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli.main import main
from trimtab.middleware.quantile_model import load

sys.path.insert(0, str(Path(__file__).parent))
from predict_world import rows, write_log

ROOT = Path(__file__).resolve().parents[2]


def predict(python: Path | str, *args: Path | str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs in the environment that has torch, with this tree's code."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tuner"), "COLUMNS": "160", **environ}
    command = [str(python), "-m", "trimtab.cli.main", "predict", *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


def levels(report: dict[str, Any]) -> dict[float, dict[str, Any]]:
    return {level["level"]: level for level in report["levels"]}


@pytest.mark.engine
def test_a_world_with_structure_is_learned(torch_python: Path, tmp_path: Path) -> None:
    """Limits and clients that leave included. The same seed gives the same bytes, and evaluate the same figures."""
    log = write_log(tmp_path / "log.jsonl", rows(8000, caps=True, leave=0.1))
    out = tmp_path / "p.json"
    done = predict(torch_python, "train", log, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["skill_low"] > 0.25
    found = levels(report)
    assert found[0.5]["coverage"] == pytest.approx(0.5, abs=0.05)
    assert found[0.9]["coverage"] == pytest.approx(0.9, abs=0.03)
    assert found[0.99]["coverage"] == pytest.approx(0.99, abs=0.012)
    assert all(level["loss"] < level["percentile_loss"] for level in found.values())
    assert out.stat().st_size < 200_000
    assert load(str(out)).summary["test"] == report

    again = tmp_path / "again.json"
    assert predict(torch_python, "train", log, "-o", again).returncode == 0
    assert again.read_bytes() == out.read_bytes()

    later = write_log(tmp_path / "later.jsonl", rows(4000, seed=0, caps=True)[2000:])
    evaluated = predict(torch_python, "evaluate", out, later, "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["requests"] == 2000


@pytest.mark.engine
def test_prompts_that_say_nothing_are_refused_with_status_3(torch_python: Path, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", rows(5000, telling=False))
    out = tmp_path / "p.json"
    done = predict(torch_python, "train", log, "-o", out)
    assert done.returncode == 3, done.stderr
    assert "percentile policy" in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


def test_without_torch_it_says_where_to_get_it(tmp_path: Path) -> None:
    """A folder that shadows torch stands for an environment without it."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    log = write_log(tmp_path / "log.jsonl", rows(10))
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'tuner'}"}
    command = [sys.executable, "-m", "trimtab.cli.main", "predict", "train", str(log)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "trimtab[predict]" in done.stderr and "Traceback" not in done.stderr


def test_evaluate_and_show_need_no_torch(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    log = write_log(tmp_path / "log.jsonl", rows(500))
    with pytest.raises(SystemExit) as caught:
        main(["predict", "evaluate", str(model_file), str(log)])
    out = capsys.readouterr()
    assert caught.value.code == 3, "random weights are no better than anything"
    assert "500 requests" in out.out and "must be sure" in out.err
    with pytest.raises(SystemExit) as caught:
        main(["predict", "show", str(model_file)])
    assert caught.value.code == 0
    assert json.loads(capsys.readouterr().out)["percentiles"] == [100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["show", "{tmp}/absent.json"], "cannot be read"),
        (["show", "{tmp}/bad.json"], "not JSON"),
        (["evaluate", "{model}", "{tmp}/absent.jsonl"], "cannot be read"),
        (["evaluate", "{model}", "{tmp}/bad.json"], "bad.json:1 line"),
    ],
)
def test_bad_input_ends_with_a_name_and_a_fix(
    args: list[str], words: str, model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("{\n")
    with pytest.raises(SystemExit) as caught:
        main(["predict", *[a.format(tmp=tmp_path, model=model_file) for a in args]])
    assert caught.value.code == 1
    assert words in capsys.readouterr().err
