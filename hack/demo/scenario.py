"""What the demo applies: target (an emulated vLLM, badly set), load, VLLMTuner. The numbers: `trimtab.tune.demo`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trimtab.tune.demo import DEMO, DemoScenario, engine_args, engine_env, load_args, spec_dict

Json = dict[str, Any]
NAMESPACE = "trimtab-demo"
REPLICAS = 3
NAME = "llm"
#: the load ends by itself even if everybody forgets it
LOAD_SECONDS = 1800
#: in the cluster there is time for more trials than in `make try`
SCENARIO: DemoScenario = replace(DEMO, start_seconds=3.0, max_trials=5)
PROMETHEUS = "http://prometheus.monitoring.svc.cluster.local:9090"


def target(image: str) -> list[Json]:
    """A Deployment as people write them, except for the image; settings that lose no request when a pod ends."""
    model, *flags = engine_args(SCENARIO)
    container: Json = {
        "name": "vllm",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/emulate/bin/vllm", "serve", model],
        "args": ["--port=8000", "--shutdown-timeout=20", *flags],
        "env": [{"name": k, "value": v} for k, v in engine_env(SCENARIO).items()],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": {"requests": {"cpu": "100m", "memory": "96Mi"}},
    }
    labels = {"app": NAME}
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"}
    pod: Json = {"enableServiceLinks": False, "terminationGracePeriodSeconds": 35, "containers": [container]}
    deployment: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }
    return [deployment, service]


def load(image: str) -> Json:
    """Users: they send prompts, read streams, leave mid-stream, and give up when no first token comes."""
    args = [
        "load",
        f"http://{NAME}",
        "--natural-lengths=emulated",
        "--records=-",
        *load_args(REPLICAS, LOAD_SECONDS, SCENARIO),
    ]
    container: Json = {
        "name": "load",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "resources": {"requests": {"cpu": "100m", "memory": "96Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "load", "labels": {"app": "load"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container]},
    }


def tuner(*, prometheus: bool) -> Json:
    """Metrics from Prometheus where there is one, else scraped from the pods by the operator."""
    spec = spec_dict(NAME, SCENARIO, {"prometheus": {"url": PROMETHEUS}} if prometheus else None)
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": NAME}, "spec": spec}
