"""Manifests for the cluster tests and the demo's kin: an emulated vLLM target, its Services, a load, a tuner. Plain
dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
IMAGE = "localhost/trimtab:dev"
PROMETHEUS = "http://prometheus.monitoring.svc.cluster.local:9090"


def target(
    name: str = "llm",
    replicas: int = 3,
    args: Sequence[str] = ("--max-num-seqs=128", "--no-enable-prefix-caching"),
    env: Mapping[str, str] | None = None,
    start_seconds: float = 2.0,
    labels: Mapping[str, str] | None = None,
    strategy: Json | None = None,
) -> list[Json]:
    """Deployment and Service of an emulated vLLM. The command is `vllm serve`, as in a real manifest; only the image
    is not.
    """
    variables = {"EMULATE_START_SECONDS": f"{start_seconds:g}", **(env or {})}
    container: Json = {
        "name": "vllm",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/opt/emulate/bin/vllm", "serve", "tiny"],
        "args": [
            "--port=8000",
            "--max-model-len=2048",
            "--num-gpu-blocks-override=300",
            "--shutdown-timeout=20",
            *args,
        ],
        "env": [{"name": k, "value": v} for k, v in variables.items()],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}},
    }
    template: Json = {
        "metadata": {
            "labels": {"app": name},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"},
        },
        "spec": {"terminationGracePeriodSeconds": 30, "enableServiceLinks": False, "containers": [container]},
    }
    deployment: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
    if strategy is not None:
        deployment["spec"]["strategy"] = strategy
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }
    return [deployment, service]


def load(name: str, target_name: str, args: Sequence[str]) -> Json:
    """A pod that sends load to the target's Service and prints one JSON record per request."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {
                    "name": "load",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "args": ["load", f"http://{target_name}", "--natural-lengths=emulated", "--records=-", *args],
                    "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}},
                }
            ],
        },
    }


def tuner(name: str = "llm", target_name: str = "llm", mode: str = "Auto", **sections: Json) -> Json:
    """A VLLMTuner with times short enough for a test; `sections` are merged over the spec's."""
    spec: Json = {
        "targetRef": {"name": target_name},
        "mode": mode,
        "metrics": {"prometheus": {"url": PROMETHEUS}},
        "objective": {"slo": {"ttftSeconds": 2.0, "tpotSeconds": 0.2}},
        "search": {"maxNumSeqs": {"min": 4, "max": 128}, "maxTrials": 6},
        "rollout": {
            "maxSurge": 0,  # the loads are for the pods of the target
            "warmupSeconds": 8,
            "measurementSeconds": 36,
            "confirmationSeconds": 18,
            "maxMeasurementSeconds": 60,
            "verificationSeconds": 8,
            "progressDeadlineSeconds": 90,
            "cooldownSeconds": 2,
            "maxRestartsPerDay": 200,
        },
        "guardrails": {"windowSeconds": 20, "maxMetricsGapSeconds": 30},
        "preconditions": {"stableSeconds": 15, "minRequestsPerSecond": 0.2},
    }
    for key, value in sections.items():
        spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": name}, "spec": spec}
