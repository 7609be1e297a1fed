"""The patch is minimal and tested, and its text is safe to paste."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trimtab.engine.patch import json_patch, paste_ready, snippet
from trimtab.engine.rewrite import rewrite
from trimtab.errors import InputError


def template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.9.1", **container}]}}


def applied(document: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, as far as it is used."""
    document = copy.deepcopy(document)
    for operation in operations:
        *path, last = operation["path"].split("/")[1:]
        place = document
        for key in path:
            place = place[int(key) if isinstance(place, list) else key]
        key = last if isinstance(place, dict) else len(place) if last == "-" else int(last)
        if operation["op"] == "test":
            assert place[key] == operation["value"]
        elif operation["op"] == "remove":
            del place[key]
        elif operation["op"] == "add" and isinstance(place, list):
            place.insert(key, operation["value"])
        else:
            place[key] = operation["value"]
    return document


def test_only_the_changed_items_are_touched() -> None:
    before = template(args=["--model", "m", "--max-num-seqs", "32", "--api-key", "sk-1"])
    operations = json_patch(before, rewrite(before, {"max_num_seqs": 48, "enable_prefix_caching": True}))
    base = "/spec/template/spec/containers/0"
    assert operations == [
        {"op": "test", "path": f"{base}/name", "value": "engine"},
        {"op": "add", "path": f"{base}/args/-", "value": "--enable-prefix-caching"},
        {"op": "test", "path": f"{base}/args/3", "value": "32"},
        {"op": "replace", "path": f"{base}/args/3", "value": "48"},
    ]


def test_equal_templates_need_nothing() -> None:
    before = template(args=["--model", "m"])
    assert json_patch(before, before) == [] and snippet(before, before) == ""
    assert paste_ready(before, before, "a", "b") == "# Nothing to change.\n"


def test_a_missing_list_is_added_and_removed() -> None:
    before, after = template(), template(args=["--x"])
    assert applied(before, json_patch(before, after, prefix="")) == after
    assert applied(after, json_patch(after, before, prefix="")) == before


LISTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=7)


@given(LISTS, LISTS)
def test_the_patch_leads_from_one_to_the_other(old: list[str], new: list[str]) -> None:
    before, after = template(args=old), template(args=new)
    assert applied(before, json_patch(before, after, prefix="")) == after


def test_other_differences_are_refused() -> None:
    with pytest.raises(InputError, match="more than command, args"):
        json_patch(template(args=["a"]), template(args=["a"], env=[]))
    two = {"spec": {"containers": [{"name": "a", "args": ["1"]}, {"name": "b", "args": ["1"]}]}}
    other = {"spec": {"containers": [{"name": "a", "args": ["2"]}, {"name": "b", "args": ["2"]}]}}
    with pytest.raises(InputError, match="one container"):
        json_patch(two, other)


HOSTILE = "'; touch pwned; echo \"$(touch pwned)`touch pwned`\n# \n touch pwned\n\x1b]0;x\u2028!!"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_hostile_text_stays_data(tmp_path: Path, shell: str) -> None:
    before = template(args=["--model", "m", "--max-num-seqs", "1", "--chat-template", HOSTILE])
    after = template(args=["--model", HOSTILE, "--max-num-seqs", "2", "--chat-template", HOSTILE])
    text = paste_ready(before, after, HOSTILE, "$(touch pwned)")
    (tmp_path / "kubectl").write_text('#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done\n')
    (tmp_path / "kubectl").chmod(0o755)
    out = subprocess.run(
        [shell, "-c", text], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True
    )
    given_args = out.stdout.decode().split("\0")
    assert given_args[:3] == ["patch", "deployment", HOSTILE] and given_args[4] == "$(touch pwned)"
    assert json.loads(given_args[7]) == json_patch(before, after)
    assert not (tmp_path / "pwned").exists() and "\x1b" not in snippet(before, after)


def test_the_comment_lines_are_harmless_even_without_comments() -> None:
    before = template(args=["--model", "m"])
    after = template(args=["--model", HOSTILE])
    for line in snippet(before, after).splitlines():
        assert not set("$`!'") & set(line)
        assert shlex.split(line)[0] in {"args:", "-"}


def test_the_snippet_is_yaml_of_the_lists() -> None:
    before = template(command=["vllm", "serve", "m"], args=["--chat-template", "a'b$c: d\n"])
    after = rewrite(before, {"max_num_seqs": 3})
    read = yaml.safe_load(snippet(before, after))
    assert read == {k: after["spec"]["containers"][0][k] for k in ("command", "args")}
    assert "kubectl patch deployment web --namespace default --type=json" in paste_ready(
        before, after, "web", "default"
    )


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["--model", "m", "--api-key", "sk-1234", "sk-5678"]},
        {"args": ["--model", "m", "--api_key=sk-1234"]},
        {"command": ["sh", "-c", "vllm serve m --api-key 'sk-'1234"]},
        {"command": ["sh", "-c", "vllm serve m --api-key=sk-$KEY"]},
    ],
)
def test_a_key_is_not_printed(container: dict[str, Any]) -> None:
    before = template(**container)
    text = paste_ready(before, rewrite(before, {"max_num_seqs": 3}), "web", "default")
    assert "sk-" not in text and "(not shown)" in text
    assert ("kubectl" in text) == ("args" in container)


def test_a_reference_to_a_key_is_no_key() -> None:
    before = template(args=["--model", "m", "--api-key", "$(KEY)"], env=[{"name": "KEY", "valueFrom": {}}])
    assert "u0024(KEY)" in paste_ready(before, rewrite(before, {"max_num_seqs": 3}), "web", "default")


def test_a_variable_is_patched_by_its_value() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "MORE", "value": "--max-num-seqs 4 --api-key sk-1"}]
    before = {"spec": {"containers": [{"name": "e", "env": env, "command": ["sh", "-c", "vllm serve m $MORE"]}]}}
    after = rewrite(before, {"max_num_seqs": 8})
    assert json_patch(before, after) == [
        {"op": "test", "path": "/spec/template/spec/containers/0/name", "value": "e"},
        {"op": "test", "path": "/spec/template/spec/containers/0/env/1/name", "value": "MORE"},
        {"op": "test", "path": "/spec/template/spec/containers/0/env/1/value", "value": env[1]["value"]},
        {"op": "replace", "path": "/spec/template/spec/containers/0/env/1/value",
         "value": "--max-num-seqs 8 --api-key sk-1"},
    ]  # fmt: skip
    shown = paste_ready(before, after, "d", "n")
    assert "sk-1" not in shown and "--max-num-seqs 8" in shown
