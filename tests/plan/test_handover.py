"""The forms of a change, applied by the real tools: what comes out is what Trimtab would have written."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.engine.rewrite import rewrite
from trimtab.plan.handover import MOST_FORM, Handover, handover

Json = dict[str, Any]
Tool = Callable[..., str]
CHANGES = {"max_num_seqs": 48, "enable_prefix_caching": True}
IMAGE = "vllm/vllm-openai:v0.11.0"
SCRIPT = "set -e\necho 'ready: $HOME'\nexec vllm serve m \\\n  --max-num-seqs 4 \\\n  --port 8000\n"
SHAPES: dict[str, Json] = {
    "args": {"image": IMAGE, "args": ["--model", "m", "--max-num-seqs", "4", "--no-enable-prefix-caching"]},
    "serve": {"image": IMAGE, "command": ["vllm", "serve", "m", "--port", "80"]},
    "module": {
        "image": IMAGE,
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--model=m"],
    },
    "script": {"image": IMAGE, "command": ["/bin/bash", "-c"], "args": [SCRIPT]},
    "quotes": {"image": IMAGE, "args": ["--model", 'it\'s: {"a": 1} # \u00fc', "--max_num_seqs=4"]},
    "variable": {
        "image": IMAGE,
        "command": ["sh", "-c", "vllm serve m $MORE"],
        "env": [{"name": "A", "value": "b"}, {"name": "MORE", "value": "--max-num-seqs 4"}],
    },
}


def deployment(container: Json, **meta: Any) -> Json:
    sidecar = {"name": "proxy", "image": "proxy:1", "args": ["--verbose"]}
    template = {
        "metadata": {"labels": {"app": "llm"}},
        "spec": {"containers": [sidecar, {"name": "vllm", **container}]},
    }
    selector = {"matchLabels": {"app": "llm"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm", "namespace": "ml", **meta},
        "spec": {"replicas": 2, "selector": selector, "template": template},
    }


def changed(source: Json, changes: dict[str, Any] | None = None) -> Json:
    wanted = copy.deepcopy(source)
    wanted["spec"]["template"] = rewrite(source["spec"]["template"], changes or CHANGES, "vllm", version="0.11.0")
    return wanted


def forms(source: Json, changes: dict[str, Any] | None = None) -> Handover:
    after = changed(source, changes)["spec"]["template"]
    found = handover(source, source["spec"]["template"], after, changes or CHANGES)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def tools() -> Callable[[str], Tool]:
    """kubectl and helm, from PATH or hack/cluster/build.sh; nothing of the user's own is read."""
    cache = Path(os.environ.get("TRIMTAB_CACHE") or Path.home() / ".cache" / "trimtab") / "cluster" / "bin"

    def find(name: str) -> Tool:
        binary = shutil.which(name) or (str(cache / name) if (cache / name).exists() else None)
        if binary is None:
            pytest.skip(f"no {name}: install it or run hack/cluster/build.sh")

        def run(*arguments: str) -> str:
            env = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "HELM"))}
            done = subprocess.run(
                [binary, *arguments], capture_output=True, text=True, timeout=60, env={**env, "KUBECONFIG": "/dev/null"}
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return run

    return find


@pytest.mark.parametrize("shape", SHAPES)
def test_kubectl_makes_of_each_form_what_trimtab_would_write(
    tools: Callable[[str], Tool], tmp_path: Path, shape: str
) -> None:
    source, kubectl = deployment(SHAPES[shape]), tools("kubectl")
    found, wanted = forms(source), changed(source)
    base = tmp_path / "deployment.yaml"
    base.write_text(yaml.safe_dump(source))
    for name, kind in (("patch.json", "json"), ("patch.yaml", "strategic")):
        (tmp_path / name).write_text(found.files()[name])
        local = ("patch", "--local", "-f", str(base), f"--type={kind}", f"--patch-file={tmp_path / name}", "-o", "json")
        assert json.loads(kubectl(*local))["spec"]["template"]["spec"] == wanted["spec"]["template"]["spec"], name
    lines = yaml.safe_load(found.kustomize)
    (tmp_path / "kustomization.yaml").write_text(found.kustomize + "resources: [deployment.yaml]\n")
    assert set(lines) == {"patches"}
    assert yaml.safe_load(kubectl("kustomize", str(tmp_path))) == wanted


def test_a_patch_refuses_a_deployment_that_someone_else_changed_meanwhile(
    tools: Callable[[str], Tool], tmp_path: Path
) -> None:
    source = deployment(SHAPES["args"])
    (tmp_path / "kustomization.yaml").write_text(forms(source).kustomize + "resources: [deployment.yaml]\n")
    source["spec"]["template"]["spec"]["containers"][1]["args"][3] = "8"
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(source))
    with pytest.raises(AssertionError, match="test"):
        tools("kubectl")("kustomize", str(tmp_path))


CHART = "apiVersion: v2\nname: llm\nversion: 1.0.0\n"
HELM = {"meta.helm.sh/release-name": "llm"}


