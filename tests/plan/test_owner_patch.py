"""The owner's own patch: applied by the real kubectl to objects of KServe and the production stack, and put together
as their controllers do, it gives the Deployment that Trimtab would have written.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cluster_fixtures import cluster_bin
from trimtab.engine.command import parse_template
from trimtab.engine.rewrite import rewrite
from trimtab.plan.handover import Handover, Source, handover

Json = dict[str, Any]
CHANGES: Json = {"max_num_seqs": 48, "enable_prefix_caching": True}
IMAGE = "vllm/vllm-openai:v0.20.0"
#: config/runtimes/kserve-vllmserver.yaml of KServe, its script in short
VLLM_RUNTIME: Json = {
    "name": "kserve-container", "image": IMAGE,
    "command": ["bash", "-c", "export MODEL=${MODEL_DIR}\nvllm serve ${MODEL} --host 0.0.0.0 --port 8000 $@\n", "bash"],
}  # fmt: skip
#: a ServingRuntime as OpenShift AI has it
MODULE_RUNTIME: Json = {
    "name": "kserve-container", "image": IMAGE,
    "command": ["python", "-m", "vllm.entrypoints.openai.api_server"],
    "args": ["--port=8080", "--model=/mnt/models", "--served-model-name={{.Name}}", "--max-num-seqs=256"],
}  # fmt: skip
#: config/llmisvcconfig/config-llm-template.yaml of KServe
PRESET: Json = {
    "name": "main", "image": IMAGE, "command": ["vllm", "serve", "/mnt/models"],
    "args": ["--served-model-name", "llm", "--port", "8000"],
}  # fmt: skip


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Json, str], Json]:
    """Applies a JSON patch to an object in a file, as `kubectl patch --local` does."""
    built = cluster_bin() / "kubectl"
    binary = shutil.which("kubectl") or (str(built) if built.exists() else None)
    if binary is None:
        pytest.skip("no kubectl: install it or run hack/cluster/build.sh")
    folder = tmp_path_factory.mktemp("kubectl")

    def patched(body: Json, patch: str) -> Json:
        (folder / "object.json").write_text(json.dumps(body))
        command = [binary, "patch", "--local", "-f", str(folder / "object.json"), "--type=json", "-p", patch]
        done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        result: Json = json.loads(done.stdout)
        return result

    return patched


# --- what the controllers make of their objects, by their sources ----------------------------------------------------
def _filled(container: Json, name: str) -> Json:
    filled: Json = json.loads(json.dumps(container).replace("{{.Name}}", name))
    return filled


def _merged(base: Json, over: Json) -> Json:
    """A strategic merge of two containers: lists of texts are replaced, env by name."""
    env = {e["name"]: e for e in (*base.get("env", ()), *over.get("env", ()))}
    return {**base, **over, **({"env": list(env.values())} if env else {})}


def inference_service(body: Json, runtime: Json) -> Json:
    predictor = body["spec"]["predictor"]
    if "model" not in predictor:
        return copy.deepcopy(predictor["containers"][0])
    model = {k: v for k, v in predictor["model"].items() if k in ("args", "env", "command")}
    args = [*runtime.get("args", ()), *model.get("args", ())]
    made = {**_merged(runtime, model), **({"args": args} if args else {})}
    return _filled(made, body["metadata"]["name"])


def llm_inference_service(body: Json, preset: Json) -> Json:
    containers = body["spec"].get("template", {}).get("containers", ())
    own = next((c for c in containers if c["name"] == "main"), {})
    return _merged(preset, own)


def vllm_runtime(body: Json, _: Json) -> Json:
    spec, model = body["spec"], body["spec"]["model"]
    caching = (
        "--enable-prefix-caching" if spec["vllmConfig"].get("enablePrefixCaching") else "--no-enable-prefix-caching"
    )
    args = [model["modelURL"], "--host", "0.0.0.0", "--port", "8000", "--no-enable-chunked-prefill", caching]
    if model.get("maxNumSeqs", 0) > 0:
        args += ["--max-num-seqs", str(model["maxNumSeqs"])]
    args += [*spec["vllmConfig"].get("extraArgs", ()), "--kv-transfer-config", '{"kv_role":"kv_both"}']
    return {"name": "vllm", "image": IMAGE, "command": ["/opt/venv/bin/vllm", "serve"], "args": args}


def object_of(kind: str, spec: Json) -> Json:
    version = {"VLLMRuntime": "production-stack.vllm.ai/v1alpha1", "InferenceService": "serving.kserve.io/v1beta1"}
    api = version.get(kind, "serving.kserve.io/v1alpha2")
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "llm", "namespace": "ml"}, "spec": spec}


def deployment(owner: Json, container: Json) -> Json:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": "llm",
        "controller": True,
        "uid": "u",
    }
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "llm-predictor", "namespace": "ml", "ownerReferences": [reference]},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }  # fmt: skip


def forms(owner: Json, container: Json, changes: Json | None = None) -> Handover:
    seen = deployment(owner, container)
    before = seen["spec"]["template"]
    after = rewrite(before, changes or CHANGES, version="0.20.0")
    plural = owner["kind"].lower() + "s." + owner["apiVersion"].partition("/")[0]
    found = handover(seen, before, after, changes or CHANGES, Source(plural, owner), "0.20.0")
    assert found is not None
    return found


def isvc(predictor: Json) -> Json:
    return object_of("InferenceService", {"predictor": predictor})


def with_model(*args: str) -> Json:
    return isvc({"model": {**MODEL, "args": list(args)}})


def llmisvc(spec: Json) -> Json:
    return object_of("LLMInferenceService", spec)


def runtime(model: Json, config: Json) -> Json:
    return object_of("VLLMRuntime", {"model": {"modelURL": "org/m", **model}, "vllmConfig": config})


MODEL: Json = {"modelFormat": {"name": "vllm"}, "storageUri": "hf://org/m", "runtime": "kserve-vllmserver"}
MAIN: Json = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
CASES: dict[str, tuple[Callable[[Json, Json], Json], Json, Json]] = {
    "KServe's vLLM runtime, args of the model": (
        inference_service, VLLM_RUNTIME, with_model("--max-model-len=4096", "--max-num-seqs=256"),
    ),
    "KServe's vLLM runtime, no args": (inference_service, VLLM_RUNTIME, isvc({"model": MODEL})),
    "a ServingRuntime with args of its own": (inference_service, MODULE_RUNTIME, with_model("--max-model-len=4096")),
    "placeholders in the model's args": (
        inference_service, MODULE_RUNTIME, with_model("--seed=1", "--otlp-traces-endpoint={{.Name}}"),
    ),
    "an InferenceService with a container": (
        inference_service, {},
        isvc({"containers": [{"name": "kserve-container", "image": IMAGE, "args": ["--model=m", "--max-num-seqs=2"]}]}),
    ),
    "an LLMInferenceService with its preset's args": (
        llm_inference_service, PRESET, llmisvc({"model": {"uri": "hf://org/m"}, "template": {"containers": [MAIN]}}),
    ),
    "an LLMInferenceService without a template": (
        llm_inference_service, PRESET, llmisvc({"model": {"uri": "hf://org/m"}}),
    ),
    "an LLMInferenceService with args": (
        llm_inference_service, PRESET,
        llmisvc({"template": {"containers": [{**MAIN, "args": ["--max-num-seqs", "256", "--port", "8000"]}]}}),
    ),
    "a VLLMRuntime": (vllm_runtime, {}, runtime({"maxNumSeqs": 256}, {"enablePrefixCaching": False})),
    "a VLLMRuntime that says nothing": (vllm_runtime, {}, runtime({}, {})),
    "a VLLMRuntime with the flag among its extra arguments": (
        vllm_runtime, {}, runtime({"maxNumSeqs": 32}, {"extraArgs": ["--max-num-seqs=64"]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes", [CHANGES, {"max_num_batched_tokens": 4096}, {"max_new_tokens": 512}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_controller_makes_of_the_patched_object_what_was_wanted(
    kubectl: Callable[[Json, str], Json], case: str, changes: Json
) -> None:
    controller, base, owner = CASES[case]
    container = controller(owner, base)
    found = forms(owner, container, changes)
    assert found.owner == f"{owner['kind']} llm" and found.owner_patch, found.advice
    made = controller(kubectl(owner, found.owner_patch), base)

    def settings(body: Json) -> Json:
        configuration = parse_template({"spec": {"containers": [body]}}).configuration()
        return {name: configuration.get(name) for name in ("max_num_seqs", "enable_prefix_caching", *changes)}

    assert settings(made) == {**settings(container), **changes}
    flags = {"args", "command", "env"}
    assert {k: v for k, v in made.items() if k not in flags} == {k: v for k, v in container.items() if k not in flags}
    kept = [item for item in container.get("args", ()) if not item.startswith(("--max-num-s", "--no-enable-p", "256"))]
    assert [item for item in made.get("args", ()) if item in kept] == kept


@pytest.mark.parametrize("case", CASES)
def test_the_command_is_one_line_that_a_shell_hands_to_kubectl_whole(case: str) -> None:
    controller, base, owner = CASES[case]
    found = forms(owner, controller(owner, base))
    script = f"kubectl() {{ printf '%s\\0' \"$@\"; }}\n{found.command}"
    words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    assert words[0] == "patch" and words[2:6] == ["llm", "--namespace", "ml", "--type=json"]
    assert words[1].endswith((".serving.kserve.io", ".production-stack.vllm.ai"))
    assert json.loads(words[7]) == json.loads(found.owner_patch)


def test_a_change_made_meanwhile_refuses_the_patch(kubectl: Callable[[Json, str], Json]) -> None:
    controller, base, owner = CASES["KServe's vLLM runtime, args of the model"]
    found = forms(owner, controller(owner, base))
    owner = copy.deepcopy(owner)
    owner["spec"]["predictor"]["model"]["args"][1] = "--max-num-seqs=8"
    with pytest.raises(AssertionError, match="test"):
        kubectl(owner, found.owner_patch)


def test_for_a_controller_no_patch_of_its_deployment_is_offered() -> None:
    controller, base, owner = CASES["a VLLMRuntime"]
    found = forms(owner, controller(owner, base))
    assert set(found.files()) == {"owner-patch.json"}
    seen = deployment(owner, controller(owner, base))
    before = seen["spec"]["template"]
    unread = handover(seen, before, rewrite(before, CHANGES, version="0.20.0"), CHANGES)
    assert unread is not None and unread.files() == {} and "VLLMRuntime llm" in unread.advice


@pytest.mark.parametrize(
    ("owner", "container", "why"),
    [
        (isvc({"model": MODEL, "workerSpec": {}}), VLLM_RUNTIME, "several pods"),
        (isvc({"huggingface": {}}), VLLM_RUNTIME, "neither model nor containers"),
        (llmisvc({"worker": {}}), PRESET, "several pods"),
        (with_model("--seed=2"), VLLM_RUNTIME, "not those"),
        (runtime({"maxNumSeqs": 7}, {}), {"name": "vllm", "image": IMAGE, "args": ["--max-num-seqs=9"]}, "changed now"),
        (object_of("Other", {}), VLLM_RUNTIME, "does not know"),
    ],
)  # fmt: skip
def test_where_the_object_cannot_carry_it_the_advice_says_why(owner: Json, container: Json, why: str) -> None:
    found = forms(owner, container)
    assert found.files() == {} and why in found.advice


def test_tokens_that_a_runtime_sets_are_not_half_replaced() -> None:
    """A second --override-generation-config behind the runtime's would drop its other members."""
    sets = {**MODULE_RUNTIME, "args": [*MODULE_RUNTIME["args"], '--override-generation-config={"top_p":0.5}']}
    owner = isvc({"model": MODEL})
    found = forms(owner, inference_service(owner, sets), {"max_new_tokens": 64})
    assert found.files() == {} and "other settings" in found.advice


