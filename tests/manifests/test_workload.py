"""Which objects of a text are workloads, what they mount, and what is named instead of edited."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import yaml

from trimtab.errors import InputError
from trimtab.manifests.documents import MOST_VALUES, read_documents
from trimtab.manifests.mounted import mounted_files
from trimtab.manifests.workload import Inventory, inventory

POD: dict[str, Any] = {"spec": {"containers": [{"name": "v", "image": "vllm/vllm-openai:v0"}]}}


def seen(*objects: Any) -> Inventory:
    return inventory(read_documents(yaml.safe_dump_all(objects), "m.yaml"))


def obj(kind: str, api: str = "apps/v1", name: str = "m", **body: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "llm"}, **body}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (obj("Deployment", spec={"template": POD, "replicas": 3}), ("spec", "template")),
        (obj("StatefulSet", spec={"template": POD}), ("spec", "template")),
        (obj("DaemonSet", spec={"template": POD}), ("spec", "template")),
        (obj("Job", "batch/v1", spec={"template": POD}), ("spec", "template")),
        (obj("CronJob", "batch/v1", spec={"jobTemplate": {"spec": {"template": POD}}}),
         ("spec", "jobTemplate", "spec", "template")),
        (obj("Pod", "v1", **POD), ()),
    ],
    ids=lambda x: x["kind"] if isinstance(x, dict) else "",
)  # fmt: skip
def test_each_kind_has_its_template(body: dict[str, Any], path: tuple[str, ...]) -> None:
    (workload,) = seen(body).workloads
    assert (workload.kind, workload.name, workload.namespace, workload.path) == (body["kind"], "m", "llm", path)
    assert workload.template["spec"] == POD["spec"]
    assert workload.pointer == "".join(f"/{key}" for key in path)
    assert workload.replicas == (3 if body["kind"] == "Deployment" else None)


def test_items_of_lists_are_found_where_they_are() -> None:
    one = obj("Deployment", spec={"template": POD})
    bare = {k: v for k, v in one.items() if k not in ("kind", "apiVersion")}
    found = seen(
        {"apiVersion": "v1", "kind": "List", "items": [obj("Service", "v1"), one]},
        {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [bare]},
    )
    assert [w.path for w in found.workloads] == [("items", 1, "spec", "template"), ("items", 0, "spec", "template")]
    assert [w.document.index for w in found.workloads] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "api", "reason"),
    [
        ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "several pods make one engine"),
        ("RayService", "ray.io/v1", "Ray"),
        ("InferenceService", "serving.kserve.io/v1beta1", "KServe"),
        ("LLMInferenceService", "serving.kserve.io/v1alpha1", "KServe"),
        ("ModelService", "llm-d.ai/v1alpha1", "llm-d"),
        ("VLLMRuntime", "production-stack.vllm.ai/v1alpha1", "production stack"),
        ("Rollout", "argoproj.io/v1alpha1", "Argo"),
        ("Thing", "example.org/v1", "custom resource"),
    ],
)
def test_custom_resources_that_run_vllm_are_named_with_the_reason(kind: str, api: str, reason: str) -> None:
    found = seen(obj(kind, api, spec={"template": POD}))
    assert found.workloads == ()
    (unreadable,) = found.unreadable
    assert unreadable.title == f"{kind}/m"
    assert reason in unreadable.reason
    assert kind in unreadable.advice


@pytest.mark.parametrize(
    "body",
    [
        {"objects": [{"kind": "Deployment", "command": ["vllm", "serve", "m"]}]},
        {"spec": {"values": {"image": {"repository": "vllm/vllm-openai"}}}},
        {"spec": {"script": "python3 -m vllm.entrypoints.openai.api_server"}},
    ],
)
def test_an_unknown_resource_counts_where_it_starts_vllm(body: dict[str, Any]) -> None:
    assert [u.kind for u in seen(obj("Thing", "template.openshift.io/v1", **body)).unreadable] == ["Thing"]


def test_objects_without_engines_are_passed_over() -> None:
    found = seen(
        obj("InferenceService", "serving.kserve.io/v1beta1", spec={"predictor": {"model": {"modelFormat": "sklearn"}}}),
        obj("InferencePool", "inference.networking.x-k8s.io/v1", spec={"selector": {"app": "vllm"}}),
        obj("ScaledObject", "keda.sh/v1alpha1", spec={"triggers": [{"query": "sum(vllm:num_requests_waiting)"}]}),
        obj("Application", "argoproj.io/v1alpha1", spec={"source": {"path": "apps/vllm"}}),
        obj("VirtualService", "networking.istio.io/v1", spec={"http": [{"route": {"host": "vllm"}}]}),
        obj("PodMonitor", "monitoring.coreos.com/v1", spec={"selector": {"app": "vllm"}}),
        obj("VLLMTuner", "trimtab.dev/v1alpha1", spec={"targetRef": {"name": "vllm"}}),
        obj("Deployment", "apps/v1", spec={"template": {"spec": {"containers": None}}}),
        obj("Deployment", "apps/v1"),
        None, "text", [1], {"kind": 5}, {"kind": "List", "items": None},
    )  # fmt: skip
    assert (found.workloads, found.unreadable) == ((), ())


def test_files_of_config_maps_are_seen_where_they_are_mounted() -> None:
    scripts = obj("ConfigMap", "v1", "scripts", data={"run.sh": "exec vllm", "c.yaml": "port: 1", "n": 5})
    other = {**scripts, "metadata": {"name": "scripts", "namespace": "elsewhere"}, "data": {"run.sh": "no"}}
    pod = {
        "spec": {
            "containers": [
                {
                    "name": "v",
                    "volumeMounts": [
                        {"name": "all", "mountPath": "/scripts/"},
                        {"name": "some", "mountPath": "/etc/x"},
                        {"name": "all", "mountPath": "/one.sh", "subPath": "run.sh"},
                        {"name": "both", "mountPath": "/p"},
                        {"name": "some", "mountPath": "/sub", "subPath": "deep"},
                        {"name": "gone", "mountPath": "/gone"},
                        {"name": "all", "mountPath": "relative"},
                    ],
                },
                {"name": "w", "volumeMounts": [{"name": "some", "mountPath": "/scripts"}]},
            ],
            "volumes": [
                {"name": "all", "configMap": {"name": "scripts"}},
                {"name": "some", "configMap": {"name": "scripts", "items": [{"key": "c.yaml", "path": "deep/c.yaml"}]}},
                {"name": "both", "projected": {"sources": [{"secret": {}}, {"configMap": {"name": "scripts"}}]}},
                {"name": "gone", "configMap": {"name": "absent"}},
            ],
        }
    }
    found = seen(scripts, other, obj("Deployment", spec={"template": pod}))
    (workload,) = found.workloads
    assert mounted_files(workload, found.config_maps, "v") == {
        "/scripts/run.sh": "exec vllm",
        "/scripts/c.yaml": "port: 1",
        "/etc/x/deep/c.yaml": "port: 1",
        "/one.sh": "exec vllm",
        "/p/run.sh": "exec vllm",
        "/p/c.yaml": "port: 1",
        "/sub/c.yaml": "port: 1",
    }
    assert mounted_files(workload, found.config_maps, "w") == {"/scripts/deep/c.yaml": "port: 1"}


def test_a_path_that_two_containers_see_differently_is_left_out() -> None:
    maps = [obj("ConfigMap", "v1", name, data={"f": name}) for name in ("a", "b")]
    volumes = [{"name": name, "configMap": {"name": name}} for name in ("a", "b")]
    mounts = [{"name": c, "volumeMounts": [{"name": c, "mountPath": "/m"}]} for c in ("a", "b")]
    found = seen(*maps, obj("Deployment", spec={"template": {"spec": {"containers": mounts, "volumes": volumes}}}))
    assert mounted_files(found.workloads[0], found.config_maps) == {}


@pytest.mark.parametrize(
    "text",
    [
        "kind: Deployment\nmetadata:\n  name: {{ .Release.Name }}\n",
        "{{- if .Values.on }}\nkind: Deployment\n{{- end }}\n",
        'kind: Deployment\nmetadata: {name: x}\nspec: {image: "{{ .Values.image }}"}\n',
        'kind: Deployment\nmetadata:\n  labels:\n    {{- include "x.labels" . | nindent 4 }}\n',
    ],
)
def test_a_helm_template_is_told_to_be_rendered_first(text: str) -> None:
    with pytest.raises(InputError, match=r"^t.yaml:\d+: this is a Helm template.*helm template"):
        read_documents(text, "t.yaml")


def test_braces_of_a_chat_template_or_an_alert_are_no_helm_template() -> None:
    text = (
        "kind: Pod\nargs: ['--chat-template={{ messages[0] }} {% if x %}']\nsummary: '{{ $labels.pod }} {{ .Value }}'\n"
    )
    assert len(read_documents(text, "t.yaml")) == 1


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{key}: &{key} [{', '.join([f'*{last}'] * 10)}]\n" for last, key in pairwise("abcdefg")
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n---\nb: [\n", r"t.yaml:\d+: is neither YAML nor JSON"),
        ("a: b: c\n", "t.yaml:1: is neither"),
        ("a: \x07\n", "t.yaml:1: is neither"),
        ("? [a]\n: 1\n", "t.yaml:1: is neither"),
        ("a: 2020-99-99\n", "t.yaml:1: is neither"),
        ("a: 1\n...\nb: 2\n", "t.yaml:3: is neither"),
        ("[" * 3000, "t.yaml:1: is"),
        ("- " * 3000, "t.yaml:1: is"),
        (BOMB, "t.yaml:1: its aliases expand"),
        ("a: &a [*a]\n", "t.yaml:1: its aliases expand"),
        ("password: hunter2: x\n", "t.yaml:1: is neither"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused_with_file_and_line(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        read_documents(text, "t.yaml")
    assert "hunter2" not in str(error.value)
    assert error.value.fix


def test_a_large_manifest_is_not_mistaken_for_a_bomb() -> None:
    text = "a:\n" + "- x\n" * 5000
    assert len(read_documents(text, "t.yaml")[0].data["a"]) == 5000 < MOST_VALUES
