"""What a pod needs to end without losing requests: found by lint's rules, added as the API server keeps it."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.plan.drain import added, command, problems

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.32.0"


def bare(*args: str, **container: Any) -> Json:
    body = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=m", *args], **container}
    return {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "sidecar", "image": "s"}, body]}}


GOOD = {
    "lifecycle": {"preStop": {"sleep": {"seconds": 8}}},
    "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
}


def test_the_example_and_the_tests_own_targets_lose_nothing() -> None:
    example = next(yaml.safe_load_all((ROOT / "examples/target.yaml").read_text()))
    assert problems(example["spec"]["template"], None, None) == []


def test_a_bare_manifest_is_told_what_it_lacks_and_gets_them() -> None:
    template = bare()
    assert len(problems(template, "vllm", VERSION)) == 3
    mended = added(template, "vllm", VERSION)
    assert problems(mended, "vllm", VERSION) == []
    body = mended["spec"]["containers"][1]
    assert body["args"] == ["--model=m", "--shutdown-timeout=20"]
    assert body["lifecycle"] == {"preStop": {"sleep": {"seconds": 8}}}
    assert body["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000, "scheme": "HTTP"}
    assert mended["spec"]["terminationGracePeriodSeconds"] == 45
    assert added(mended, "vllm", VERSION) == mended and template == bare()  # nothing twice, nothing in place


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (bare("--shutdown-timeout=60", **GOOD), "need 73 s"),
        (bare("--shutdown-timeout=20", readinessProbe=GOOD["readinessProbe"]), "no preStop"),
        (bare("--shutdown-timeout=20", lifecycle=GOOD["lifecycle"]), "no readinessProbe"),
        (bare(**GOOD), "no --shutdown-timeout"),
        (bare("--shutdown-timeout=9", readinessProbe=GOOD["readinessProbe"], lifecycle={
            "preStop": {"exec": {"command": ["sh", "-c", "while pgrep vllm; do sleep 1; done"]}}}), "loops"),
    ],
)  # fmt: skip
def test_each_trap_is_told(template: Json, said: str) -> None:
    if "45" not in str(template["spec"].get("terminationGracePeriodSeconds")) and said != "need 73 s":
        template["spec"]["terminationGracePeriodSeconds"] = 45
    (found,) = problems(template, "vllm", VERSION)
    assert said in found


def test_an_engine_without_the_flag_drains_by_its_hook_alone() -> None:
    """Before 0.18 vLLM knows no --shutdown-timeout; while the hook waits it goes on serving."""
    old = bare()
    mended = added(old, "vllm", "0.9.1")
    body = mended["spec"]["containers"][1]
    assert body["args"] == ["--model=m"] and body["lifecycle"]["preStop"]["sleep"]["seconds"] == 28
    assert mended["spec"]["terminationGracePeriodSeconds"] == 45
    assert problems(mended, "vllm", "0.9.1") == [] and len(problems(mended, "vllm", VERSION)) == 1


def test_what_the_owner_accepts_is_no_problem_and_not_added() -> None:
    template = bare("--shutdown-timeout=20", readinessProbe=GOOD["readinessProbe"])
    template["metadata"]["annotations"] = {"trimtab.dev/lint-ignore": "TT052"}
    assert problems(template, "vllm", VERSION) == []
    assert "lifecycle" not in added(template, "vllm", VERSION)["spec"]["containers"][1]


def test_the_middlewares_hook_counts_as_one() -> None:
    hook = {"preStop": {"httpGet": {"path": "/trimtab/drain?seconds=8", "port": 8000, "scheme": "HTTP"}}}
    template = bare("--shutdown-timeout=20", lifecycle=hook, readinessProbe=GOOD["readinessProbe"])
    assert problems(template, "vllm", VERSION) == []


def test_a_shell_scripts_flag_goes_into_its_command() -> None:
    template = bare(command=["sh", "-c"])
    template["spec"]["containers"][1]["args"] = ["exec vllm serve m --port 80"]
    body = added(template, "vllm", VERSION)["spec"]["containers"][1]
    assert body["args"] == ["exec vllm serve m --port 80 --shutdown-timeout=20"]
    assert body["readinessProbe"]["httpGet"]["port"] == 80


def _patched(template: Json, line: str) -> Json:
    words = shlex.split(line)
    assert words[:4] == ["kubectl", "patch", "deployment", "llm"]
    out = {"spec": {"template": copy.deepcopy(template)}}
    for op in json.loads(words[words.index("-p") + 1]):
        at: Any = out
        *path, last = op["path"].split("/")[1:]
        for key in path:
            at = at[int(key)] if isinstance(at, list) else at[key]
        if op["op"] == "test":
            assert (at[int(last)] if isinstance(at, list) else at[last]) == op["value"]
        elif isinstance(at, list):
            at.append(op["value"]) if last == "-" else at.insert(int(last), op["value"])
        else:
            at[last] = op["value"]
    return out["spec"]["template"]


def test_the_command_does_what_would_be_added() -> None:
    template = bare()
    mended = added(template, "vllm", VERSION)
    assert _patched(template, command(template, mended, "vllm", "llm", "ns")) == mended


def test_a_command_never_shows_a_key() -> None:
    template = bare(command=["sh", "-c"])
    template["spec"]["containers"][1]["args"] = ["exec vllm serve m --api-key sk-123"]
    assert command(template, added(template, "vllm", VERSION), "vllm", "llm", "ns") == ""
