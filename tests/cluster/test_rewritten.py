"""The real API server takes every rewritten pod template, and the minimal patch leads it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_fixtures import Kubectl
from trimtab.engine.command import parse_template
from trimtab.engine.patch import json_patch
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Value
from trimtab.engine.tunables import gate

pytestmark = pytest.mark.cluster

CASES = yaml.safe_load((Path(__file__).parents[1] / "engine_room" / "data" / "manifests.yaml").read_text())
CHANGES: dict[str, Value | None] = {"max_num_seqs": 48, "max_num_batched_tokens": 4096, "max_new_tokens": 77}


def deployment(number: int, container: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    labels = {"app": f"case-{number}", **labels}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", **container}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"case-{number}"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": f"case-{number}"}}, "template": template},
    }


def test_every_rewritten_template_is_accepted_as_written(kubectl: Kubectl) -> None:
    kept = []
    for number, case in enumerate(c for c in CASES if "expect" in c and not c["expect"].get("multi_node")):
        body = deployment(number, case["container"], case.get("labels", {}))
        template, files = body["spec"]["template"], case.get("files")
        version = parse_template(template, files=files).version
        changes = {name: value for name, value in CHANGES.items() if not gate(name, version, value)}
        body["spec"]["template"] = rewrite(template, changes, files=files)
        kept.append(body)
    assert len(kept) >= 40
    listed = {"apiVersion": "v1", "kind": "List", "items": kept}
    answer = yaml.safe_load_all(kubectl("create", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=listed))
    for body, seen in zip(kept, answer, strict=True):
        wanted, got = (x["spec"]["template"]["spec"]["containers"][0] for x in (body, seen))
        assert {k: got.get(k) for k in ("command", "args")} == {k: wanted.get(k) for k in ("command", "args")}
        assert [e.get("value") for e in got.get("env", ())] == [e.get("value") for e in wanted.get("env", ())]


def test_the_minimal_patch_is_applied_and_a_stale_one_is_refused(kubectl: Kubectl) -> None:
    container = {
        "image": "localhost/none:1",
        "env": [{"name": "MORE", "value": "--port 80 --max-num-seqs 4"}],
        "command": ["sh", "-c", "set -e\nexec vllm serve m $MORE \\\n  --seed 1 # end\n"],
    }
    before = kubectl.json("create", "-f", "-", stdin=deployment(0, container, {}))["spec"]["template"]
    after = rewrite(before, {"max_num_seqs": 8, "max_num_batched_tokens": 2048})
    patch = yaml.safe_dump(json_patch(before, after))
    now = kubectl.json("patch", "deployment", "case-0", "--type=json", "-p", patch)["spec"]["template"]
    assert now["spec"]["containers"] == after["spec"]["containers"]
    assert dict(parse_template(now).configuration()) == {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
    stale = kubectl.run("patch", "deployment", "case-0", "--type=json", "-p", patch, check=False)
    assert stale.returncode != 0
    assert kubectl.json("get", "deployment", "case-0")["spec"]["template"] == now
