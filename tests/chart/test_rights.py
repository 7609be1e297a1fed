"""No call of the operator without a right, no right without a call: the source, the table and the chart agree."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rights import RIGHTS, VERBS
from trimtab_operator.cluster import KINDS, OWNERS

ROOT = Path(__file__).resolve().parents[2]
Manifest = dict[str, Any]
#: calls whose kind is a variable: (file, method) -> the kinds it may have
VARIABLE = {
    ("keeping.py", "get"): ("VLLMTuner", "TuningTrial"),
    ("keeping.py", "write_status"): ("VLLMTuner", "TuningTrial"),
    ("main.py", "list"): ("VLLMTuner", "TuningTrial", "Deployment", "ReplicaSet", "Pod"),
    ("neighbours.py", "list"): (
        "VLLMTuner", "PodDisruptionBudget", "HorizontalPodAutoscaler", "VerticalPodAutoscaler",
    ),
    ("upkeep.py", "get"): ("VLLMTuner", "TuningTrial"),
    ("upkeep.py", "json_patch"): ("VLLMTuner", "TuningTrial"),
}  # fmt: skip


def calls() -> set[tuple[str, str]]:
    """(verb, resource) of every call of a `Cluster` in the operator's source."""
    found: set[tuple[str, str]] = {
        ("get", "pods/log"),
        ("get", "customresourcedefinitions"),
        *(("get", plural) for plural in OWNERS.values()),
    }  # have methods of their own
    for path in sorted((ROOT / "operator" / "trimtab_operator").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            method, on = node.func.attr, ast.unparse(node.func.value)
            if method not in VERBS or on.split(".")[-1].lstrip("_") != "cluster":
                continue
            kind = node.args[0]
            kinds = (kind.value,) if isinstance(kind, ast.Constant) else VARIABLE[path.name, method]
            status = "/status" if method == "write_status" else ""
            found |= {(VERBS[method], KINDS[str(k)][1] + status) for k in kinds}
    return found


def test_the_table_has_every_call_of_the_source_and_no_other() -> None:
    table = {(r.verb, r.resource) for r in RIGHTS if r.by}
    assert calls() == table


def granted(objects: list[Manifest], where: Callable[[Manifest], bool]) -> set[tuple[str, str]]:
    roles = [o for o in objects if o["kind"] in ("Role", "ClusterRole") and where(o)]
    return {(v, res) for role in roles for rule in role["rules"] for res in rule["resources"] for v in rule["verbs"]}


@pytest.mark.parametrize("mode", ["Recommend", "Apply"])
@pytest.mark.parametrize("namespaces", ["", '["prod"]'], ids=["whole cluster", "one namespace"])
def test_the_chart_grants_the_table_and_nothing_else(
    render: Callable[..., list[Manifest]], mode: str, namespaces: str
) -> None:
    values = {"rbac.mode": f'"{mode}"', **({"watchNamespaces": namespaces} if namespaces else {})}
    objects = render(values)

    def kept(*whens: str) -> set[tuple[str, str]]:
        return {(r.verb, r.resource) for r in RIGHTS if r.when in whens}

    def own(role: Manifest) -> bool:
        return bool(role["metadata"]["name"].endswith("-lease"))

    def crds(role: Manifest) -> bool:
        return bool(role["metadata"]["name"].endswith("-crds"))

    served = kept("always", "Apply") if mode == "Apply" else kept("always")
    assert granted(objects, lambda r: not own(r) and not crds(r)) == served
    assert granted(objects, own) == kept("own")
    assert granted(objects, crds) == kept("crds")


def test_nothing_can_be_run_in_a_pod_and_no_secret_is_read(render: Callable[..., list[Manifest]]) -> None:
    for values in ({}, {"rbac.mode": '"Apply"'}):
        resources = {resource for _, resource in granted(render(values), lambda _: True)}
        assert not resources & {"secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers"}
        assert "*" not in resources
