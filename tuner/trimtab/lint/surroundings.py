"""What the pod gives the engine: environment, secrets, image, resources, shared memory.

Sources: vllm#9113 and #13247 (torch starts a thread for each core of the node); vLLM 0.32 `envs.get_vllm_port` and
`v1/metrics/prometheus.py`; pods seen to die with 64 MiB of /dev/shm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trimtab.engine.flag_table import NEWEST, SECRETS
from trimtab.lint.finding import Hit, Options, Path
from trimtab.lint.target import Target, is_secret, mapping, mappings

_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
_SECRET_ENV: Final = ("VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
#: words in the name of a resource that is an accelerator
_ACCELERATORS: Final = ("gpu", "neuron", "tpu", "gaudi", "npu", "mig-", "rngd", "xpu")


def literal_secret(target: Target, options: Options) -> Iterator[Hit]:
    """Never says the value, nor anything of it."""
    line = target.seen.words if target.seen else ()
    for flag in target.flags:
        if flag.name not in SECRETS and not is_secret(flag):
            continue
        words = [line[p] for p in flag.value_positions]
        literal = [w for w in words if not w.opaque and (not flag.joined or w.text.partition("=")[2])]
        if literal and not flag.opaque:
            yield target.at(
                flag, f"{flag.name} has its value in plain text: whoever reads the manifest or the process list has it."
            )
    for name in _SECRET_ENV:
        index, entry = target.env.get(name, (0, {}))
        value = entry.get("value")
        if isinstance(value, str) and value and "$(" not in value:
            yield Hit(f"{name} has its value in plain text in env.", target.of_container("env", index))


def stale_metrics(target: Target, options: Options) -> Iterator[Hit]:
    """The container's own files go with the container; a volume's stay, and prometheus_client adds up what it finds."""
    if _DIRECTORY not in target.env:
        return
    index, entry = target.env[_DIRECTORY]
    directory = str(entry.get("value") or "").rstrip("/")
    for mount in mappings(target.body.get("volumeMounts")):
        at = str(mount.get("mountPath") or "").rstrip("/")
        if directory and at and (directory == at or directory.startswith(at + "/")):
            lasting = _lasting(target, str(mount.get("name")))
            yield Hit(
                f"{_DIRECTORY} is on the volume {mount.get('name')}, which {lasting}: counters of dead processes are "
                f"added to new ones.",
                target.of_container("env", index),
            )


def _lasting(target: Target, name: str) -> str:
    volume = next((v for v in mappings(target.pod.get("volumes")) if v.get("name") == name), {})
    return "outlives a restart of the container" if "emptyDir" in volume else "outlives the pod and may be shared"


def service_links(target: Target, options: Options) -> Iterator[Hit]:
    """Kubernetes sets VLLM_PORT=tcp://... for a Service named vllm, unless the container sets it itself."""
    place = (target.namespace, "vllm")
    if (
        place in target.neighbours.services
        and target.pod.get("enableServiceLinks") is not False
        and "VLLM_PORT" not in target.env
    ):
        yield Hit("the Service named vllm sets VLLM_PORT to tcp://..., which vLLM reads as its own setting: the "
                  "engine does not start.",
                  target.pod_path)  # fmt: skip


def unbounded_threads(target: Target, options: Options) -> Iterator[Hit]:
    resources = mapping(target.body.get("resources"))
    limit = mapping(resources.get("limits")).get("cpu")
    if limit is None or "OMP_NUM_THREADS" in target.env or _unseen_env(target):
        return
    yield Hit(
        f"a limit of {str(limit)[:20]} CPUs, but OMP_NUM_THREADS is not set: torch starts a thread for each core of "
        f"the node, and they "
        "throttle each other.",
        target.of_container("resources", "limits", "cpu"),
    )


def _unseen_env(target: Target) -> bool:
    """Whether OMP_NUM_THREADS may come from envFrom: a Secret, or a ConfigMap that is not given or has it."""
    for source in mappings(target.body.get("envFrom")):
        place = (target.namespace, str(mapping(source.get("configMapRef")).get("name")))
        config = target.neighbours.config_maps.get(place)
        if config is None or source.get("prefix") or "OMP_NUM_THREADS" in config:
            return True
    return False


def version_unknown(target: Target, options: Options) -> Iterator[Hit]:
    if target.version is None and target.image:
        yield Hit(f"the image does not tell vLLM's version, so flags are judged as of {NEWEST}.",
                  target.of_container("image"))  # fmt: skip


def no_accelerator(target: Target, options: Options) -> Iterator[Hit]:
    resources = mapping(target.body.get("resources"))
    names = [str(n).lower() for part in ("limits", "requests") for n in mapping(resources.get(part))]
    if "cpu" in target.image.lower() or resources.get("claims") or any(a in n for n in names for a in _ACCELERATORS):
        return
    yield Hit(
        "no GPU is asked for: the pod may land where there is none, or share one unseen.", _resources(target, resources)
    )


def no_requests(target: Target, options: Options) -> Iterator[Hit]:
    resources = mapping(target.body.get("resources"))
    asked = {n for part in ("limits", "requests") for n in mapping(resources.get(part))}
    missing = [n for n in ("cpu", "memory") if n not in asked]
    if missing:
        yield Hit(
            f"no request or limit for {' and '.join(missing)}: on a busy node the engine starts slowly, or is the "
            f"first to be evicted.",
            _resources(target, resources),
        )


def _resources(target: Target, resources: Mapping[str, Any]) -> Path:
    return target.of_container("resources") if resources else target.of_container()


def small_shared_memory(target: Target, options: Options) -> Iterator[Hit]:
    """Containers get 64 MiB of /dev/shm; workers of one engine talk through it."""
    workers = (target.integer("--tensor-parallel-size") or 1) * (target.integer("--pipeline-parallel-size") or 1)
    mounted = any(str(m.get("mountPath")).rstrip("/") == "/dev/shm" for m in mappings(target.body.get("volumeMounts")))
    if workers > 1 and not mounted and target.pod.get("hostIPC") is not True:
        yield Hit(
            f"{workers} workers of one engine share memory through /dev/shm, where a container has 64 MiB.",
            target.of_container(),
        )
