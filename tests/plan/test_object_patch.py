"""`trimtab rewrite -o patch` for custom resources: what kubectl makes of it has just that change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_owner_patch import IMAGE, MAIN, isvc, kubectl, llmisvc, runtime, with_model

from trimtab.errors import InputError
from trimtab.plan.object_patch import object_patch
from trimtab.plan.ray_serve import edited

__all__ = ["kubectl"]
Json = dict[str, Any]
CHANGES: Json = {"max_num_seqs": 48, "enable_prefix_caching": True}
#: ray-operator/config/samples/ray-service.llm-serve.yaml of KubeRay, in short
SERVE = """\
applications:
- name: llms
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config:
        model_id: qwen2.5-7b-instruct   # as clients name it
        model_source: Qwen/Qwen2.5-7B-Instruct
      engine_kwargs:
        dtype: bfloat16
        max_num_seqs: 256  # too many
      deployment_config:
        max_ongoing_requests: 128
"""


def ray(text: str = SERVE) -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "llm"},
        "spec": {"serveConfigV2": text},
    }


def kwargs(body: Json) -> Json:
    (application,) = yaml.safe_load(body["spec"]["serveConfigV2"])["applications"]
    found: Json = application["args"]["llm_configs"][0]["engine_kwargs"]
    return found


SCRIPT = {"command": ["sh", "-c"], "args": ["exec vllm serve m --max-num-seqs 9"]}
CASES: dict[str, tuple[Json, Callable[[Json], Any], Any]] = {
    "args of a model": (
        with_model("--max-num-seqs=9", "--seed=1"), lambda b: b["spec"]["predictor"]["model"]["args"],
        ["--max-num-seqs=48", "--seed=1", "--enable-prefix-caching"],
    ),
    "a model without args": (
        isvc({"model": {"modelFormat": {"name": "vllm"}}}), lambda b: b["spec"]["predictor"]["model"]["args"],
        ["--enable-prefix-caching", "--max-num-seqs=48"],
    ),
    "a container's script": (
        isvc({"containers": [{"name": "kserve-container", "image": IMAGE, **SCRIPT}]}),
        lambda b: b["spec"]["predictor"]["containers"][0]["args"],
        ["exec vllm serve m --max-num-seqs 48 --enable-prefix-caching"],
    ),
    "an LLMInferenceService with args": (
        llmisvc({"template": {"containers": [{**MAIN, "args": ["--max-num-seqs", "9"]}]}}),
        lambda b: b["spec"]["template"]["containers"][0]["args"], ["--max-num-seqs", "48", "--enable-prefix-caching"],
    ),
    "a VLLMRuntime": (
        runtime({"maxNumSeqs": 9}, {"extraArgs": ["--seed=1"]}),
        lambda b: (b["spec"]["model"]["maxNumSeqs"], b["spec"]["vllmConfig"]),
        (48, {"extraArgs": ["--seed=1"], "enablePrefixCaching": True}),
    ),
    "a RayService": (ray(), kwargs, {"dtype": "bfloat16", "max_num_seqs": 48, "enable_prefix_caching": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_kubectl_makes_just_that_change(kubectl: Callable[[Json, str], Json], case: str) -> None:
    body, place, wanted = CASES[case]
    operations = object_patch(body, CHANGES)
    assert operations
    assert place(kubectl(body, json.dumps(operations))) == wanted


@pytest.mark.parametrize("case", CASES)
def test_what_is_so_already_is_no_change(kubectl: Callable[[Json, str], Json], case: str) -> None:
    body, _, _ = CASES[case]
    done = kubectl(body, json.dumps(object_patch(body, CHANGES)))
    again = [o for o in object_patch(done, CHANGES) or () if o["op"] != "test"]
    assert kubectl(done, json.dumps(again)) == done


def test_every_other_line_of_a_serve_config_stays() -> None:
    after = edited(SERVE, {"max_num_seqs": 48, "max_num_batched_tokens": 4096})
    lines = SERVE.replace("256  # too many", "48  # too many").splitlines()
    assert [line for line in after.splitlines() if "batched" not in line] == lines
    assert edited(after, {"max_num_seqs": 256, "max_num_batched_tokens": None}) == SERVE


@pytest.mark.parametrize("written", ["      engine_kwargs: {dtype: bfloat16}\n", "      engine_kwargs: {}\n", ""])
def test_engine_kwargs_in_other_forms(written: str) -> None:
    start, end = SERVE.index("      engine_kwargs"), SERVE.index("      deployment_config")
    after = kwargs(ray(edited(SERVE[:start] + written + SERVE[end:], CHANGES)))
    assert {k: v for k, v in after.items() if k != "dtype"} == CHANGES


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (ray("applications: []"), "serveConfigV2"),
        (ray(SERVE + SERVE[SERVE.index("- name") :].replace("qwen", "other")), "serveConfigV2"),
        (llmisvc({"template": {"containers": [MAIN]}}), "preset"),
        (isvc({"model": {}, "workerSpec": {}}), "several pods"),
    ],
)
def test_what_cannot_be_changed_there_is_named(body: Json, field: str) -> None:
    with pytest.raises(InputError, match=field):
        object_patch(body, CHANGES)


def test_one_of_two_models_is_picked_by_its_name() -> None:
    two = SERVE + SERVE[SERVE.index("- name") :].replace("qwen2.5-7b-instruct", "other")
    applications = yaml.safe_load(edited(two, {"max_num_seqs": 48}, "other"))["applications"]
    found = [a["args"]["llm_configs"][0]["engine_kwargs"]["max_num_seqs"] for a in applications]
    assert found == [256, 48]


def test_the_command_prints_the_patch(tmp_path: Path) -> None:
    file = tmp_path / "ray.yaml"
    file.write_text(yaml.safe_dump(ray()))
    command = [
        sys.executable,
        "-m",
        "trimtab.cli.main",
        "rewrite",
        "--set",
        "max_num_seqs=48",
        "-o",
        "patch",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [o["op"] for o in json.loads(done.stdout)] == ["test", "replace"]
    refused = subprocess.run([*command[:6], str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 3 and "rewrite -o patch" in refused.stderr
