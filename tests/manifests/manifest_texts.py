"""Texts of Deployments in every YAML style, put together by hand so that each byte is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

from trimtab.manifests.documents import Document, read_documents

HEAD = """\
# the fleet's engine
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama, labels: {app: "llama"}}   # one line
spec:
  replicas: 2
  template:
    spec:
      containers:
"""
TAIL = """\
        ports:
          - containerPort: 8000   # http
      # the end
      terminationGracePeriodSeconds: 45
---
apiVersion: v1
kind: Service
metadata:
    name:   llama
"""
PATH = ("spec", "template")
#: what a script or flag may hold: quotes, escapes, JSON, colons, hashes, variables, text in other alphabets
WORDS = (
    "vllm", "serve", "--max-num-seqs", "--max-num-seqs=32", "48", "true", "null", "a:b", "k: v", "a #b", "#c", "'q'",
    '{"max_new_tokens": 32}', "it's", 'say "x"', "back\\slash", "$(VAR)", "${X:-9}", "\\", "- x", "* y", "&z", "!t",
    "%p", "@at", "日本", "\u00e9", "😀", "{", "]", "a,b", "--", "-", "~", "0o17", "1e3", "?", "a=", "=", "<<", "|",
)  # fmt: skip
words = st.sampled_from(WORDS)
lines = st.lists(words, min_size=1, max_size=5).map(" ".join)
#: text that a block scalar can hold: no white space at its ends, nothing folded away
scripts = st.lists(lines, min_size=1, max_size=4).map("\n".join)
values = st.one_of(words, lines)


def scalar(value: str, style: str, indent: int) -> str:
    """`value` in `style`: plain, single, double, literal (|-), folded (>-). Falls back to double quotes."""
    pad = "\n" + " " * indent
    if style == "literal" and value == value.strip():
        return "|-" + pad + value.replace("\n", pad)
    if style == "folded" and value == value.strip() and not any(x.startswith(" ") for x in value.split("\n")):
        return ">-" + pad + value.replace("\n", "\n" + pad)
    if style == "single" and "\n" not in value:
        return "'" + value.replace("'", "''") + "'"
    if style == "plain" and "\n" not in value and _plain(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _plain(value: str) -> bool:
    try:
        return bool(
            yaml.safe_load(f"- {value}\n- x") == [value, "x"] and yaml.safe_load(f"[{value}, x]") == [value, "x"]
        )
    except yaml.YAMLError:
        return False


def block_list(key: str, values: Sequence[str], styles: Sequence[str], shift: int, comments: Sequence[str]) -> str:
    out = [f"        {key}:"]
    for value, style, comment in zip(values, styles, comments, strict=True):
        pad = " " * (8 + shift)
        written = scalar(value, style, 8 + shift + 2)
        tail = f"   # {comment}" if comment and "\n" not in written else ""
        if comment and style == "literal":
            out.append(f"{pad}# above: {comment}")
        out.append(f"{pad}- {written}{tail}")
    return "\n".join(out) + "\n"


def flow_list(key: str, values: Sequence[str], styles: Sequence[str], broken: bool) -> str:
    flow = [s if s in ("single", "plain") else "double" for s in styles]
    between = ",\n               " if broken else ", "
    return f"        {key}: [{between.join(scalar(v, s, 0) for v, s in zip(values, flow, strict=True))}]\n"


@st.composite
def manifests(draw: st.DrawFn) -> Document:
    """The Deployment's document of a two-document file; its one container has command, args or both."""
    parts = ["      - name: engine  # the one\n", "        image: vllm/vllm-openai:v0.32.0\n"]
    for key in draw(st.sampled_from([("command",), ("args",), ("command", "args"), ()])):
        items = draw(st.lists(st.one_of(values, scripts), min_size=1, max_size=5))
        style = st.sampled_from(["plain", "single", "double", "literal", "folded"])
        styles = draw(st.lists(style, min_size=len(items), max_size=len(items)))
        if draw(st.booleans()):
            comment = st.sampled_from(["", "why", "see #12: 'x'"])
            comments = draw(st.lists(comment, min_size=len(items), max_size=len(items)))
            parts.append(block_list(key, items, styles, draw(st.sampled_from([0, 2])), comments))
        else:
            parts.append(flow_list(key, items, styles, draw(st.booleans())))
    text = HEAD + "".join(parts) + TAIL
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    documents = read_documents(text, "m.yaml")
    assert len(documents) == 2 and "".join(d.text for d in documents) == text
    return documents[0]


def template(document: Document) -> dict[str, Any]:
    found = document.data
    for key in PATH:
        found = found[key]
    assert isinstance(found, dict)
    return found


def container(document: Document) -> dict[str, Any]:
    body = template(document)["spec"]["containers"][0]
    assert isinstance(body, dict)
    return body