def test_a_prefill_deployment_is_changed_in_the_prefill_part(kubectl: Callable[[Json, str], Json]) -> None:
    owner = llmisvc({"template": {"containers": [MAIN]}, "prefill": {"template": {"containers": [MAIN]}}})
    seen = deployment(owner, PRESET)
    seen["metadata"]["name"] = "llm-kserve-prefill"
    before = seen["spec"]["template"]
    after = rewrite(before, CHANGES, version="0.20.0")
    found = handover(seen, before, after, CHANGES, Source("llminferenceservices.serving.kserve.io", owner), "0.20.0")
    assert found is not None and "preset" in found.advice
    spec = kubectl(owner, found.owner_patch)["spec"]
    assert spec["template"] == owner["spec"]["template"]
    assert spec["prefill"]["template"]["containers"][0]["args"][-1] == "48"


def test_an_owner_that_is_itself_kept_in_git_is_named() -> None:
    controller, base, owner = CASES["a VLLMRuntime"]
    owner = copy.deepcopy(owner)
    owner["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "llm:x/VLLMRuntime:ml/llm"}
    assert "Git source that Argo CD" in forms(owner, controller(owner, base)).advice


def test_a_deployment_of_knative_is_its_inference_services() -> None:
    owner = with_model("--max-num-seqs=256")
    seen = deployment(owner, inference_service(owner, VLLM_RUNTIME))
    seen["metadata"]["labels"] = {"serving.kserve.io/inferenceservice": "llm"}
    revision = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "name": "llm-predictor-00001"}
    seen["metadata"]["ownerReferences"] = [{**revision, "controller": True}]
    before = seen["spec"]["template"]
    after = rewrite(before, CHANGES, version="0.20.0")
    found = handover(seen, before, after, CHANGES, Source("inferenceservices.serving.kserve.io", owner), "0.20.0")
    assert found is not None and found.owner == "InferenceService llm" and found.owner_patch


