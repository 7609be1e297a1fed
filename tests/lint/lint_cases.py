"""Ways into each trap, and ways past it: rule id -> what is done to a Deployment without faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

#: the Deployment of examples/, without faults
HEALTHY: Final = next(yaml.safe_load_all((Path(__file__).resolve().parents[2] / "examples/target.yaml").read_text()))
Manifest = dict[str, Any]
#: changes the Deployment, and returns other objects of the same input
Break = Callable[[Manifest], list[Manifest] | None]


def pod(deployment: Manifest) -> Manifest:
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


def engine(deployment: Manifest) -> Manifest:
    container: Manifest = pod(deployment)["containers"][0]
    return container


def args(*more: Any, without: str = "") -> Break:
    def change(deployment: Manifest) -> None:
        kept = [a for a in engine(deployment)["args"] if not without or not a.startswith(without)]
        engine(deployment)["args"] = [*kept, *more]

    return change


def container(**fields: Any) -> Break:
    """Fields of the engine's container; None removes one."""

    def change(deployment: Manifest) -> None:
        for key, value in fields.items():
            engine(deployment).pop(key, None)
            if value is not None:
                engine(deployment)[key] = value

    return change


def of_pod(**fields: Any) -> Break:
    return lambda deployment: pod(deployment).update(fields)


def of_spec(**fields: Any) -> Break:
    return lambda deployment: deployment["spec"].update(fields)


def of_metadata(**fields: Any) -> Break:
    return lambda deployment: deployment["metadata"].update(fields)


def env(*entries: Manifest) -> Break:
    return lambda deployment: engine(deployment)["env"].extend(entries)


def all_of(*changes: Break) -> Break:
    def change(deployment: Manifest) -> list[Manifest]:
        return [extra for one in changes for extra in one(deployment) or []]

    return change


def beside(*objects: Manifest) -> Break:
    return lambda deployment: list(objects)


def config_file(text: str) -> Break:
    """--config with its file in a ConfigMap."""
    mounted = all_of(
        of_pod(volumes=[{"name": "shm", "emptyDir": {}}, {"name": "c", "configMap": {"name": "settings"}}]),
        lambda d: engine(d)["volumeMounts"].append({"name": "c", "mountPath": "/etc/vllm"}),
        container(command=["vllm", "serve"], args=["org/m", "--config", "/etc/vllm/c.yaml", "--shutdown-timeout=20"]),
    )
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"c.yaml": text}}
    return all_of(mounted, beside(data))


def resources(**parts: Any) -> Break:
    return container(resources=parts)


def multiprocess(volume: Manifest) -> Break:
    return all_of(
        env({"name": "PROMETHEUS_MULTIPROC_DIR", "value": "/metrics/db"}),
        lambda d: pod(d)["volumes"].append({"name": "m", **volume}),
        lambda d: engine(d)["volumeMounts"].append({"name": "m", "mountPath": "/metrics"}),
    )


_OLD = container(image="vllm/vllm-openai:v0.9.1")
_LIVE = {"httpGet": {"path": "/health", "port": "http"}}
_SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm"}, "spec": {}}
_LINKED: Break = lambda deployment: pod(deployment).pop("enableServiceLinks") and None  # noqa: E731
_GENERATION = "--override-generation-config"

