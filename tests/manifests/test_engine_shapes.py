"""Every engine shape that can be read, in several spellings of YAML: the text's edit is the template's edit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.engine.rewrite import rewrite
from trimtab.errors import EngineError
from trimtab.manifests.rewriting import Source, rewrite_manifests

CASES = [
    case
    for case in yaml.safe_load(
        (Path(__file__).parents[1] / "engine_room" / "data" / "manifests.yaml").read_text(encoding="utf-8")
    )
    if "expect" in case
]


class _Literal(yaml.SafeDumper):
    """Scripts in literal blocks, lists indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Literal.add_representer(str, _text)

FORMS = {
    "dumped": lambda data: yaml.safe_dump(data, sort_keys=False),
    "literal": lambda data: yaml.dump(data, Dumper=_Literal, sort_keys=False, width=10_000),
    "folded-quotes": lambda data: yaml.safe_dump(data, default_style='"', width=40),
    "single-quotes": lambda data: yaml.safe_dump(data, default_style="'", width=60),
    "flow": lambda data: yaml.safe_dump(data, default_flow_style=True, width=60),
    "json": lambda data: json.dumps(data, indent=2),
    "windows": lambda data: yaml.dump(data, Dumper=_Literal).replace("\n", "\r\n"),
}


def deployment(case: dict[str, Any]) -> dict[str, Any]:
    body = {"name": "engine", **copy.deepcopy(case["container"])}
    spec: dict[str, Any] = {"containers": [body]}
    documents: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "m"},
        "spec": {"template": {"metadata": {"labels": case.get("labels", {})}, "spec": spec}},
    }
    return documents


def config_maps(case: dict[str, Any], manifest: dict[str, Any]) -> str:
    """The case's files as one ConfigMap per file, each mounted by subPath."""
    spec = manifest["spec"]["template"]["spec"]
    out = ""
    for index, (path, text) in enumerate(case.get("files", {}).items()):
        name = f"files-{index}"
        spec.setdefault("volumes", []).append({"name": name, "configMap": {"name": name}})
        mount = {"name": name, "mountPath": path, "subPath": "file"}
        spec["containers"][0].setdefault("volumeMounts", []).append(mount)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"file": text}}
        out += "---\n" + yaml.safe_dump(body)
    return out


#: each case in two forms, each form with every seventh case and more
PAIRS = [(case, list(FORMS)[(i + shift) % len(FORMS)]) for i, case in enumerate(CASES) for shift in (0, 3)]


@pytest.mark.parametrize(("case", "form"), PAIRS, ids=[f"{c['name'].replace(' ', '-')}-{form}" for c, form in PAIRS])
def test_the_text_is_edited_as_the_template_is(case: dict[str, Any], form: str) -> None:
    manifest = deployment(case)
    maps = config_maps(case, manifest)
    text = FORMS[form](manifest) + "\n" + maps
    template = manifest["spec"]["template"]
    for changes in ({"max_num_seqs": 48}, {"enable_prefix_caching": True, "max_num_batched_tokens": 16384}):
        try:
            wanted = rewrite(template, changes, files=case.get("files"))
        except EngineError:
            continue
        done = rewrite_manifests([Source("m.yaml", text)], changes)
        assert [target.error for target in done.targets] == [None]
        edited = list(yaml.safe_load_all(done.texts[0].replace("\t", " ")))
        assert edited[0] == {**manifest, "spec": {"template": wanted}}
        assert done.texts[0].endswith(maps)
        again = rewrite_manifests([Source("m.yaml", done.texts[0])], changes)
        assert again.texts == done.texts
        assert not again.targets[0].changed
        before = dict(done.targets[0].before)
        if rewrite(wanted, before, files=case.get("files")) == template:
            back = rewrite_manifests([Source("m.yaml", done.texts[0])], before)
            assert back.texts[0] == text
