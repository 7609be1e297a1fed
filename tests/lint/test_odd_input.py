"""Whatever stands in a manifest: lint does not fall over, and never says a secret."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from lint_cases import HEALTHY

from trimtab.lint.as_json import as_json
from trimtab.lint.as_text import as_text
from trimtab.lint.finding import Options
from trimtab.lint.report import Report, lint
from trimtab.lint.sarif import as_sarif
from trimtab.manifests.documents import read_documents

JUNK = st.sampled_from(
    [None, True, 0, -1, 1.5, "", "x", "$(A)", "100%", [], {}, [None], [{}], {"a": None}, [[1]], {"name": 3}]
)
QUIET = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECRET = "sk-never-shown"


def reports(*objects: Any) -> list[Report]:
    return lint(read_documents(yaml.safe_dump_all(objects), "x.yaml"), Options())


def said(found: list[Report]) -> str:
    return as_text(found) + json.dumps(as_json(found, [])) + json.dumps(as_sarif(found, []))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from _places(value[key], (*path, key))


PLACES = list(_places(HEALTHY))


@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=4))
@QUIET
def test_junk_anywhere_is_no_crash(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    manifest: Any = copy.deepcopy(HEALTHY)
    for path, junk in changes:
        at = manifest
        try:
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = copy.deepcopy(junk)  # shared, a later change could put it into itself
        except (KeyError, IndexError, TypeError):
            continue
    said(reports(manifest))


@given(st.sampled_from(PLACES), st.sampled_from(["9" * 5000, "²", "٣", "9" * 5000 + "%"]))
@QUIET
def test_digits_that_are_no_number_are_no_crash(place: tuple[Any, ...], text: str) -> None:
    manifest: Any = copy.deepcopy(HEALTHY)
    at = manifest
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = text
    said(reports(manifest))


FORMS = [
    ["--api-key", SECRET],
    [f"--api-key={SECRET}"],
    [f"--api_key={SECRET}"],
    [f"--api-k={SECRET}"],
    [f"--api-key {SECRET}"],
    ["--api-key", "a", SECRET],
    [f"--api-key:{SECRET}"],
    [f"--my-key {SECRET}", f"--my-key {SECRET}2"],
    [f"--hf-token={SECRET}"],
    [f"--apikey={SECRET}"],
    ["--my-secret-token", SECRET],
    ["--api-key=$(K)"],
    ["--apikey=a", f"--apikey={SECRET}"],
    ["--api-key", "$(K)", "--api-key", SECRET],
    [f"--no-api-key={SECRET}"],
]
MORE = st.lists(
    st.sampled_from(["--port=80", "--port", "$(X)", "--", "--max-num-seqs 3", "--made-up", "-O3", "m", "--x=1"]),
    max_size=4,
)


@given(st.sampled_from(FORMS), MORE, MORE, st.sampled_from(["list", "shell", "eval", "background"]))
@QUIET
def test_no_form_of_a_key_is_said(form: list[str], before: list[str], after: list[str], shape: str) -> None:
    manifest: Any = copy.deepcopy(HEALTHY)
    engine = manifest["spec"]["template"]["spec"]["containers"][0]
    engine["env"] = [{"name": "K", "value": SECRET}, {"name": "VLLM_API_KEY", "value": SECRET}]
    words = [*before, *form, *after]
    if shape == "list":
        engine["args"] = words
    else:
        line = "vllm serve m " + " ".join(f"'{w}'" for w in words)
        script = {"shell": line, "eval": f'eval "{line}"', "background": f"{line} & wait"}[shape]
        engine.update(command=["bash", "-c", script], args=[])
    assert SECRET not in said(reports(manifest))