TRAPS: Final[Mapping[str, list[Break]]] = {
    "TT001": [container(command=["bash", "-c", 'eval "vllm serve m $MORE"']), container(command=["/scripts/start.sh"])],
    "TT002": [args("--max-num-seqs", 32), args("--seed", True)],
    "TT003": [args("--nnodes=2"), args("--ssl-keyfile=/k")],
    "TT004": [
        of_metadata(ownerReferences=[{"kind": "LLMInferenceService", "name": "a", "controller": True}]),
        of_metadata(annotations={"argocd.argoproj.io/tracking-id": "app:apps/Deployment:x/llama"}),
    ],
    "TT010": [args("--max-num-batched-tokens 8192")],
    "TT011": [args("--enable-chunked-prefill=False"), args("--enforce-eager=true")],
    "TT012": [args("--max-num-s", "32", without="--max-num-seqs")],
    "TT013": [args("--max-number-seqs=32"), args("--made-up")],
    "TT014": [args("--swap-space", "4"), all_of(container(image="own:1"), args("--num-scheduler-steps=8"))],
    "TT015": [args("--max_num_seqs", "32")],
    "TT016": [args("--no-enable-prefix-caching")],
    "TT017": [args(f"{_GENERATION}={{\"temperature\": 0}}", f"{_GENERATION}.top_p", "1")],
    "TT018": [
        container(command=["vllm", "serve", "org/other"]),
        container(command=["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]),
        container(command=["python3", "-m", "vllm.entrypoints.openai.api_server", "org/other"]),
    ],
    "TT019": [_OLD],
    "TT029": [
        args("--enforce-eager", "false"),
        all_of(container(command=["vllm", "serve"]), args("org/m", "--enforce-eager", "True", without="--model")),
        all_of(container(command=["vllm", "serve", "org/m"]), args("--enforce-eager", "x", without="--model")),
    ],
    "TT020": [
        args("--max-num-seqs=32k", without="--max-num-seqs"),
        args("--gpu-memory-utilization=1.2"),
        args("--port", without="--port"),
        args("--port=99999", without="--port"),
        args("--tensor-parallel-size=two"),
        args("--scheduling-policy=random"),
        args(f"{_GENERATION}={{max_new_tokens: 5}}"),
        args("--kv-transfer-config=[]"),
    ],
    "TT021": [args("--max-num-batched-tokens=128")],
    "TT022": [args("--max-num-active-seqs=512")],
    "TT023": [args("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4k")],
    "TT024": [args("--gpu-memory-utilization=0.9", "--kv-cache-memory-bytes=8G")],
    "TT025": [args("--num-gpu-blocks-override=100"), args("--num-gpu-blocks-override=100", "--block-size=32")],
    "TT026": [args(_GENERATION, '{"max_tokens": 512}'), args(f"{_GENERATION}.max_tokens", "512")],
    "TT027": [args(_GENERATION, '{"max_new_tokens": 512}')],
    "TT028": [args("--disable-log-stats")],
    "TT030": [args("--config=/etc/c.yaml")],
    "TT031": [args("--config", "/etc/c.json")],
    "TT032": [config_file("enable-prefix-caching: false"), config_file("enable_prefix_caching: false")],
    "TT040": [args("--port=9000", without="--port")],
    "TT041": [all_of(container(ports=None), container(readinessProbe=None), container(startupProbe=None))],
    "TT042": [
        container(readinessProbe={"httpGet": {"path": "/health", "port": 8080}}),
        container(livenessProbe={"tcpSocket": {"port": "metrics"}}),
    ],
    "TT043": [all_of(container(startupProbe=None), container(livenessProbe={**_LIVE, "initialDelaySeconds": 60}))],
    "TT044": [container(startupProbe={**_LIVE, "failureThreshold": 30})],
    "TT045": [
        container(startupProbe=None),
        all_of(container(startupProbe=None), container(livenessProbe={**_LIVE, "initialDelaySeconds": 900})),
    ],
    "TT046": [container(readinessProbe=None)],
    "TT047": [all_of(
        container(livenessProbe={**_LIVE, "periodSeconds": 5}),
        container(readinessProbe={**_LIVE, "periodSeconds": 5, "failureThreshold": 5}),
    )],
    "TT050": [
        of_pod(terminationGracePeriodSeconds=32),
        args("--shutdown-timeout=60", without="--shutdown-timeout"),
        container(lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "sleep 30"]}}}),
        container(lifecycle={"preStop": {"exec": {"command": ["sleep", "30"]}}}),
        lambda d: pod(d).pop("terminationGracePeriodSeconds") and None,
    ],
    "TT051": [args(without="--shutdown-timeout"), all_of(_OLD, args(without="--shutdown-timeout"))],
    "TT052": [container(lifecycle=None)],
    "TT053": [
        container(lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "while curl -s x; do sleep 5; done"]}}}),
    ],
    "TT054": [of_spec()],
    "TT060": [
        of_spec(strategy={"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}),
        of_spec(strategy={"rollingUpdate": {"maxSurge": 3}}),
        of_spec(replicas=None, strategy={"rollingUpdate": {"maxSurge": "100%"}}),
    ],
    "TT061": [of_spec(strategy={"type": "Recreate"})],
    "TT062": [of_spec(replicas=1)],
    "TT063": [lambda d: d["spec"].pop("replicas") and None],
    "TT070": [
        args("--api-key", "sk-1"),
        args("--api-key=sk-1"),
        args("--apikey=sk-1"),
        env({"name": "VLLM_API_KEY", "value": "sk-1"}),
        all_of(env({"name": "K", "value": "sk-1"}), args("--api-key=$(K)")),
    ],
    "TT071": [multiprocess({"emptyDir": {}}), multiprocess({"persistentVolumeClaim": {"claimName": "c"}})],
    "TT072": [all_of(_LINKED, beside(_SERVICE))],
    "TT073": [resources(limits={"cpu": "4", "memory": "1Gi", "nvidia.com/gpu": "1"})],
    "TT074": [all_of(args("-tp", "4"), container(volumeMounts=None))],
    "TT075": [container(image="vllm/vllm-openai:latest"), container(image="vllm/vllm-openai@sha256:00")],
    "TT076": [resources(requests={"cpu": "4", "memory": "1Gi"})],
    "TT077": [container(resources=None), resources(requests={"cpu": "4"}, limits={"nvidia.com/gpu": 1})],
    "TT090": [of_metadata(annotations={"trimtab.dev/lint-ignore": "TT999"})],
}  # fmt: skip

#: near a trap, and none: rule id -> what is done
SAFE: Final[Mapping[str, list[Break]]] = {
    "TT001": [container(command=["bash", "-c", "echo a"])],
    "TT011": [all_of(container(image="vllm/vllm-openai:v0.8.0"), args("--enable-chunked-prefill=False"))],
    "TT013": [args("--swap-space=4"), args("-O3"), args("-tp=2")],
    "TT014": [all_of(_OLD, args("--swap-space=4"))],
    "TT015": [args("--max_num_seqs=256"), args("--middleware=a.B", "--middleware=c.D")],
    "TT018": [
        all_of(container(command=["vllm", "serve", "org/m"]), args(without="--model")),
        container(command=["python3", "-m", "vllm.entrypoints.openai.api_server", "meta-llama/Llama-3.1-8B-Instruct"]),
    ],
    "TT029": [all_of(container(command=["vllm", "serve", "org/m"]), args("--served-model-name", "a", "b"))],
    "TT020": [
        args("--max-model-len=auto", without="--max-model-len"),
        args("--max-num-batched-tokens=8k"),
        args("--max-model-len=$(LEN)", without="--max-model-len"),
    ],
    "TT025": [args("--num-gpu-blocks-override=512"),
              all_of(container(image="own/vllm-cpu:1"), args("--num-gpu-blocks-override=100"))],
    "TT032": [config_file(text) for text in ("enable-prefix-caching: true", "{", "- a", "max-num-seqs: 0")],
    "TT042": [all_of(
        lambda d: pod(d)["containers"].append({"name": "proxy", "image": "p:1", "ports": [{"containerPort": 9}]}),
        container(readinessProbe={"httpGet": {"path": "/", "port": 9}}),
    )],
    "TT050": [of_pod(terminationGracePeriodSeconds=33)],
    "TT054": [container(lifecycle={"preStop": {"httpGet": {"path": "/drain", "port": "http"}}})],
    "TT060": [of_spec(strategy={"rollingUpdate": {"maxSurge": "25%"}})],
    "TT061": [of_spec(strategy={"type": "Recreate"}, replicas=1)],
    "TT070": [
        all_of(env({"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}), args("--api-key=$(K)")),
        env({"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
    ],
    "TT071": [env({"name": "PROMETHEUS_MULTIPROC_DIR", "value": "/tmp/metrics"})],
    "TT072": [
        beside(_SERVICE),
        all_of(_LINKED, env({"name": "VLLM_PORT", "value": "1"}), beside(_SERVICE)),
        all_of(_LINKED, beside({**_SERVICE, "metadata": {"name": "vllm", "namespace": "other"}})),
    ],
    "TT073": [all_of(
        resources(limits={"cpu": "4", "memory": "1Gi", "nvidia.com/gpu": "1"}),
        env({"name": "OMP_NUM_THREADS", "value": "4"}),
    )],
    "TT074": [args("-tp", "4")],
    "TT076": [resources(claims=[{"name": "gpu"}]), container(resources=None, image="own/vllm-cpu:1")],
}  # fmt: skip
