"""A place to run the pages' commands in: files, a real API server with a stand-in kubelet, endpoints, programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from commands import ROOT, Command, Run
from reading import blocks

from cluster_fixtures import cluster_bin
from control_plane import ApiError, ControlPlane, free_ports, object_path
from simulated_worlds import profile, write_engine_log
from stand_in_prometheus import StandInPrometheus
from trimtab.judge.verdict import Kind
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.profile import save_profile
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

Json = dict[str, Any]
API = "trimtab.dev/v1alpha1"
#: seconds that a command may take
MOST_SECONDS, MOST_SOAK_SECONDS = 300.0, 1800.0
_METRICS = ROOT / "tests/observe/data/vllm-0.20.0-v1.txt"
_SWITCH = "trimtab-kill-switch"
_CHART = "apiVersion: v2\nname: {}\nversion: 1.0.0\n"


@dataclass
class World:
    """folder: where commands run. values: what placeholders of the table stand for."""

    folder: Path
    values: dict[str, str]
    env: dict[str, str]
    kept: list[str] = field(default_factory=list)
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, command: Command, way: Run) -> tuple[int, str]:
        """Exit code and everything it printed. 0 where it was ended because it goes on by itself."""
        text = self.swapped(command.text, way)
        script = "\n".join(["set -euo pipefail", *self.kept, text])
        if way.keep:
            self.kept.append(text)
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        if way.server:
            self.servers.append(process)
            return 0, ""
        if way.seconds:
            return 0, until_said(process, way.says, way.seconds)
        try:
            most = MOST_SOAK_SECONDS if way.soak else MOST_SECONDS
            said, _ = process.communicate(timeout=most)
        except subprocess.TimeoutExpired:
            end(process)
            return -1, f"not done in {most:.0f} s"
        return process.returncode, said

    def swapped(self, text: str, way: Run) -> str:
        for old, new in way.swap.items():
            assert old in text, f"{old!r} is not in {text!r}"
            text = text.replace(old, self.values.get(new, new))
        return f"{text} {way.more}".strip()


def until_said(process: subprocess.Popen[str], words: str, seconds: float) -> str:
    """What a command that goes on by itself has printed when it is ended: once it said `words`, or after so long."""
    assert process.stdout is not None
    said: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        said.extend(iter(lambda: process.stdout.read(1), ""))  # type: ignore[union-attr]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    latest = time.monotonic() + seconds
    while words not in "".join(said) and time.monotonic() < latest and process.poll() is None:
        time.sleep(0.1)
    end(process)
    reader.join(5)
    return "".join(said)


def end(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does, then for good."""
    for number, seconds in ((signal.SIGINT, 20), (signal.SIGKILL, 5)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    with suppress(ProcessLookupError):  # what it started may have stayed
        os.killpg(process.pid, signal.SIGKILL)


# --- files ------------------------------------------------------------------------------------------------------------
def fill(folder: Path) -> None:
    """What the pages' commands name: manifests, reports, profiles, logs, charts, and links into the tree."""
    for name in ("benchmarks", "charts", "examples", "tuner", "docs", "operator"):
        (folder / name).symlink_to(ROOT / name)
    target = (ROOT / "examples/target.yaml").read_text()
    deployment = target.split("\n---\n")[0]
    for name in ("deploy/target.yaml", "deployment.yaml", "all.yaml", "engines/a.yaml", "engines/b.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(target if name in ("deploy/target.yaml", "all.yaml") else deployment)
    (folder / "tuner.yaml").write_text(next(b for b in blocks((ROOT / "README.md").read_text(), "yaml") if "VLLM" in b))
    (folder / "report.json").write_text(blocks((ROOT / "docs/diagnose.md").read_text(), "json")[0])
    policy = next(b for b in blocks((ROOT / "docs/middleware.md").read_text(), "json") if '"tokens"' in b)
    (folder / "policy.json").write_text(policy)
    for name in ("target.json", "profile.json"):
        save_profile(profile("slots"), folder / name)
    (folder / "tune.json").write_text(json.dumps(_finished_run()))
    _model(folder)
    _charts(folder, deployment)
    _requests(folder / "requests.jsonl")
    (folder / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.9,396,109\n"
    )


def _finished_run() -> Json:
    """What `trimtab tune --json` leaves."""
    sys.path.insert(0, str(ROOT / "tests/report"))
    from report_files import result, trial, verdict

    found: Json = result(trial(found=verdict(Kind.BETTER, 1.2)))
    return found


def _model(folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "bfloat16",
        "vocab_size": 128256, "intermediate_size": 14336, "max_position_embeddings": 131072,
    }  # fmt: skip
    (folder / "model").mkdir()
    for name in ("config.json", "model/config.json"):
        (folder / name).write_text(json.dumps(config))


def _charts(folder: Path, deployment: str) -> None:
    for name in ("chart", "my-chart"):
        (folder / name / "templates").mkdir(parents=True)
        (folder / name / "Chart.yaml").write_text(_CHART.format(name))
        (folder / name / "templates/deployment.yaml").write_text(deployment)


def _requests(path: Path) -> None:
    """A request log as an engine writes it, of a simulated run."""
    arrivals = [i * 0.2 for i in range(600)]
    tokens = [100 + 40 * (i % 7) for i in range(600)]
    times = StepTimes(0.012, 4e-5, 1e-10, 4e-5, 8e-8, per_prefill_step=0.005)
    run = simulate(Workload.of(arrivals, tokens, tokens), EngineConfig(2588, max_num_seqs=256), times)
    write_engine_log(path, run)


def programs(folder: Path) -> str:
    """A PATH on which `trimtab`, its kubectl plugin and `python` are this tree's, and vllm is the emulator."""
    scripts = {
        "trimtab": f'exec {sys.executable} -m trimtab.cli.main "$@"',
        "kubectl-trimtab": f'exec {sys.executable} -m trimtab_operator.plugin "$@"',
        "python": f'exec {sys.executable} "$@"',
        "vllm": f'exec {sys.executable} -m trimtab.cli.main emulate "$@"',
    }
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), str(cluster_bin()), os.environ["PATH"]])


