"""The examples are what they say: tuners that parse, targets without a known trap; a real API server takes them all.

The CRDs of KServe, Ray and the production stack are not here: their objects are sent to open ones, and must have what
a patch of theirs needs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_fixtures import cluster_bin
from control_plane import ControlPlane, running, until
from trimtab.engine.command import parse_template
from trimtab.engine.ownership import owners
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration
from trimtab.lint.finding import Options, Severity
from trimtab.lint.report import lint
from trimtab.manifests.documents import read_documents
from trimtab.plan.object_patch import object_patch
from trimtab.plan.preconditions import FleetView
from trimtab.plan.spec import TunerSpec
from trimtab.tune.suggestion import Suggestion
from trimtab_operator.cluster import Cluster
from trimtab_operator.output import advice
from trimtab_operator.target import Target

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
TUNERS = sorted((ROOT / "examples").glob("tuner-*.yaml"))
ALL = sorted((ROOT / "examples").rglob("*.yaml"))
SHAPES = sorted((ROOT / "examples/targets").glob("*.yaml"))
#: what other projects' objects are in the examples: API group, version, plural
FOREIGN = {
    "InferenceService": ("serving.kserve.io", "v1beta1", "inferenceservices"),
    "LLMInferenceService": ("serving.kserve.io", "v1alpha1", "llminferenceservices"),
    "VLLMRuntime": ("production-stack.vllm.ai", "v1alpha1", "vllmruntimes"),
    "RayService": ("ray.io", "v1", "rayservices"),
}
#: kind of the other objects -> where the API server takes them
PATHS = {
    "Deployment": "apis/apps/v1/namespaces/default/deployments",
    "Service": "api/v1/namespaces/default/services",
    "Secret": "api/v1/namespaces/default/secrets",
    "Job": "apis/batch/v1/namespaces/default/jobs",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    "VLLMTuner": "apis/trimtab.dev/v1alpha1/namespaces/default/vllmtuners",
    **{kind: f"apis/{group}/{at}/namespaces/default/{plural}" for kind, (group, at, plural) in FOREIGN.items()},
}  # fmt: skip


def documents(path: Path) -> list[Json]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda p: str(p.relative_to(ROOT / "examples")))


# --- the three modes --------------------------------------------------------------------------------------------------
@named(TUNERS)
def test_tuner_examples_parse_and_name_the_example_target(path: Path) -> None:
    (tuner,) = documents(path)
    spec = TunerSpec.parse(tuner["spec"])
    targets = [d for d in documents(ROOT / "examples/target.yaml") if d["kind"] == "Deployment"]
    assert [d["metadata"]["name"] for d in targets] == [spec.target_ref.name]
    assert spec.mode.lower() == path.stem.removeprefix("tuner-")


def test_the_first_example_is_short() -> None:
    lines = (ROOT / "examples/tuner-recommend.yaml").read_text().splitlines()
    assert len(lines) <= 10


def test_the_target_drains_before_it_ends() -> None:
    (target,) = [d for d in documents(ROOT / "examples/target.yaml") if d["kind"] == "Deployment"]
    pod = target["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    (drain,) = [int(a.partition("=")[2]) for a in container["args"] if a.startswith("--shutdown-timeout=")]
    assert pod["terminationGracePeriodSeconds"] > pre_stop + drain + 5
    assert target["spec"]["replicas"] >= 2


# --- shapes of targets ------------------------------------------------------------------------------------------------
def test_every_mode_and_shape_has_an_example() -> None:
    tuners = [d for p in ALL for d in documents(p) if d["kind"] == "VLLMTuner"]
    assert {TunerSpec.parse(t["spec"]).mode for t in tuners} == {"Recommend", "Approve", "Auto"}
    engines = [d["spec"]["template"] for p in SHAPES for d in documents(p) if d["kind"] == "Deployment"]
    assert {parse_template(t).shape for t in engines} >= {"serve", "module", "shell"}
    assert {d["kind"] for p in SHAPES for d in documents(p)} >= {"Deployment", "HorizontalPodAutoscaler", *FOREIGN}


@named([p for p in ALL if any(d["kind"] == "Deployment" for d in documents(p))])
def test_targets_have_no_known_trap(path: Path) -> None:
    reports = lint(read_documents(path.read_text(), path.name), Options())
    found = [f for report in reports for f in report.findings if f.severity is not Severity.INFO]
    assert reports and found == []


@named([p for p in SHAPES if any(d["kind"] == "Deployment" for d in documents(p))])
def test_a_shapes_tuner_names_its_target_and_what_owns_it(path: Path) -> None:
    (target,) = [d for d in documents(path) if d["kind"] == "Deployment"]
    (tuner,) = [d for d in documents(path) if d["kind"] == "VLLMTuner"]
    spec = TunerSpec.parse(tuner["spec"])
    assert spec.target_ref.name == target["metadata"]["name"]
    assert parse_template(target["spec"]["template"], spec.target_ref.container).configuration()["max_num_seqs"] == 256
    owner = [o.kind for o in owners(target["metadata"])]
    assert owner == ([path.stem] if path.stem in ("argocd", "flux") else [])


@named([p for p in SHAPES if documents(p)[0]["kind"] in FOREIGN])
def test_an_object_of_others_can_be_patched(path: Path) -> None:
    operations = object_patch(documents(path)[0], {"max_num_seqs": 64})
    assert operations and "64" in str(operations[-1]["value"])


# --- the API server ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running() as started:
        for kind, (group, version, plural) in FOREIGN.items():
            body = _open_crd(kind, group, version, plural)
            started.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        for group, version, plural in FOREIGN.values():
            served = f"/apis/{group}/{version}/{plural}"
            until(lambda at=served: started.exists(at), 20, f"{served} is served")  # type: ignore[misc]
        yield started


def _open_crd(kind: str, group: str, version: str, plural: str) -> Json:
    """A CRD that takes anything."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }  # fmt: skip


