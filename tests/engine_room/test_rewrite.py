"""Rewrites: only the setting changes, twice is once, the inverse restores, and a real shell agrees."""

from __future__ import annotations

import copy
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.engine.command import parse_template
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration, Value
from trimtab.engine.tunables import gate
from trimtab.errors import InputError, RewriteRefused

CHANGES: tuple[dict[str, Value], ...] = (
    {"max_num_seqs": 48},
    {"max_num_batched_tokens": 4096},
    {"enable_prefix_caching": False},
    {"enable_prefix_caching": True, "max_num_seqs": 7},
    {"max_new_tokens": 300},
    {"max_num_seqs": 40, "max_num_batched_tokens": 2048, "enable_prefix_caching": True, "max_new_tokens": 64},
)


def template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.9.1", **container}]}}


def args(*items: str) -> dict[str, Any]:
    return template(args=["--model", "m", *items])


def added(before: dict[str, Any], changes: dict[str, Value | None]) -> list[str]:
    return list(rewrite(before, changes)["spec"]["containers"][0]["args"][2:])


def inverse(
    before: dict[str, Any], changes: dict[str, Value], files: dict[str, str] | None = None
) -> dict[str, Value | None]:
    was = parse_template(before, files=files).configuration()
    return {name: was.get(name) for name in changes}


@pytest.mark.parametrize("changes", CHANGES, ids=lambda c: "-".join(c))
def test_changes_only_the_settings_twice_is_once_and_the_inverse_restores(
    readable: dict[str, Any], changes: dict[str, Value]
) -> None:
    before, files = readable["template"], readable["files"]
    kept = copy.deepcopy(before)
    if readable["expect"].get("multi_node"):
        with pytest.raises(RewriteRefused, match="several pods"):
            rewrite(before, changes, files=files)
        return
    version = parse_template(before, files=files).version
    if any(gate(name, version, value) for name, value in changes.items()):
        with pytest.raises(RewriteRefused) as caught:
            rewrite(before, changes, files=files)
        assert caught.value.code == "VersionGated"
        return
    wanted = parse_template(before, files=files).configuration().with_(changes)
    after = rewrite(before, changes, files=files)
    assert parse_template(after, files=files).configuration() == wanted
    assert rewrite(after, changes, files=files) == after
    assert before == kept
    if "config-file" in parse_template(before, files=files).features:
        return  # what the file sets cannot be unset
    restored = rewrite(after, inverse(before, changes, files), files=files)
    rounded = "8k" in json.dumps(before).lower() and "max_num_batched_tokens" in changes
    if readable.get("expanded") or rounded:
        assert (
            parse_template(restored, files=files).configuration() == parse_template(before, files=files).configuration()
        )
    else:
        assert json.dumps(restored) == json.dumps(before)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda c: "-".join(c))
def test_removing_what_was_set_leaves_the_rest(readable: dict[str, Any], changes: dict[str, Value]) -> None:
    before = readable["template"]
    if readable["expect"].get("multi_node"):
        return
    files = readable["files"]
    if "config-file" in parse_template(before, files=files).features and set(changes) & set(
        readable["expect"]["settings"]
    ):
        with pytest.raises(RewriteRefused, match="mounted file"):
            rewrite(before, dict.fromkeys(changes), files=files)
        return
    after = rewrite(before, dict.fromkeys(changes), files=files)
    kept = {k: v for k, v in readable["expect"]["settings"].items() if k not in changes}
    assert dict(parse_template(after, "engine", files).configuration()) == kept


