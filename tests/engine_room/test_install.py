"""The middleware goes into every shape of command line that can be read, comes out to the byte, or is refused."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trimtab.engine import install
from trimtab.engine.command import parse_template
from trimtab.engine.install import InstallNames, installed, installed_names, is_installed, removed
from trimtab.errors import EngineError, RewriteRefused

NAMES = InstallNames("llm-mw-0123abcd", "llm-token-policy", "secret")
Json = dict[str, Any]


def template(pod: Json | None = None, **container: Any) -> Json:
    body = {"name": "engine", "image": "vllm/vllm-openai:v0.9.1", "args": ["--model", "m"], **container}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {**(pod or {}), "containers": [body]}}


def engine(after: Json) -> Json:
    body: Json = after["spec"]["containers"][0]
    return body


def variables(after: Json) -> Json:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in engine(after)["env"]}


def code_of(before: Json, **changes: Any) -> str:
    with pytest.raises(RewriteRefused) as caught:
        installed(before, None, NAMES, **changes)
    assert caught.value.hint
    return caught.value.code


def test_every_readable_shape_takes_it_and_gives_it_back_to_the_byte(readable: Json) -> None:
    before = readable["template"]
    kept = copy.deepcopy(before)
    try:
        command = parse_template(before)
    except EngineError:
        pytest.skip("needs a file that the operator does not see")
    if command.multi_node:
        assert code_of(before) == "MultiNode"
        return
    after = installed(before, None, NAMES)
    assert before == kept
    assert installed_names(after) == NAMES and is_installed(after) and not is_installed(before)
    assert [f.value for f in parse_template(after).flags if f.name == "--middleware"][-1] == install.MIDDLEWARE_CLASS
    assert parse_template(after).configuration() == command.configuration()
    assert installed(after, None, NAMES) == after
    assert json.dumps(removed(after)) == json.dumps(before)


def test_what_is_added_is_all_that_the_middleware_needs() -> None:
    after = installed(template(), None, NAMES)
    body, spec = engine(after), after["spec"]
    assert body["args"] == ["--model", "m", "--middleware=trimtab_mw.Middleware"]
    assert variables(after) == {
        "TRIMTAB_POLICY_FILE": "/opt/trimtab-policy/policy.json",
        "PYTHONPATH": "/opt/trimtab",
        "POD_NAME": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        "TRIMTAB_DRAIN_TOKEN": "secret",
    }
    assert {m["name"]: (m["mountPath"], m["readOnly"], "subPath" in m) for m in body["volumeMounts"]} == {
        "trimtab-middleware": ("/opt/trimtab/trimtab_mw", True, False),
        "trimtab-policy": ("/opt/trimtab-policy", True, False),
    }
    code, policy = (v["configMap"] for v in spec["volumes"])
    assert (code["name"], "optional" in code) == ("llm-mw-0123abcd", False)
    assert (policy["name"], policy["optional"]) == ("llm-token-policy", True)


def test_another_version_replaces_the_old_one() -> None:
    newer = InstallNames("llm-mw-ffff0000", "llm-token-policy", "secret")
    after = installed(installed(template(), None, NAMES), None, newer)
    assert after == installed(template(), None, newer)


def test_other_middleware_and_later_edits_stay() -> None:
    before = template(args=["--model=m", "--middleware=mine.Auth"], env=[{"name": "A", "value": "1"}])
    after = installed(before, None, NAMES)
    assert engine(after)["args"][1:] == ["--middleware=mine.Auth", "--middleware=trimtab_mw.Middleware"]
    engine(after)["env"].append({"name": "LATER", "value": "2"})
    back = engine(removed(after))
    assert back["args"] == ["--model=m", "--middleware=mine.Auth"]
    assert back["env"] == [{"name": "A", "value": "1"}, {"name": "LATER", "value": "2"}]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("/a:/b", "/opt/trimtab:/a:/b"), ("", "/opt/trimtab/"), ("$(HOME)/lib", "/opt/trimtab:$(HOME)/lib")],
)
def test_a_literal_python_path_is_prepended_and_comes_back(value: str, wanted: str) -> None:
    before = template(env=[{"name": "PYTHONPATH", "value": value}, {"name": "Z", "value": "1"}], envFrom=[{}])
    after = installed(before, None, NAMES)
    assert variables(after)["PYTHONPATH"] == wanted
    assert removed(after) == before


def test_a_pod_name_that_is_there_is_used_and_stays() -> None:
    entry = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    after = installed(template(env=[entry]), None, NAMES)
    assert [e["name"] for e in engine(after)["env"]].count("POD_NAME") == 1
    assert removed(after) == template(env=[entry])


@pytest.mark.parametrize(
    ("code", "container"),
    [
        ("PythonPathOutOfSight", {"env": [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "c"}}}]}),
        ("PythonPathOutOfSight", {"envFrom": [{"configMapRef": {"name": "c"}}]}),
        ("PythonPathInScript", {"command": ["sh", "-c", "export PYTHONPATH=/x; exec vllm serve m"], "args": []}),
        ("PythonPathIgnored", {"command": ["python3", "-sE", "-m", "vllm.entrypoints.openai.api_server"]}),
        ("PodNameTaken", {"env": [{"name": "POD_NAME", "value": "x"}]}),
        ("MountTaken", {"volumeMounts": [{"name": "v", "mountPath": "/opt/trimtab/"}]}),
        ("MiddlewareByHand", {"args": ["--model=m", "--middleware", "trimtab_mw.Middleware"]}),
        ("MiddlewareByHand", {"env": [{"name": "TRIMTAB_POLICY_FILE", "value": "/p.json"}]}),
        ("VersionGated", {"image": "vllm/vllm-openai:v0.5.5"}),
    ],
)
def test_what_cannot_be_done_safely_is_refused(code: str, container: Json) -> None:
    assert code_of(template(**container)) == code


def test_a_prefix_that_cannot_make_python_path_is_no_hindrance() -> None:
    assert is_installed(installed(template(envFrom=[{"prefix": "HF_", "secretRef": {"name": "s"}}]), None, NAMES))


def test_the_callers_version_counts() -> None:
    assert code_of(template(image="mirror/vllm:latest"), version="0.5.4") == "VersionGated"


@pytest.mark.parametrize(
    ("pod", "container", "drains"),
    [
        ({}, {"args": ["--model=m", "--port=9000"]}, True),
        ({}, {"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}, True),
        ({}, {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}, False),
        ({"terminationGracePeriodSeconds": 10}, {}, False),
    ],
)
def test_it_drains_only_where_no_hook_is_and_time_is_left(pod: Json, container: Json, drains: bool) -> None:
    before = template(pod, **container)
    after = installed(before, None, NAMES)
    hook = engine(after).get("lifecycle", {}).get("preStop", {}).get("httpGet")
    assert (hook is not None) == drains
    assert ("TRIMTAB_DRAIN_TOKEN" in variables(after)) == drains
    if hook:
        assert hook["path"] == "/trimtab/drain?seconds=8" and hook["port"] in (8000, 9000)
        assert hook["httpHeaders"] == [{"name": "x-trimtab-token", "value": "secret"}]
    assert removed(after) == before


def test_without_a_token_there_is_no_hook() -> None:
    after = installed(template(), None, InstallNames("c", "p"))
    assert "lifecycle" not in engine(after) and "TRIMTAB_DRAIN_TOKEN" not in variables(after)


def test_python_imports_the_class_from_the_mounted_folder(tmp_path: Path) -> None:
    """As a ConfigMap gives it: flat files under the package's name, found by PYTHONPATH alone."""
    from trimtab import middleware

    package = tmp_path / install.PACKAGE_PATH.rpartition("/")[2]
    package.mkdir()
    for source in Path(str(middleware.__file__)).parent.glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    module, _, name = install.MIDDLEWARE_CLASS.rpartition(".")
    code = f"import importlib; print(getattr(importlib.import_module({module!r}), {name!r}).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "Middleware", done.stderr