def test_an_api_key_is_not_shown() -> None:
    script = {"command": ["sh", "-c"], "args": ["vllm serve m --api-key sk-1"]}
    owner = isvc({"containers": [{"name": "kserve-container", "image": IMAGE, **script}]})
    found = forms(owner, inference_service(owner, {}))
    assert found.files() == {} and "sk-1" not in repr(found) and "API key" in found.advice


LLMD = ["org/m", "--port", "8200", "--tensor-parallel-size", "2", "--served-model-name", "m"]


@pytest.mark.parametrize(
    ("container", "args"),
    [
        ({"command": ["vllm", "serve"], "args": [*LLMD, "--max-num-seqs=256"]}, ["--max-num-seqs=48"]),
        ({"image": IMAGE, "args": ["--model", *LLMD]}, ["--max-num-seqs", "48"]),
        ({"command": ["vllm", "serve", "m"], "args": ["--max-num-seqs=256"]}, ["--max-num-seqs=48"]),
    ],
)
def test_values_of_the_llm_d_chart_hold_what_its_entry_says(container: Json, args: list[str]) -> None:
    seen = deployment(object_of("VLLMRuntime", {}), {"name": "vllm", **container})
    seen["metadata"] = {
        "name": "ms-llm-d-modelservice-decode", "namespace": "ml",
        "labels": {"helm.sh/chart": "llm-d-modelservice-v0.3.8", "app.kubernetes.io/managed-by": "Helm"},
    }  # fmt: skip
    before = seen["spec"]["template"]
    found = handover(seen, before, rewrite(before, {"max_num_seqs": 48}, version="0.20.0"), {"max_num_seqs": 48})
    assert found is not None
    (entry,) = yaml.safe_load(found.helm_values)["decode"]["containers"]
    assert entry["name"] == "vllm" and entry["args"] == args