@pytest.mark.parametrize(
    ("existing", "changes", "result"),
    [
        ([], {"max_num_seqs": 48}, ["--max-num-seqs", "48"]),
        (["--port=80"], {"max_num_seqs": 48}, ["--port=80", "--max-num-seqs=48"]),
        (["--max_model_len", "9"], {"max_num_seqs": 48}, ["--max_model_len", "9", "--max_num_seqs", "48"]),
        (["--max_num-seqs", "4"], {"max_num_seqs": 48}, ["--max_num-seqs", "48"]),
        (["--max-num-seqs=1", "--max-num-seqs=2"], {"max_num_seqs": 3}, ["--max-num-seqs=1", "--max-num-seqs=3"]),
        (["--max-num-seqs=1", "--max_num_seqs", "2"], {"max_num_seqs": None}, []),
        (["--max-num-batched-tokens", "8k"], {"max_num_batched_tokens": 8000}, ["--max-num-batched-tokens", "8k"]),
        (["--enable-prefix-caching"], {"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        (["--no_enable_prefix_caching"], {"enable_prefix_caching": True}, ["--enable_prefix_caching"]),
        (["--port", "80"], {"enable_prefix_caching": False}, ["--port", "80", "--no-enable-prefix-caching"]),
        ([], {"max_new_tokens": 9}, ["--override-generation-config", '{"max_new_tokens":9}']),
        (["--override-generation-config", '{"a":1}'], {"max_new_tokens": 9},
         ["--override-generation-config", '{"a":1,"max_new_tokens":9}']),
        (["--override-generation-config", '{"max_new_tokens":9, "a": 1.0}'], {"max_new_tokens": None},
         ["--override-generation-config", '{"a": 1.0}']),
        (["--override-generation-config", '{"max_new_tokens": 9}'], {"max_new_tokens": None}, []),
        (["--override-generation-config.a", "1"], {"max_new_tokens": 9},
         ["--override-generation-config.a", "1", "--override-generation-config.max_new_tokens", "9"]),
    ],
)  # fmt: skip
def test_edits_in_the_style_found(existing: list[str], changes: dict[str, Value | None], result: list[str]) -> None:
    assert added(args(*existing), changes) == result


def test_the_engine_named_is_the_one_changed() -> None:
    both = template(args=["--model", "m"])
    both["spec"]["containers"].append({**both["spec"]["containers"][0], "name": "second"})
    after = rewrite(both, {"max_num_seqs": 2}, "second")
    assert after["spec"]["containers"][0] == both["spec"]["containers"][0]
    assert after["spec"]["containers"][1]["args"][-1] == "2"


def test_a_value_from_a_variable_becomes_a_literal_and_the_variable_stays() -> None:
    before = template(env=[{"name": "N", "value": "5"}], args=["--model=m", "--max-num-seqs=$(N)"])
    container = rewrite(before, {"max_num_seqs": 6})["spec"]["containers"][0]
    assert container["args"][1] == "--max-num-seqs=6" and container["env"] == [{"name": "N", "value": "5"}]


@pytest.mark.parametrize(
    ("written", "result"),
    [
        ("--max-num-seqs $N", "--max-num-seqs 6"),
        ('--max-num-seqs "$N"', '--max-num-seqs "6"'),
        ("--max-num-seqs=${N}", "--max-num-seqs=6"),
        ("--max-num-seqs='$(N)'", "--max-num-seqs='6'"),
        ("--max-num-seqs ${OTHER}", "--max-num-seqs 6"),
    ],
)
def test_a_script_value_from_a_variable_becomes_a_literal(written: str, result: str) -> None:
    before = template(env=[{"name": "N", "value": "5"}], command=["sh", "-c", f"vllm serve m {written} --port 80"])
    after = rewrite(before, {"max_num_seqs": 6})["spec"]["containers"][0]
    assert after["command"][2] == f"vllm serve m {result} --port 80" and after["env"] == [{"name": "N", "value": "5"}]


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("--max-num-seqs $(nproc)", "ShellSubstitution"),
        ("--max-num-seqs=`nproc`", "ShellSubstitution"),
        ('--override-generation-config "{$J}"', "PartOfVariable"),
    ],
)
def test_a_script_value_that_cannot_be_replaced_is_refused(written: str, code: str) -> None:
    env = [{"name": "J", "value": '"max_new_tokens":5, "a":1'}]
    before = template(env=env, command=["sh", "-c", f"vllm serve m {written}"])
    with pytest.raises(RewriteRefused) as caught:
        rewrite(before, {"max_num_seqs": 6, "max_new_tokens": 9})
    assert caught.value.code == code