# --- the cluster ------------------------------------------------------------------------------------------------------
def recommended(deployment: Json) -> Json:
    """A status as the operator writes it in mode Recommend."""
    finding = {
        "name": "KvBound", "severity": "Warning", "confidence": 0.9, "message": "requests wait, the KV cache is full",
        "advice": "fewer sequences", "avoid": "", "tunable": True, "role": "main", "evidence": {"waiting": 12.0},
    }  # fmt: skip
    advice = {
        "configuration": {"maxNumSeqs": 64}, "message": "Set max_num_seqs 256 -> 64.", "snippet": "args:\n",
        "patch": f"kubectl patch deployment {deployment['metadata']['name']} --type=json -p '[]'",
        "owner": "Helm (llama)", "advice": "Put it into the values.", "forms": {"helmValues": "args: []\n"},
    }  # fmt: skip
    return {"phase": "Recommended", "finding": "KvBound", "findings": [finding], "recommendation": advice}


def populate(plane: ControlPlane, namespace: str) -> None:
    """A target, a tuner that recommends, a second one, and two trials: one kept, one that waits."""

    def create(kind: str, body: Json, where: str = namespace) -> Json:
        return plane.request("POST", object_path(kind, where), body)

    deployment = yaml.safe_load((ROOT / "examples/target.yaml").read_text().split("\n---\n")[0])
    deployment["metadata"]["annotations"] = {"trimtab.dev/trial": "llama-2"}
    made = create("Deployment", deployment)
    for name in ("llama", "llm"):
        spec = {"targetRef": {"name": "llama"}, "mode": "Recommend", "metrics": {"direct": {}}}
        tuner = create("VLLMTuner", {"apiVersion": API, "kind": "VLLMTuner", "metadata": {"name": name}, "spec": spec})
        path = object_path("VLLMTuner", namespace, name) + "/status"
        plane.request("PUT", path, {**tuner, "status": recommended(deployment)})
    template, strategy = made["spec"]["template"], made["spec"]["strategy"]
    for number, phase in ((1, "Promoted"), (2, "AwaitingApproval")):
        baseline = {
            "deploymentUid": made["metadata"]["uid"], "templateJson": json.dumps(template),
            "candidateTemplateJson": json.dumps(template), "strategyJson": json.dumps(strategy), "minReadySeconds": 7,
        }  # fmt: skip
        trial = {
            "tunerName": "llama", "number": number, "configuration": {"maxNumSeqs": 64}, "baseline": baseline,
            "baselineConfiguration": {"maxNumSeqs": 256}, "approvalRequired": number == 2,
        }  # fmt: skip
        kind = {"apiVersion": API, "kind": "TuningTrial", "metadata": {"name": f"llama-{number}"}, "spec": trial}
        made_trial = create("TuningTrial", kind)
        path = object_path("TuningTrial", namespace, f"llama-{number}") + "/status"
        plane.request("PUT", path, {**made_trial, "status": {"phase": phase, "settings": "max_num_seqs=64"}})
    with suppress(ApiError):  # there since the page before
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "trimtab-system"}})