@named(ALL)
def test_the_api_server_takes_it(path: Path, plane: ControlPlane) -> None:
    for body in documents(path):
        where = f"/{PATHS[body['kind']]}?dryRun=All&fieldValidation=Strict"
        assert plane.request("POST", where, body)["metadata"]["name"] == body["metadata"]["name"]


#: what the controllers make of the examples: the container, by their sources
MADE = {
    "kserve": ("kserve-container", ["bash", "-c", "vllm serve ${MODEL} --port 8000 $@", "bash"]),
    "llminferenceservice": ("main", ["vllm", "serve", "/mnt/models"]),
    "production-stack": ("vllm", ["/opt/venv/bin/vllm", "serve"]),
}


def made_of(body: Json) -> list[str]:
    """The args that the Deployment's container has for the object."""
    spec = body["spec"]
    if body["kind"] == "InferenceService":
        return list(spec["predictor"]["model"]["args"])
    if body["kind"] == "LLMInferenceService":
        return list(spec["template"]["containers"][0]["args"])
    return [spec["model"]["modelURL"], "--port", "8000", "--max-num-seqs", str(spec["model"]["maxNumSeqs"])]


@pytest.mark.parametrize("name", MADE)
def test_the_line_that_is_recommended_changes_the_owners_object(
    name: str, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the operator's own client, from an object on the server to the pasted kubectl line."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    body = documents(ROOT / f"examples/targets/{name}.yaml")[0]
    plane.request("POST", f"/{PATHS[body['kind']]}", body)
    container = {"name": MADE[name][0], "image": "x", "command": MADE[name][1], "args": made_of(body)}
    reference = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": "llama", "controller": True}
    meta = {"name": "llama-x", "namespace": "default", "ownerReferences": [reference]}
    template = {"metadata": {}, "spec": {"containers": [container]}}
    target = Target({"metadata": meta, "spec": {"template": template}})
    wanted = rewrite(template, {"max_num_seqs": 48}, version="0.20.0")
    fleet = FleetView(exists=True, configuration=parse_template(template).configuration(), engine_version="0.20.0")
    guess = Suggestion(Configuration.of({**(fleet.configuration or {}), "max_num_seqs": 48}), "", "", "", wanted)
    found = advice(target, fleet, [], guess, Cluster.connect()).suggestion
    assert found is not None and found.patch.startswith("kubectl patch "), found
    env = {"HOME": str(tmp_path), "KUBECONFIG": str(plane.kubeconfig), "PATH": f"{cluster_bin()}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", found.patch], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0 and "patched" in done.stdout, done.stderr
    after = plane.request("GET", f"/{PATHS[body['kind']]}/llama")
    new = {**container, "args": made_of(after)}
    assert parse_template({"spec": {"containers": [new]}}).configuration()["max_num_seqs"] == 48