def test_flags_in_a_variable_are_edited_there_if_nothing_else_reads_it() -> None:
    env = [{"name": "MORE", "value": "--port 80  --max-num-seqs 5 --seed 1"}]
    before = template(env=env, command=["sh", "-c", "exec vllm serve m $MORE # more"])
    after = rewrite(before, {"max_num_seqs": 6, "max_num_batched_tokens": 64})["spec"]["containers"][0]
    assert after["env"] == [{"name": "MORE", "value": "--port 80  --max-num-seqs 6 --seed 1"}]
    assert after["command"][2] == "exec vllm serve m $MORE --max-num-batched-tokens 64 # more"
    removed = rewrite(before, {"max_num_seqs": None})["spec"]["containers"][0]
    assert removed["env"] == [{"name": "MORE", "value": "--port 80 --seed 1"}]
    shared = template(env=env, command=["sh", "-c", "echo $MORE; exec vllm serve m $MORE"])
    with pytest.raises(RewriteRefused, match="more than once"):
        rewrite(shared, {"max_num_seqs": 6})


def test_settings_that_exclude_each_other_name_both() -> None:
    with pytest.raises(InputError, match=r"max_num_batched_tokens.*max_num_seqs"):
        rewrite(args("--max-num-batched-tokens", "64"), {"max_num_seqs": 65})


def test_bad_changes_name_the_setting() -> None:
    with pytest.raises(InputError, match="max_num_seqs"):
        rewrite(args(), {"max_num_seqs": 0})
    with pytest.raises(InputError, match="max_seqs"):
        rewrite(args(), {"max_seqs": 1})


def test_removing_a_key_that_would_uncover_another_is_refused() -> None:
    before = args("--override-generation-config", '{"top_k": 1}', "--override-generation-config.max_new_tokens", "9")
    with pytest.raises(RewriteRefused, match="read back"):
        rewrite(before, {"max_new_tokens": None})


SPELLINGS = {
    "max_num_seqs": ["--max-num-seqs", "--max_num_seqs", "--max-num_seqs", "--max-num-seq"],
    "max_num_batched_tokens": ["--max-num-batched-tokens", "--max_num_batched_tokens", "--max-num-b"],
}
OTHERS = st.sampled_from(
    [
        ["--port", "80"],
        ["--port=80"],
        ["-tp", "2"],
        ["--enforce-eager"],
        ["--served-model-name", "a", "b"],
        ["--unknown-flag", "x"],
        ["--kv-transfer-config", '{"a": "$ \' b"}'],
        ["--api-key=k"],
        ["--trust_remote_code"],
    ]
)
BOOLEANS = [
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--enable_prefix_caching",
    "--no_enable_prefix_caching",
]
JSON_TEXTS = st.dictionaries(
    st.text(max_size=4).filter(lambda k: k != "max_new_tokens"), st.integers() | st.text(max_size=5), max_size=3
)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    groups = draw(st.lists(OTHERS, max_size=4))
    for name, spellings in SPELLINGS.items():
        if draw(st.booleans()):
            value = str(draw(st.integers(1, 500)) + (1000 if name == "max_num_batched_tokens" else 0))
            flag = draw(st.sampled_from(spellings))
            groups.append([f"{flag}={value}"] if draw(st.booleans()) else [flag, value])
    if draw(st.booleans()):
        groups.append([draw(st.sampled_from(BOOLEANS))])
    if draw(st.booleans()):
        body: dict[str, Any] = draw(JSON_TEXTS)
        if draw(st.booleans()) or not body:
            body = {**body, "max_new_tokens": draw(st.integers(1, 999))}
        text = json.dumps(body, separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])))
        # The kubelet's own signs would be expanded in a list.
        groups.append(["--override_generation_config", text.replace("$", "s")])
    return [word for group in draw(st.permutations(groups)) for word in group]


CHANGE_SETS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 900),
        "max_num_batched_tokens": st.integers(1000, 90000),
        "enable_prefix_caching": st.booleans(),
        "max_new_tokens": st.integers(1, 100000),
    },
)


@settings(max_examples=120, deadline=None)
@given(command_lines(), CHANGE_SETS, st.sampled_from(["image", "serve", "shell", "block"]))
def test_any_spelling_survives_there_and_back(line: list[str], changes: dict[str, Value], shape: str) -> None:
    before = shaped(line, shape)
    was = parse_template(before).configuration()
    after = rewrite(before, changes)
    assert parse_template(after).configuration() == was.with_(changes)
    assert rewrite(after, changes) == after
    assert json.dumps(rewrite(after, {n: was.get(n) for n in changes})) == json.dumps(before)


