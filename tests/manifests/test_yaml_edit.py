"""Edits of texts that people wrote: each case is the text before and the text after."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from trimtab.errors import InputError, RewriteRefused
from trimtab.manifests.documents import read_documents
from trimtab.manifests.rewriting import Source, rewrite_manifests

SEQS: dict[str, Any] = {"max_num_seqs": 48}


def deployment(container: str, indent: int = 6) -> str:
    """A Deployment around a container's lines (given without indentation)."""
    pad = " " * indent
    body = "".join(f"{pad}{line}\n" if line else "\n" for line in container.strip("\n").split("\n"))
    return (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: m}\n"
        f"spec:\n  template:\n    spec:\n      containers:\n{body}      restartPolicy: Always\n"
    )


def rewritten(text: str, **changes: Any) -> str:
    done = rewrite_manifests([Source("m.yaml", text)], changes or SEQS)
    for target in done.targets:
        if target.error is not None:
            raise target.error
    return done.texts[0]


CASES = {
    "a comment behind the item stays": (
        "- name: v\n  image: vllm/vllm-openai:v0.9.0\n  args:\n  - --max-num-seqs=32   # as measured\n  # last\n",
        "- name: v\n  image: vllm/vllm-openai:v0.9.0\n  args:\n  - --max-num-seqs=48   # as measured\n  # last\n",
    ),
    "double quotes stay": (
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: ["--model", "m", "--max-num-seqs", "32"]\n',
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: ["--model", "m", "--max-num-seqs", "48"]\n',
    ),
    "single quotes stay": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n    - '--max-num-seqs'\n    - '32'\n",
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n    - '--max-num-seqs'\n    - '48'\n",
    ),
    "a new item is quoted as its neighbours": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n    - '--model'\n    - 'm'  # the model\n    # end\n",
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n    - '--model'\n    - 'm'  # the model\n"
        "    - '--max-num-seqs'\n    - '48'\n    # end\n",
    ),
    "a number among plain items is quoted": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  - --model\n  - m\n",
        '- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  - --model\n  - m\n  - --max-num-seqs\n  - "48"\n',
    ),
    "wide dashes stay": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  -   --model=m\n",
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  -   --model=m\n  -   --max-num-seqs=48\n",
    ),
    "a list in brackets over several lines": (
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: [\n    "--model=m",\n    "--port=80",\n  ]\n',
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: [\n    "--model=m",\n    "--port=80",\n'
        '    "--max-num-seqs=48",\n  ]\n',
    ),
    "no args: they go behind the image": (
        "- image: vllm/vllm-openai:v0  # pinned\n  name: v\n  ports:\n    - containerPort: 8000\n",
        "- image: vllm/vllm-openai:v0  # pinned\n  args:\n    - --max-num-seqs\n    - \"48\"\n  name: v\n"
        "  ports:\n    - containerPort: 8000\n",
    ),
    "no args: the command holds the flags": (
        "- name: v\n  command: [vllm, serve, m]\n",
        '- name: v\n  command: [vllm, serve, m, --max-num-seqs, "48"]\n',
    ),
    "a container in braces": (
        "- {name: v, image: 'vllm/vllm-openai:v0'}\n",
        "- {name: v, image: 'vllm/vllm-openai:v0', args: [\"--max-num-seqs\", \"48\"]}\n",
    ),
    "empty args": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args: []\n",
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: [--max-num-seqs, "48"]\n',
    ),
    "args without a value": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n",
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: ["--max-num-seqs", "48"]\n',
    ),
    "a script in a literal block": (
        "- name: v\n  command: [sh, -c]\n  args:\n  - |  # start\n    exec vllm serve m \\\n      --port 80\n"
        "\n  env: []\n",
        "- name: v\n  command: [sh, -c]\n  args:\n  - |  # start\n    exec vllm serve m \\\n      --port 80 \\\n"
        "      --max-num-seqs 48\n\n  env: []\n",
    ),
    "a script in a block that keeps its last lines": (
        "- name: v\n  command:\n  - sh\n  - -c\n  - |+\n    vllm serve m --max-num-seqs=32\n\n  env: []\n",
        "- name: v\n  command:\n  - sh\n  - -c\n  - |+\n    vllm serve m --max-num-seqs=48\n\n  env: []\n",
    ),
    "a script in a block with an indentation of its own": (
        "- name: v\n  command: [sh, -c]\n  args:\n  - |2-\n      vllm serve m --max-num-seqs 32\n",
        "- name: v\n  command: [sh, -c]\n  args:\n  - |2-\n      vllm serve m --max-num-seqs 48\n",
    ),
    "a script in a folded block": (
        "- name: v\n  command: [sh, -c]\n  args:\n  - >-\n    vllm serve m\n    --max-num-seqs 32\n    --port 80\n",
        "- name: v\n  command: [sh, -c]\n  args:\n  - >-\n    vllm serve m\n    --max-num-seqs 48\n    --port 80\n",
    ),
    "a plain script over two lines": (
        "- name: v\n  command: [sh, -c]\n  args:\n  - vllm serve m\n    --max-num-seqs 32\n    --port 80\n",
        "- name: v\n  command: [sh, -c]\n  args:\n  - vllm serve m\n    --max-num-seqs 48\n    --port 80\n",
    ),
    "a script in double quotes with escapes and a broken line": (
        '- name: v\n  command: [sh, -c]\n  args: ["vllm serve m --served-model-name \\"\\u006d\\" \\\n'
        '      --max-num-seqs 32"]\n',
        '- name: v\n  command: [sh, -c]\n  args: ["vllm serve m --served-model-name \\"\\u006d\\" \\\n'
        '      --max-num-seqs 48"]\n',
    ),
    "an anchor that nobody uses, and a tag": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args: &a\n  - --max-num-seqs\n  - !!str 32\n",
        '- name: v\n  image: vllm/vllm-openai:v0\n  args: &a\n  - --max-num-seqs\n  - !!str "48"\n',
    ),
    "flags in a variable of the container": (
        "- name: v\n  env:\n  - name: MORE   # flags\n    value: '--max-num-seqs 32 --port 80'\n"
        '  command: [sh, -c, "vllm serve m $MORE"]\n',
        "- name: v\n  env:\n  - name: MORE   # flags\n    value: '--max-num-seqs 48 --port 80'\n"
        '  command: [sh, -c, "vllm serve m $MORE"]\n',
    ),
    "JSON in an argument": (
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  - --max-num-seqs=32\n"
        "  - '--override-generation-config={\"a\": 1}'\n",
        "- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  - --max-num-seqs=48\n"
        "  - '--override-generation-config={\"a\": 1}'\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_only_the_edit_differs(case: str) -> None:
    before, after = (deployment(text) for text in CASES[case])
    if "!!str" in before:
        after = after.replace('"48"', "48")  # a tagged plain value stays plain
    assert rewritten(before) == after
    assert rewritten(after) == after


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_windows_line_ends_are_kept(case: str) -> None:
    before, after = (deployment(text).replace("\n", "\r\n") for text in CASES[case])
    assert rewritten(before) == (after.replace('"48"', "48") if "!!str" in before else after)


@pytest.mark.parametrize("case", [c for c in CASES if "--max-num-seqs" in CASES[c][0]])
def test_the_old_value_restores_the_text(case: str) -> None:
    before = deployment(CASES[case][0])
    assert rewritten(rewritten(before), max_num_seqs=32) == before


#: args without items are a key without use, which goes with them
ADDED = [c for c in CASES if "--max-num-seqs" not in CASES[c][0] and not c.startswith(("empty", "args without"))]


@pytest.mark.parametrize("case", ADDED)
def test_an_added_flag_leaves_without_a_trace(case: str) -> None:
    before = deployment(CASES[case][0])
    assert rewritten(rewritten(before), max_num_seqs=None) == before


def test_a_last_line_without_a_line_break_stays_one() -> None:
    text = deployment("- name: v\n  image: vllm/vllm-openai:v0\n  args:\n  - --model=m\n")
    text = text.removesuffix("      restartPolicy: Always\n").rstrip("\n")
    after = rewritten(text)
    assert after == text + "\n        - --max-num-seqs=48"
    assert rewritten(after, max_num_seqs=None) == text


@pytest.mark.parametrize("form", [{"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {}])
def test_json_keeps_its_form(form: dict[str, Any]) -> None:
    data = yaml.safe_load(deployment('- name: v\n  image: vllm/vllm-openai:v0\n  args: ["--model=m", "x/y"]'))
    data["spec"]["template"]["spec"]["containers"][0]["args"] = ["--model=m", "--port=80"]
    text = json.dumps(data, **form)
    data["spec"]["template"]["spec"]["containers"][0]["args"].append("--max-num-seqs=48")
    assert rewritten(text) == json.dumps(data, **form)
    assert rewritten(rewritten(text), max_num_seqs=None) == text


def test_json_gets_args_where_it_had_none() -> None:
    data = yaml.safe_load(deployment("- name: v\n  image: vllm/vllm-openai:v0"))
    text = json.dumps(data, indent=2)
    after = rewritten(text)
    assert json.loads(after)["spec"]["template"]["spec"]["containers"][0]["args"] == ["--max-num-seqs", "48"]
    assert rewritten(after, max_num_seqs=None) == text


SHARED = {
    "the item": "- name: v\n  image: vllm/vllm-openai:v0\n  args: [--max-num-seqs, &n '32']\n  workingDir: *n\n",
    "the list": "- name: v\n  image: vllm/vllm-openai:v0\n  args: &n [--max-num-seqs=32]\n- name: w\n  args: *n\n",
    "the container": "- &n\n  name: v\n  image: vllm/vllm-openai:v0\n  args: [--max-num-seqs=32]\n"
    "- <<: *n\n  name: proxy\n  image: nginx\n  command: [nginx]\n",
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED)
def test_what_an_alias_shares_is_refused_by_its_name(case: str) -> None:
    with pytest.raises(RewriteRefused, match=r"m\.yaml:\d+: &n is used by an alias"):
        rewritten(deployment(SHARED[case]))


def test_a_shared_neighbour_is_no_obstacle() -> None:
    text = deployment("- name: v\n  image: vllm/vllm-openai:v0\n  args: [&m --model=m, --max-num-seqs=32]\n  cwd: *m\n")
    assert rewritten(text) == text.replace("seqs=32", "seqs=48")


def test_a_removed_item_whose_anchor_is_used_is_refused() -> None:
    text = deployment("- name: v\n  image: vllm/vllm-openai:v0\n  args: [&m --max-num-seqs=32, --port=1]\n  cwd: *m\n")
    with pytest.raises(RewriteRefused, match="&m is used by an alias"):
        rewritten(text, max_num_seqs=None)


def test_a_list_that_comes_by_a_merge_is_refused() -> None:
    text = "x-base: &base\n  args: [--max-num-seqs=32]\n" + deployment(
        "- <<: *base\n  name: v\n  image: vllm/vllm-openai:v0\n"
    )
    with pytest.raises(RewriteRefused, match="args comes from a YAML merge"):
        rewritten(text)


def test_a_key_that_is_there_twice_is_refused_with_its_line() -> None:
    text = deployment("- name: v\n  image: vllm/vllm-openai:v0\n  args: [--port=1]\n  args: [--max-num-seqs=32]\n")
    with pytest.raises(InputError, match=r"m\.yaml:\d+: args is there twice"):
        rewritten(text)


def test_a_comment_between_items_in_brackets_is_not_lost() -> None:
    text = deployment(
        "- name: v\n  image: vllm/vllm-openai:v0\n  args: [--port=1,  # why\n    --max-num-seqs=32,\n    --model=m]\n"
    )
    with pytest.raises(RewriteRefused, match="comment between items"):
        rewritten(text, max_num_seqs=None)


def test_other_documents_keep_every_byte() -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: 'x'}   \n\n\n# end"
    text = (
        "%YAML 1.1\n--- # first\n" + other + "\n---\n\n--- \n"
        + deployment("- name: v\n  image: vllm/vllm-openai:v0\n  args: [--max-num-seqs=32]\n")
        + "...\n---\n" + other
    )  # fmt: skip
    assert rewritten(text) == text.replace("seqs=32", "seqs=48")
    assert "".join(d.text for d in read_documents(text, "m.yaml")) == text


def test_two_engines_of_one_list_are_both_edited() -> None:
    one = {"image": "vllm/vllm-openai:v0", "name": "v", "args": ["--max-num-seqs=32"]}
    item = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"containers": [one]}}},
    }
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [item, {**item, "metadata": {"name": "b"}}]})
    assert rewritten(text) == text.replace("seqs=32", "seqs=48")


def test_of_many_targets_the_one_that_cannot_be_written_is_named() -> None:
    good = "- name: v\n  image: vllm/vllm-openai:v0\n  args: [--max-num-seqs=32]\n"
    shared = "- name: v\n  image: vllm/vllm-openai:v0\n  args: [&n --max-num-seqs=32]\n  cwd: *n\n"
    body = "".join(
        "- " + deployment(text).replace("name: m", f"name: {name}").replace("\n", "\n  ").rstrip(" ")
        for name, text in (("a", good), ("b", shared), ("c", good))
    )
    text = f"apiVersion: v1\nkind: List\nitems:\n{body}"
    done = rewrite_manifests([Source("m.yaml", text)], SEQS)
    assert [(t.title, t.error is None) for t in done.targets] == [
        ("Deployment/a", True), ("Deployment/b", False), ("Deployment/c", True),
    ]  # fmt: skip
    assert done.texts == (text,)
    picked = rewrite_manifests([Source("m.yaml", text)], SEQS, picks=["Deployment/a", "deploy/c"])
    assert picked.texts[0] == text.replace("[--max-num-seqs=32", "[--max-num-seqs=48")
