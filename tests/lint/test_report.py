"""What a report holds: targets, flags, places, owners, what is refused, what is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.lint.as_json import as_json
from trimtab.lint.as_text import as_text
from trimtab.lint.finding import Severity
from trimtab.lint.report import Report

CASES = yaml.safe_load((Path(__file__).resolve().parents[1] / "engine_room/data/manifests.yaml").read_text())
ENGINE = {"name": "engine", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model", "org/m"]}


def deployment(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    spec = {"replicas": 2, "template": {"spec": {"containers": list(containers)}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", **metadata}, "spec": spec}


def row(reports: list[Report]) -> dict[str, Any]:
    (found,) = as_json(reports, [])["targets"]
    assert isinstance(found, dict)
    return found


def ids(found: dict[str, Any]) -> set[str]:
    return {f["id"] for f in found["findings"]}


def _mounted(manifest: dict[str, Any], files: dict[str, str]) -> list[dict[str, Any]]:
    """ConfigMaps that put the files where the case has them."""
    pod, objects = manifest["spec"]["template"]["spec"], []
    for n, (path, text) in enumerate(files.items()):
        key = path.rsplit("/", 1)[-1]
        pod.setdefault("volumes", []).append({"name": f"v{n}", "configMap": {"name": f"c{n}"}})
        mount = {"name": f"v{n}", "mountPath": path, "subPath": key}
        pod["containers"][0].setdefault("volumeMounts", []).append(mount)
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{n}"}, "data": {key: text}})
    return objects


@pytest.mark.parametrize("case", CASES, ids=[c["name"].replace(" ", "-") for c in CASES])
def test_every_known_manifest_is_linted_without_an_error_of_ours(case: dict[str, Any], lint_of: Any) -> None:
    manifest = deployment({"name": "engine", **case["container"]})
    manifest["spec"]["template"]["metadata"] = {"labels": case.get("labels", {})}
    reports = lint_of(manifest, *_mounted(manifest, case.get("files", {})))
    assert as_text(reports)
    if "expect" not in case:
        return
    found, expect = row(reports), case["expect"]
    assert found["shape"] == expect["shape"] and "TT001" not in ids(found) and "TT013" not in ids(found)
    assert found["port"] == expect.get("port", 8000)
    for name, value in expect["settings"].items():
        if name != "max_new_tokens":
            assert found["flags"][name] == value


def test_flags_are_typed_and_have_canonical_names(lint_of: Any) -> None:
    args = [
        "--model=org/m", "--max_num_seqs", "32", "--max-model-len=8k", "--gpu-memory-utilization", "0.9", "-tp", "2",
        "--no-enable-prefix-caching", "--enforce-eager", "--served-model-name", "a", "b", "--api-key", "sk-1",
        "--middleware", "a.B", "--middleware=c.D", "--override-generation-config.top_p", "0.5", "-O3",
        "--disable-log-stats", "--kv-transfer-config", '{"a": 1}',
    ]  # fmt: skip
    found = row(lint_of(deployment({**ENGINE, "args": args})))
    assert found["flags"] == {
        "model": "org/m", "max_num_seqs": 32, "max_model_len": 8000, "gpu_memory_utilization": 0.9,
        "tensor_parallel_size": 2, "enable_prefix_caching": False, "enforce_eager": True,
        "served_model_name": ["a", "b"], "api_key": "(not shown)", "middleware": ["a.B", "c.D"],
        "override_generation_config.top_p": "0.5", "optimization_level": 3, "disable_log_stats": True,
        "kv_transfer_config": '{"a": 1}',
    }  # fmt: skip
    assert found["spellings"]["max_num_seqs"] == "--max_num_seqs"
    assert found["spellings"]["enable_prefix_caching"] == "--no-enable-prefix-caching"
    assert found["api_key"] is True and found["multi_node"] is False and found["lora"] is False


def test_the_last_of_equal_flags_is_the_value(lint_of: Any) -> None:
    args = ["--max-num-seqs=1", "--max_num_seqs=2"]
    assert row(lint_of(deployment({**ENGINE, "args": args})))["flags"] == {"max_num_seqs": 2}


@pytest.mark.parametrize(
    ("script", "reason", "shape", "flags"),
    [
        ('eval "vllm serve m $A"', "Eval", None, {}),
        ("vllm serve m --max-num-seqs 3 & sleep 9", "BackgroundJob", "shell", {"model": "m", "max_num_seqs": 3}),
    ],
)
def test_a_refused_command_line_says_why_and_what_can_be_read(
    script: str, reason: str, shape: str | None, flags: dict[str, Any], lint_of: Any
) -> None:
    found = row(lint_of(deployment({"name": "e", "image": "own:1", "command": ["bash", "-c", script]})))
    (finding,) = [f for f in found["findings"] if f["id"] == "TT001"]
    assert (found["shape"], found["flags"]) == (shape, flags)
    assert reason in finding["message"] and found["obstacle"] and finding["fix"]
    assert "TT046" in ids(found)


def test_a_launcher_in_an_engine_image_is_told(lint_of: Any) -> None:
    launched = {**ENGINE, "command": ["/scripts/start.sh"]}
    assert "CommandOutOfSight" in row(lint_of(deployment(launched)))["findings"][0]["message"]


@pytest.mark.parametrize(
    "other",
    [
        {"image": "vllm/vllm-openai:v1", "command": ["vllm", "bench", "serve"]},
        {"image": "nginx"},
        {"image": "own/vllm-router:1"},
    ],
)
def test_what_is_no_engine_is_no_target(other: dict[str, Any], lint_of: Any) -> None:
    assert lint_of(deployment({"name": "o", **other})) == []


def test_a_flag_that_cannot_be_read_does_not_hide_the_others(lint_of: Any) -> None:
    args = ["--model=org/m", "--max-num-seqs 32", "--disable-log-stats", "$(MORE)", "--port=9000"]
    found = row(lint_of(deployment({**ENGINE, "args": args})))
    assert {"TT001", "TT010", "TT028"} <= ids(found)
    assert found["shape"] == "image" and found["port"] == 9000 and found["flags"]["max_num_seqs"] == 32


def test_each_engine_of_a_pod_is_a_target_and_companions_are_none(lint_of: Any) -> None:
    second = {**ENGINE, "name": "second", "args": ["--port=8001"]}
    reports = lint_of(deployment({"name": "proxy", "image": "envoy:1"}, ENGINE, second))
    assert [r.container for r in reports] == ["engine", "second"]


def test_items_of_a_list_are_found_with_their_places(lint_text: Any) -> None:
    text = yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [{"kind": "Secret"}, deployment(ENGINE)]})
    (report,) = lint_text(text)
    assert all(f.path.startswith("items[1].") and f.line > 1 for f in report.findings)


def test_custom_resources_are_told_and_their_pods_linted(lint_of: Any) -> None:
    pod = {"spec": {"containers": [{**ENGINE, "args": ["--model=m", "--disable-log-stats"]}]}}
    group = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "l"},
             "spec": {"leaderWorkerTemplate": {"leaderTemplate": pod}}}  # fmt: skip
    found = row(lint_of(group))
    assert {"TT001", "TT028"} <= ids(found) and found["shape"] is None and "several pods" in found["obstacle"]
    (finding,) = [f for f in found["findings"] if f["id"] == "TT028"]
    assert finding["where"]["path"] == "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0].args[1]"
    hidden = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "k"},
              "spec": {"predictor": {"model": {"runtime": "vllm"}}}}  # fmt: skip
    assert ids(row(lint_of(hidden))) == {"TT001"}


def test_the_owner_is_shown(lint_of: Any) -> None:
    found = row(lint_of(deployment(ENGINE, annotations={"meta.helm.sh/release-name": "chat"})))
    assert found["owner"]["kind"] == "helm" and found["owner"]["name"] == "chat"
    assert row(lint_of(deployment(ENGINE)))["owner"] is None


@pytest.mark.parametrize("where", ["workload", "pod"])
def test_an_annotation_ignores_rules(where: str, lint_of: Any) -> None:
    plain, marked = deployment(ENGINE), deployment(ENGINE)
    asked = {"annotations": {"trimtab.dev/lint-ignore": "TT046, TT052"}}
    if where == "workload":
        marked["metadata"].update(asked)
    else:
        marked["spec"]["template"]["metadata"] = asked
    assert ids(row(lint_of(plain))) - ids(row(lint_of(marked))) == {"TT046", "TT052"}


def test_rules_can_be_disabled(lint_of: Any) -> None:
    assert "TT046" not in ids(row(lint_of(deployment(ENGINE), disabled=frozenset({"TT046"}))))


def test_the_worst_comes_first(lint_of: Any) -> None:
    found = row(lint_of(deployment({**ENGINE, "args": ["--config=a", "--disable-log-stats"]})))
    order = [list(Severity).index(Severity(f["severity"])) for f in found["findings"]]
    assert order == sorted(order) and len(set(order)) == 3


PLACES = """\
# a comment
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  template:
    spec:
      containers:
      - name: e
        image: vllm/vllm-openai:v0.32.0
        args:
        - --model=m
        -   --disable-log-stats
      - name: f
        image: own:1
        command: [sh, -c]
        args:
        - |
          exec vllm serve m \\
            --port 8001 \\
            --disable-log-stats