def shaped(line: list[str], shape: str) -> dict[str, Any]:
    if shape == "image":
        return template(args=["--model", "m", *line])
    if shape == "serve":
        return template(command=["vllm", "serve", "m", *line])
    gap = " " if shape == "shell" else " \\\n  "
    return template(command=["sh", "-c", gap.join(["exec vllm serve m", *map(shlex.quote, line)])])


SCRIPTS = [
    "vllm serve m --max-num-seqs 32",
    "exec vllm serve m --max-num-seqs='32'"
    ' --override-generation-config "{\\"max_new_tokens\\": 5, \\"a\\": \\"b c\\"}"',
    "exec vllm serve m \\\n  --max_num_seqs=32 \\\n  --override-generation-config '{\"a\": \"it'\\''s\"}' # note\n",
    "A=1 vllm serve m --override-generation-config=\\{\\\"max_new_tokens\\\":5\\}   --chat-template 'a  b'  ",
    'vllm serve \\\n\tm --max-num-\\\nseqs 32 --enable-prefix-caching --x "" \\\n',
]


def run_script(container: dict[str, Any], folder: Path) -> list[str]:
    out = subprocess.run(
        container["command"], env={"PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True, check=True, text=True
    )
    return list(json.loads(out.stdout))


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_real_shell_gets_exactly_the_change(script: str, tmp_path: Path) -> None:
    fake = tmp_path / "vllm"
    fake.write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    fake.chmod(0o755)
    before = template(command=["sh", "-c", script])
    after = rewrite(before, {"max_num_seqs": 48, "max_new_tokens": 77, "enable_prefix_caching": False})
    old = run_script(before["spec"]["containers"][0], tmp_path)
    new = run_script(after["spec"]["containers"][0], tmp_path)
    as_list = template(command=["vllm", *new])
    assert parse_template(as_list).configuration() == Configuration.of(
        max_num_seqs=48, max_new_tokens=77, enable_prefix_caching=False
    )
    restored = rewrite(after, inverse(before, {"max_num_seqs": 1, "max_new_tokens": 1, "enable_prefix_caching": True}))
    assert run_script(restored["spec"]["containers"][0], tmp_path) == old
    assert restored == before


@pytest.mark.parametrize(
    ("image", "changes", "match"),
    [
        ("vllm/vllm-openai:v0.9.1", {"max_num_active_seqs": 8}, "0.9.1 has no --max-num-active-seqs"),
        ("vllm/vllm-openai@sha256:00", {"max_num_active_seqs": 8}, "not known"),
        ("vllm/vllm-openai:v0.6.3", {"enable_prefix_caching": False}, "has no --no-enable-prefix-caching"),
    ],
)
def test_a_flag_that_the_version_lacks_or_may_lack_is_refused(
    image: str, changes: dict[str, Value | None], match: str
) -> None:
    before = {"spec": {"containers": [{"name": "e", "image": image, "args": ["--model", "m"]}]}}
    with pytest.raises(RewriteRefused, match=match) as caught:
        rewrite(before, changes)
    assert caught.value.code == "VersionGated"
    known = {**before, "metadata": {"labels": {"trimtab.dev/engine-version": "0.32.0"}}}
    assert rewrite(known, changes) != known


def test_all_settings_are_written_and_read_back() -> None:
    wanted: dict[str, Value] = {
        "max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_num_active_seqs": 32, "watermark": 0.02,
        "gpu_memory_utilization": 0.875, "scheduling_policy": "priority", "async_scheduling": False,
        "long_prefill_token_threshold": 1024, "max_num_queued_reqs": 100, "enable_chunked_prefill": True,
        "max_model_len": 4096, "kv_cache_dtype": "fp8",
    }  # fmt: skip
    before = template(args=["--model", "m"])
    before["metadata"] = {"labels": {"trimtab.dev/engine-version": "0.32.0"}}
    after = rewrite(before, wanted)
    assert dict(parse_template(after).in_sight()) == wanted
    assert rewrite(after, dict.fromkeys(wanted)) == before
