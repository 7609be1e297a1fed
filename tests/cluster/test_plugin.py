"""`kubectl trimtab` against a real API server, through a real kubectl; without operator and pods. What it writes is
read back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_fixtures import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("crds")]

Json = dict[str, Any]
Plugin = Callable[..., subprocess.CompletedProcess[str]]
API = "trimtab.dev/v1alpha1"


def template(max_num_seqs: int) -> Json:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": [f"--max-num-seqs={max_num_seqs}"]}
    return {"metadata": {"labels": {"app": "llama"}}, "spec": {"containers": [container]}}


@pytest.fixture(name="plugin", scope="module")
def the_plugin(kubectl: Kubectl, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """Called by kubectl itself, as people do."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "kubectl-trimtab"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m trimtab_operator.plugin "$@"\n')
    script.chmod(0o755)
    places = [str(folder), str(Path(kubectl.program).parent), os.environ["PATH"]]
    env = {**os.environ, "PATH": os.pathsep.join(places), "KUBECONFIG": str(kubeconfig)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [kubectl.program, "trimtab", *words, "-n", kubectl.namespace]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)

    return run


@pytest.fixture(name="target", scope="module")
def a_target_with_a_kept_trial_and_one_that_waits(kubectl: Kubectl) -> Json:
    """As the operator leaves them; the Deployment without pods."""
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "llama"}}, "template": template(32)}
    kubectl("create", "-f", "-", stdin={"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llama"},
                                        "spec": {**spec, "template": template(256)}})  # fmt: skip
    before = kubectl.json("get", "deployment", "llama")
    changed = {"spec": {"template": template(32)}}
    kubectl("patch", "deployment", "llama", "--type=merge", "-p", json.dumps(changed))
    after = kubectl.json("get", "deployment", "llama")
    kubectl("create", "-f", "-", stdin={"apiVersion": API, "kind": "VLLMTuner", "metadata": {"name": "llama"}, "spec": {
        "targetRef": {"name": "llama"}, "mode": "Approve", "metrics": {"direct": {}}}})  # fmt: skip
    for number, phase in ((1, "Promoted"), (2, "AwaitingApproval")):
        baseline = {"deploymentUid": after["metadata"]["uid"], "templateJson": json.dumps(before["spec"]["template"]),
                    "candidateTemplateJson": json.dumps(after["spec"]["template"])}  # fmt: skip
        name = f"llama-{number}"
        made = {"tunerName": "llama", "number": number, "configuration": {"maxNumSeqs": 32}, "baseline": baseline,
                "baselineConfiguration": {"maxNumSeqs": 256}, "approvalRequired": number == 2}  # fmt: skip
        trial = {"apiVersion": API, "kind": "TuningTrial", "metadata": {"name": name}, "spec": made}
        kubectl("create", "-f", "-", stdin=trial)
        write_status(kubectl, name, {"phase": phase, "settings": "max_num_seqs=32"})
    return before


def write_status(kubectl: Kubectl, trial: str, status: Json) -> None:
    kubectl("patch", "tt", trial, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def test_a_persons_way_from_status_to_rollback(plugin: Plugin, kubectl: Kubectl, target: Json) -> None:
    tree = plugin("status", "llama")
    assert tree.returncode == 0, tree.stderr
    assert "AwaitingApproval" in tree.stdout and "Deployment llama  0/0 ready" in tree.stdout
    assert f"kubectl trimtab approve llama-2 -n {kubectl.namespace}" in tree.stdout

    approved = plugin("approve", "llama")
    assert approved.returncode == 0 and "llama-2 (max_num_seqs=32)" in approved.stdout, approved.stderr
    notes = kubectl.json("get", "tt", "llama-2")["metadata"]["annotations"]
    assert notes["trimtab.dev/approve"] == "true"

    write_status(kubectl, "llama-2", {"phase": "Measuring"})
    again = plugin("reject", "llama")
    assert again.returncode == 1 and "llama-2 is Measuring" in again.stderr

    write_status(kubectl, "llama-2", {"phase": "RolledBack"})
    back = plugin("rollback", "llama", "--yes")
    assert back.returncode == 0 and "maxNumSeqs 32 -> 256" in back.stdout, back.stderr
    found = kubectl.json("get", "deployment", "llama")
    assert found["spec"]["template"] == target["spec"]["template"]
    assert kubectl.json("get", "vt", "llama")["spec"]["suspend"] is True

    once_more = plugin("rollback", "llama", "--yes")
    assert once_more.returncode == 1 and "was changed after llama-1" in once_more.stderr
    assert plugin("resume", "llama").returncode == 0
    assert kubectl.json("get", "vt", "llama")["spec"]["suspend"] is False


def test_what_is_wrong_ends_with_words_and_a_code(plugin: Plugin, target: Json) -> None:
    unknown = plugin("pause", "mistral")
    assert unknown.returncode == 2 and "VLLMTuners: llama." in unknown.stderr and unknown.stdout == ""
    checked = plugin("doctor", "llama", "-o", "json")
    found = {(c["about"], c["check"]): c for c in json.loads(checked.stdout)}
    assert checked.returncode == 1 and found["cluster", "CRD"]["state"] == "ok", checked.stdout
    (seen,) = [c for (about, check), c in found.items() if check == "seen"]
    assert seen["state"] == "fail" and "operator" in seen["message"]
