"""The /metrics text of an old vLLM that cannot be run here: its own metrics classes, fed with a made-up run.

    python hack/engine/metric_shapes.py VERSION FOLDER [v1] > tests/observe/data/VERSION.txt

FOLDER holds `vllm/` of that version's source package. Only its metrics modules are executed; every other module they
import is a stand-in. Names, labels, buckets and help texts are thus vLLM's; the values are those of `REQUESTS` below.
The text of the HTTP server (http_requests_total) is not in it. Needs prometheus_client and numpy. v0 works for 0.6 and
0.7, v1 from 0.8 on.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

#: prompt tokens, output tokens, max_tokens, how it ended
REQUESTS = ((100, 20, 32, "stop"), (300, 64, 64, "length"), (50, 5, 16, "stop"))
CACHE = {"block_size": "16", "enable_prefix_caching": "True", "gpu_memory_utilization": "0.9"}


class _FinishReason(Enum):
    stop = 0
    length = 1
    abort = 2

    def __str__(self) -> str:
        return self.name


class _StandIns(MetaPathFinder, Loader):
    """Modules of vllm, ray and torch that are not put in place: any attribute is a mock, any submodule exists."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("vllm", "ray", "torch") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module: ModuleType) -> None:
        named: Any = module
        named.VLLM_COMPUTE_NANS_IN_LOGITS = False
        if named.__spec__.name == "vllm.v1.engine":
            named.FinishReason = _FinishReason


def _module(root: Path, name: str) -> Any:
    """A real module, executed from the folder and put in place for those that import it."""
    spec = importlib.util.spec_from_file_location(name, root / f"{name.replace('.', '/')}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Nothing(int):
    """0, empty, and whatever is asked of it: what a later version records and is not made up here."""

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __call__(self, *args: object, **kwargs: object) -> _Nothing:
        return _Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Record(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        return None if name == "spec_decoding_stats" else _Nothing()


def _config() -> Any:
    config = MagicMock()
    config.model_config.max_model_len, config.model_config.served_model_name = 4096, "m"
    config.model_config.enforce_eager, config.lora_config, config.speculative_config = True, None, None
    config.observability_config = SimpleNamespace(show_hidden_metrics=False, kv_cache_metrics=False)
    config.custom_histogram_buckets = config.observability_config.custom_histogram_buckets = None
    config.cache_config.metrics_info = lambda: {**CACHE, "num_gpu_blocks": "None"}  # as long as no engine has begun
    return config


def _v0(root: Path) -> None:
    types, metrics = (_module(root, name) for name in ("vllm.engine.metrics_types", "vllm.engine.metrics"))
    names = metrics.PrometheusStatLogger.__init__.__annotations__
    own = {"max_model_len": 4096} if "max_model_len" in names else {"vllm_config": _config()}
    logger = metrics.PrometheusStatLogger(local_interval=0, labels={"model_name": "m"}, **own)
    logger.info("cache_config", SimpleNamespace(metrics_info=lambda: {**CACHE, "num_gpu_blocks": "1000"}))
    known = {
        "now": 1e12, "num_running_sys": 3, "num_waiting_sys": 2, "num_swapped_sys": 1, "gpu_cache_usage_sys": 0.5,
        "cpu_cache_usage_sys": 0.0, "cpu_prefix_cache_hit_rate": -1.0, "gpu_prefix_cache_hit_rate": 0.25,
        "num_prompt_tokens_iter": sum(r[0] for r in REQUESTS), "num_preemption_iter": 2,
        "num_generation_tokens_iter": sum(r[1] for r in REQUESTS), "num_tokens_iter": 539,
        "time_to_first_tokens_iter": [0.03, 0.2, 0.07], "time_per_output_tokens_iter": [0.012, 0.02, 0.03],
        "num_prompt_tokens_requests": [r[0] for r in REQUESTS], "n_requests": [1, 1, 1], "best_of_requests": [1, 1, 1],
        "num_generation_tokens_requests": [r[1] for r in REQUESTS], "max_lora": "0", "spec_decode_metrics": None,
        "max_num_generation_tokens_requests": [r[1] for r in REQUESTS],
        "max_tokens_requests": [r[2] for r in REQUESTS], "finished_reason_requests": [r[3] for r in REQUESTS],
    }  # fmt: skip
    given = {f.name: known.get(f.name, [0.4, 2.0, 0.5]) for f in dataclasses.fields(types.Stats)}
    given |= {name: [] for name in given if name.endswith("lora_adapters") or name.endswith("_time_requests")}
    logger.log(types.Stats(**given))


def _v1(root: Path) -> None:
    for helper in ("cache_hit_source", "stats", "utils", "buckets"):
        if (root / f"vllm/v1/metrics/{helper}.py").is_file():
            _module(root, f"vllm.v1.metrics.{helper}")
    loggers = _module(root, "vllm.v1.metrics.loggers")
    config = _config()
    logger = loggers.PrometheusStatLogger(config)
    config.cache_config.metrics_info = lambda: {**CACHE, "num_gpu_blocks": "1000"}
    if hasattr(logger, "log_engine_initialized"):
        logger.log_engine_initialized()
    finished = [
        _Record(
            finish_reason=loggers.FinishReason[reason], e2e_latency=1.5, queued_time=0.1, prefill_time=0.2,
            inference_time=1.4, decode_time=1.2, num_prompt_tokens=prompt, num_generation_tokens=output,
            max_tokens_param=limit, mean_time_per_output_token=0.02,
        )
        for prompt, output, limit, reason in REQUESTS
    ]  # fmt: skip
    scheduler = _Record(
        num_running_reqs=3, num_waiting_reqs=2, gpu_cache_usage=0.5, kv_cache_usage=0.5,
        prefix_cache_stats=_Record(queries=28, hits=7), waiting_lora_adapters={}, running_lora_adapters={},
    )  # fmt: skip
    iteration = _Record(
        num_preempted_reqs=2, num_prompt_tokens=450, num_generation_tokens=89, n_params_iter=[1, 1, 1],
        max_num_generation_tokens_iter=[20, 64, 5], time_to_first_tokens_iter=[0.03, 0.2, 0.07],
        time_per_output_tokens_iter=[0.012, 0.02, 0.03], inter_token_latencies_iter=[0.012, 0.02, 0.03],
        finished_requests=finished,
    )  # fmt: skip
    logger.record(scheduler, iteration)


def main() -> None:
    version, root, *v1 = sys.argv[1:]
    sys.meta_path.insert(0, _StandIns())
    import prometheus_client

    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # times at which a series was made: they would change with each call
    (_v1 if v1 else _v0)(Path(root))
    text = prometheus_client.generate_latest().decode()
    print(f"# vLLM {version}, {'v1' if v1 else 'v0'} engine: its own metrics classes with the values of")
    print("# hack/engine/metric_shapes.py, not a run; without the metrics of the process and the HTTP server")
    print(text[text.index("# HELP vllm:") :], end="")


if __name__ == "__main__":
    main()
