"""`trimtab lint`: exit codes, what is read, and the three outputs as programs and people see them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trimtab.cli.main import main
from trimtab.lint.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/target.yaml"
SCHEMA = json.loads((ROOT / "tests/lint/data/sarif-2.1.0-rtm.4.json").read_text())
BAD = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x\n"
WARNED = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: warned}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: [--model=m, --disable-log-stats]
"""


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["lint", *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def file(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return file


@pytest.mark.parametrize(("threshold", "code"), [("error", 0), ("warning", 1), ("info", 1)])
def test_the_threshold_decides_the_exit_code(threshold: str, code: int, write: Any) -> None:
    assert run("--severity-threshold", threshold, write("w.yaml", WARNED)) == code


def test_by_default_errors_fail(write: Any) -> None:
    assert run(str(EXAMPLE)) == 0
    assert run(write("e.yaml", WARNED.replace("--disable-log-stats", "--config=/c.yaml"))) == 1


@pytest.mark.parametrize("rule", ["TT028", "tt028", "NoMetrics", "TT046,NoMetrics"])
def test_a_rule_can_be_disabled_by_id_or_name(rule: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("--disable", rule, "-o", "json", write("w.yaml", WARNED))
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert "TT028" not in {f["id"] for f in target["findings"]}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "FILE"),
        (["--disable", "TT999", "x"], "--disable"),
        (["--engine-version", "new", "x"], "--engine-version"),
        (["-", "-"], "standard input"),
        (["--severity-threshold", "fatal", "x"], "severity-threshold"),
        (["--slow-start-seconds", "0", "x"], "slow-start"),
        (["no-such-file.yaml"], "no-such-file.yaml"),
    ],
)
def test_bad_usage_is_2_and_names_what_is_wrong(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*args) == 2
    assert said in capsys.readouterr().err


def test_a_bad_file_is_named_with_its_line_and_the_others_are_linted(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-o", "json", write("bad.yaml", BAD), write("w.yaml", WARNED)) == 2
    out = capsys.readouterr()
    read = json.loads(out.out)
    assert [t["name"] for t in read["targets"]] == ["warned"]
    (error,) = read["errors"]
    assert error["field"].endswith("bad.yaml:4") and error["fix"] and "bad.yaml:4" in out.err


def test_a_folder_is_read_recursively_and_charts_are_passed_over(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("m/a/w.yaml", WARNED)
    write("m/b.json", json.dumps(yaml.safe_load(WARNED.replace("warned", "json"))))
    write("m/notes.txt", BAD)
    write("m/.hidden/x.yaml", BAD)
    write("m/chart/Chart.yaml", "name: c")
    write("m/chart/templates/x.yaml", "kind: {{ .Values.kind }}")
    assert run("-o", "json", str(tmp_path / "m")) == 0
    out = capsys.readouterr()
    assert [t["name"] for t in json.loads(out.out)["targets"]] == ["warned", "json"]
    assert "helm template" in out.err


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    assert run(str(tmp_path)) == 2


def test_stdin_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WARNED.encode())))
    assert run("-") == 0
    assert "warned" in capsys.readouterr().out


def test_files_without_an_engine_are_told_and_fail_only_on_demand(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("s.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n")
    assert run(file) == 0
    assert "runs vLLM" in capsys.readouterr().err
    assert run("--require-engine", file) == 2
    assert run("--require-engine", str(EXAMPLE)) == 0


def test_the_engine_version_can_be_given(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("w.yaml", WARNED.replace("v0.32.0", "latest"))
    run("-o", "json", "--engine-version", "0.9.1", file)
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert target["version"] == "0.9.1"


def test_a_model_config_is_read(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
              "hidden_size": 4096, "torch_dtype": "bfloat16"}  # fmt: skip
    flags = "--max-model-len=8k, --kv-cache-memory-bytes=500M"
    file = write("w.yaml", WARNED.replace("--disable-log-stats", flags))
    assert run(file) == 0
    assert run("--model-config", write("config.json", json.dumps(config)), file) == 1
    assert "TT025" in capsys.readouterr().out
    assert run("--model-config", write("none.json", "["), file) == 2


def test_text_groups_by_engine_worst_first_with_the_fix(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(write("w.yaml", WARNED), str(EXAMPLE))
    lines = capsys.readouterr().out.splitlines()
    assert "Deployment warned, container vllm (shape image, vLLM 0.32.0)" in lines[0]
    assert lines[1].startswith("  warning TT028 NoMetrics (line 11): ") and lines[2].strip().startswith("Fix: ")
    assert lines[-1].startswith("2 engines: 0 errors, ")


def test_json_has_all_documented_fields(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("-o", "json", write("w.yaml", WARNED))
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    page = (ROOT / "docs/lint.md").read_text()
    assert [name for name in target if f"`{name}`" not in page] == []
    assert set(target["findings"][0]) == {"id", "name", "severity", "message", "fix", "where"}
    assert target["flags"] == {"model": "m", "disable_log_stats": True} and target["shape"] == "image"


def test_sarif_is_valid_and_points_at_lines(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("-o", "sarif", write("w x.yaml", WARNED), write("bad.yaml", BAD))
    log = json.loads(capsys.readouterr().out)
    jsonschema.validate(log, SCHEMA, cls=jsonschema.Draft4Validator)
    (one,) = log["runs"]
    rules = one["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == list(RULES)
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in one["results"])
    (found,) = [r for r in one["results"] if r["ruleId"] == "TT028"]
    place = found["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == 11 and place["artifactLocation"]["uri"].endswith("w%20x.yaml")
    assert found["level"] == "warning"
    assert one["invocations"][0]["executionSuccessful"] is False
    assert "bad.yaml:4" in one["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rules") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