def test_helm_renders_the_generic_values(tools: Callable[[str], Tool], tmp_path: Path) -> None:
    source = deployment(SHAPES["args"], annotations=HELM)
    found = forms(source)
    assert found.owner == "Helm (llm)" and "values" in found.advice
    body = copy.deepcopy(source)
    body["spec"]["template"]["spec"]["containers"][1]["args"] = "ARGS"
    text = yaml.safe_dump(body).replace("ARGS", "{{- .Values.args | toYaml | nindent 10 }}")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text(CHART)
    (tmp_path / "templates" / "d.yaml").write_text(text)
    (tmp_path / "values.yaml").write_text("args: [--model, m]\n")
    (tmp_path / "new.yaml").write_text(found.helm_values)
    rendered = yaml.safe_load(tools("helm")("template", "llm", str(tmp_path), "-f", str(tmp_path / "new.yaml")))
    assert rendered["spec"]["template"] == changed(source)["spec"]["template"]


#: as the production-stack chart builds its command from modelSpec[].vllmConfig
STACK = """
{{- range .Values.servingEngineSpec.modelSpec }}
metadata: {name: "{{ $.Release.Name }}-{{ .name }}-deployment-vllm"}
command:
- vllm
- serve
- m
{{- with .vllmConfig }}
- {{ if .enablePrefixCaching }}--enable-prefix-caching{{ else }}--no-enable-prefix-caching{{ end }}
{{- if hasKey . "maxNumSeqs" }}
- --max-num-seqs
- {{ .maxNumSeqs | quote }}
{{- end }}
{{- end }}
{{- end }}
"""


def stack(*more: str) -> Json:
    command = ["vllm", "serve", "m", "--no-enable-prefix-caching", "--max-num-seqs", "4", *more]
    made = deployment({"image": IMAGE, "command": command}, annotations=HELM)
    made["metadata"] |= {"name": "rel-llama-deployment-vllm", "labels": {"model": "llama", "helm-release-name": "rel"}}
    return made


def test_helm_renders_values_of_the_production_stack(tools: Callable[[str], Tool], tmp_path: Path) -> None:
    source = stack()
    found = forms(source)
    assert "vllmConfig" in found.helm_values
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text(CHART)
    (tmp_path / "templates" / "d.yaml").write_text(STACK)
    (tmp_path / "new.yaml").write_text(found.helm_values)
    rendered = yaml.safe_load(tools("helm")("template", "rel", str(tmp_path), "-f", str(tmp_path / "new.yaml")))
    assert rendered["metadata"]["name"] == source["metadata"]["name"]
    assert rendered["command"] == changed(source)["spec"]["template"]["spec"]["containers"][1]["command"]


def test_a_value_that_would_not_decide_is_not_offered() -> None:
    """A flag in extraArgs stands behind the value's own and wins; some settings have no value."""
    assert "vllmConfig" not in forms(stack("--max-num-seqs=8")).helm_values
    assert "vllmConfig" not in forms(stack(), {"max_num_batched_tokens": 4096}).helm_values


@pytest.mark.parametrize(("meta", "owner"), [
    ({}, ""),
    ({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}, "Flux (apps)"),
    ({"annotations": {"argocd.argoproj.io/tracking-id": "llm:apps/Deployment:ml/llm"}}, "Argo CD (llm)"),
])  # fmt: skip
def test_the_owner_is_named_and_told_where_the_change_belongs(meta: Json, owner: str) -> None:
    found = forms(deployment(SHAPES["args"], **meta))
    assert found.owner == owner and found.advice
    assert ("values.yaml" in found.files()) == bool(owner)


def test_an_api_key_is_in_no_form() -> None:
    plain = forms(deployment({"image": IMAGE, "args": ["--model=m", "--api-key", "sk-secret", "--max-num-seqs=4"]}))
    assert "patch.yaml" not in plain.files() and "kustomization.yaml" in plain.files()
    script = forms(deployment({"image": IMAGE, "command": ["sh", "-c", "vllm serve m --api-key sk-secret"]}))
    assert script.files() == {}
    assert "sk-secret" not in repr((plain, script))


def test_a_form_without_end_is_left_out() -> None:
    container = {"image": IMAGE, "args": ["--model=m", "--chat-template=" + "x" * MOST_FORM, "--max-num-seqs=4"]}
    assert set(forms(deployment(container)).files()) == {"patch.json", "kustomization.yaml"}


def test_what_is_more_than_a_command_line_is_handed_over_in_no_form() -> None:
    source = deployment(SHAPES["args"])
    template = source["spec"]["template"]
    other = copy.deepcopy(template)
    other["spec"]["volumes"] = [{"name": "x"}]
    assert handover(source, template, other, {}) is None and handover(source, template, template, {}) is None


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J", "x\n- op: remove\n  path: /spec\n", "{{ .Release.Name }}", "' ; reboot #", "\u202e"]
)
def test_hostile_arguments_stay_data(tools: Callable[[str], Tool], tmp_path: Path, hostile: str) -> None:
    source = deployment({"image": IMAGE, "args": ["--model=m", f"--served-model-name={hostile}", "--max-num-seqs=4"]})
    found, wanted = forms(source), changed(source)
    assert "\x1b" not in repr(found.files()).replace("\\x1b", "") and all(
        "\x1b" not in t for t in found.files().values()
    )
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(source))
    (tmp_path / "kustomization.yaml").write_text(found.kustomize + "resources: [deployment.yaml]\n")
    assert yaml.safe_load(tools("kubectl")("kustomize", str(tmp_path))) == wanted