"""


def test_findings_point_at_the_line_of_the_flag(lint_text: Any) -> None:
    first, second = lint_text(PLACES)
    lines = {r.container: [(f.line, f.column) for f in r.findings if f.id == "TT028"] for r in (first, second)}
    assert lines == {"e": [(17, 13)], "f": [(25, 1)]}


ALIASES = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  template:
    spec:
      containers:
      - &one
        name: e
        image: vllm/vllm-openai:v0.32.0
        args: [--disable-log-stats]
      - <<: *one
        name: f
"""


def test_values_by_alias_have_the_place_above(lint_text: Any) -> None:
    reports = lint_text(ALIASES)
    assert [next(f.line for f in r.findings if f.id == "TT028") for r in reports] == [11, 12]


@pytest.mark.parametrize(
    "odd",
    [
        {"ports": "x", "env": [1, {"name": 2}], "resources": [], "livenessProbe": "no", "lifecycle": {"preStop": 1}},
        {"volumeMounts": {"a": 1}, "readinessProbe": {"httpGet": []}, "startupProbe": {"periodSeconds": "x"}},
        {"args": "text"},
        {"command": 5},
        {"image": None},
    ],
)
def test_odd_manifests_are_no_crash(odd: dict[str, Any], lint_of: Any) -> None:
    manifest = deployment({**ENGINE, **odd})
    manifest["spec"]["strategy"] = "Recreate"
    as_text(lint_of(manifest))


def test_the_text_names_engine_shape_and_version(lint_of: Any) -> None:
    text = as_text(lint_of(deployment(ENGINE, namespace="chat")))
    assert text.startswith("x.yaml: Deployment chat/x, container engine (shape image, vLLM 0.32.0)\n")
    assert text.splitlines()[-1].startswith("1 engine: ")