@contextmanager
def world(plane: ControlPlane | None, folder: Path, *, installed: bool = False) -> Iterator[World]:
    """A folder and a namespace of their own for one page; what was started and installed is gone afterwards.

    installed: the operator's kill switch is there, as after `helm install`.
    """
    place = folder / "page"
    place.mkdir()
    fill(place)
    ports = free_ports(2)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "HELM", "TRIMTAB_DATA"))}
    env |= {
        "PATH": programs(folder / "bin"),
        "NO_COLOR": "1",
        "COLUMNS": "160",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    env |= {f"HELM_{k}_HOME": str(folder / k.lower()) for k in ("CACHE", "CONFIG", "DATA")}
    env |= {"KUBECONFIG": str(folder / "none"), "TRIMTAB_STORAGE_URL": "", "KUBECACHEDIR": str(folder / "kubecache")}
    values = {"$port": str(ports[0]), "$other": str(ports[1]), "$sqlite": f"sqlite:///{place}/sweep.db"}
    with Prometheus() as prometheus, _metrics() as metrics:
        values |= {"$prometheus": prometheus.url, "$metrics": metrics}
        if plane is not None:
            namespace = plane.namespace("docs")
            populate(plane, namespace)
            env["KUBECONFIG"] = str(_kubeconfig(plane, folder, namespace))
            values["$namespace"] = namespace
            if installed:
                plane.request("POST", object_path("ConfigMap", "trimtab-system"), {"metadata": {"name": _SWITCH}})
        made = World(place, values, env)
        try:
            yield made
        finally:
            for process in made.servers:
                end(process)
            if plane is not None:
                quiet(["helm", "uninstall", "trimtab", "-n", "trimtab-system", "--no-hooks", "--ignore-not-found"], env)
                plane.request("DELETE", f"/api/v1/namespaces/{values['$namespace']}")
                if installed:
                    plane.request("DELETE", object_path("ConfigMap", "trimtab-system", _SWITCH))


def quiet(command: Sequence[str], env: dict[str, str]) -> None:
    program = shutil.which(command[0], path=env["PATH"])
    if program is not None:
        subprocess.run([program, *command[1:]], env=env, capture_output=True, timeout=60, check=False)


def _kubeconfig(plane: ControlPlane, folder: Path, namespace: str) -> Path:
    known = json.loads(plane.kubeconfig.read_text())
    known["contexts"][0]["context"]["namespace"] = namespace
    path = folder / "kubeconfig"
    path.write_text(json.dumps(known))
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


class Prometheus(StandInPrometheus):
    """Knows two pods, and finds them by whatever selector."""

    def __init__(self) -> None:
        super().__init__(lambda namespace, pod: 1.0)

    def answer(self, path: str) -> Any:
        if parse_qs(urlsplit(path).query).get("query", [""])[0].startswith("group by"):
            pods = [{"metric": {"namespace": "prod", "pod": f"llm-{i}"}, "value": [time.time(), "1"]} for i in (0, 1)]
            return {"status": "success", "data": {"resultType": "vector", "result": pods}}
        return super().answer(path)


@contextmanager
def _metrics() -> Iterator[str]:
    """The /metrics of an engine of vLLM 0.20."""
    sys.path.insert(0, str(ROOT / "tests/observe"))
    from metric_servers import MetricsServer

    server = MetricsServer(_METRICS.read_text())
    try:
        yield f"http://127.0.0.1:{server.port}/metrics"
    finally:
        server.close()
