"""`trimtab kv`: bytes per block, blocks of the pool, and what requests reserve and use, from a config.json or flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trimtab.cli.console import errors, read_model_config, report_console
from trimtab.cli.kv_report import Report, Workload, as_json, build_report, show
from trimtab.engine.command import parse_template
from trimtab.engine.kv import LayoutOptions, Memory, Speculative, default_block_size
from trimtab.engine.kv.pool import DEFAULT_UTILIZATION
from trimtab.engine.model_config import ModelConfig
from trimtab.engine.values import read_integer
from trimtab.errors import EngineError, InputError
from trimtab.tune.argv import template_of

_UNITS: Final[Mapping[str, int]] = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
#: vLLM's smallest default; GPUs of 70 GiB and more take 8,192 or 16,384 (vllm/engine/arg_utils.py)
DEFAULT_BATCHED_TOKENS: Final = 2048
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def _model(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Model")


def _engine(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Engine (over the flags behind --)")


def _memory(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Memory of one GPU")


def _load(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Requests")


WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [-- COMMAND]",
        help="config.json of the model or its folder; behind --, vllm serve MODEL --flags... whose flags are read.",
    ),
]
LayersOption = Annotated[int | None, _model("Layers, instead of a config.json.")]
KvHeadsOption = Annotated[int | None, _model("KV heads, instead of a config.json.")]
HeadSizeOption = Annotated[int | None, _model("Head size, instead of a config.json.")]
WindowOption = Annotated[int | None, _model("Sliding window of all layers in tokens, instead of a config.json.")]
DtypeOption = Annotated[str | None, _engine("auto, float16, bfloat16 or float32.")]
KvDtypeOption = Annotated[str | None, _engine("--kv-cache-dtype: auto, fp8, int8_per_token_head, ...")]
BlockSizeOption = Annotated[int | None, _engine("Tokens. Default 16 on GPUs, 128 on CPUs.")]
TensorOption = Annotated[int | None, _engine("Tensor-parallel GPUs.", "--tensor-parallel-size", "--tp")]
PipelineOption = Annotated[int | None, _engine("Pipeline-parallel stages.", "--pipeline-parallel-size", "--pp")]
MaxLenOption = Annotated[int | None, _engine("Tokens. Default: the config's.")]
BatchedOption = Annotated[int | None, _engine("Tokens; matters to sliding windows only. Default 2048.")]
SpecMethodOption = Annotated[str | None, _engine("Speculative decoding: ngram, mtp, eagle, eagle3, draft_model.")]
SpecTokensOption = Annotated[int | None, _engine("Draft tokens per step.")]
SpecModelOption = Annotated[Path | None, _engine("config.json of the draft model, or its folder.")]
DeviceOption = Annotated[str | None, _memory("gpu or cpu. Default: cpu if --cpu-kvcache-space is given.")]
BlocksOption = Annotated[
    int | None, _memory("The running engine's own, from vllm:cache_config_info. Always wins over what is derived.")
]
OverrideOption = Annotated[int | None, _memory("--num-gpu-blocks-override.")]
KvBytesOption = Annotated[str | None, _memory("--kv-cache-memory-bytes, such as 20GiB.")]
CpuSpaceOption = Annotated[int | None, _memory("VLLM_CPU_KVCACHE_SPACE in GiB.")]
GpuMemoryOption = Annotated[str | None, _memory("Total, such as 80GiB or 25250627584 (bytes).")]
UtilizationOption = Annotated[float | None, _memory("--gpu-memory-utilization. Default 0.92.")]
WeightsOption = Annotated[str | None, _memory("Of the whole model, such as 16GB. Default: the files by the config.")]
NonKvOption = Annotated[str | None, _memory("Activations, graphs and the rest, if the engine's log told them.")]
PromptOption = Annotated[int | None, _load("Prompt tokens of a request. Default 0.")]
MaxNewOption = Annotated[int | None, _load("max_new_tokens (max_tokens) of a request.")]
GeneratedOption = Annotated[int | None, _load("Tokens it really generates. Default: max_new_tokens.")]
RunningOption = Annotated[int, _load("Requests that run at once on a replica.")]
ReplicasOption = Annotated[int, _load("Replicas of the engine.")]
MeanOption = Annotated[float | None, _load("Mean of prompt + generated tokens. Default: --prompt + --generated.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table or json.")]


def kv(
    words: WordsArgument = None,
    layers: LayersOption = None,
    kv_heads: KvHeadsOption = None,
    head_size: HeadSizeOption = None,
    sliding_window: WindowOption = None,
    dtype: DtypeOption = None,
    kv_cache_dtype: KvDtypeOption = None,
    block_size: BlockSizeOption = None,
    tensor_parallel: TensorOption = None,
    pipeline_parallel: PipelineOption = None,
    max_model_len: MaxLenOption = None,
    max_num_batched_tokens: BatchedOption = None,
    spec_method: SpecMethodOption = None,
    spec_tokens: SpecTokensOption = None,
    spec_model: SpecModelOption = None,
    device: DeviceOption = None,
    num_gpu_blocks: BlocksOption = None,
    num_gpu_blocks_override: OverrideOption = None,
    kv_cache_memory_bytes: KvBytesOption = None,
    cpu_kvcache_space: CpuSpaceOption = None,
    gpu_memory: GpuMemoryOption = None,
    gpu_memory_utilization: UtilizationOption = None,
    weights: WeightsOption = None,
    non_kv_memory: NonKvOption = None,
    prompt: PromptOption = None,
    max_new_tokens: MaxNewOption = None,
    generated: GeneratedOption = None,
    running: RunningOption = 1,
    replicas: ReplicasOption = 1,
    mean_tokens: MeanOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a KV-cache block weighs, how many there are, and what requests reserve, use and waste. Starts nothing.

    Example: trimtab kv --layers 32 --kv-heads 8 --head-size 128 --max-new-tokens 512 --generated 80
    """
    with errors():
        config, flags = _split(words or [])
        given = Flags(flags)
        if config is None and layers is None and given.model_folder is not None:
            config = given.model_folder
        model = _read_model(config, layers, kv_heads, head_size, sliding_window)
        options, caveat = _layout_options(
            given, model, device or ("gpu" if cpu_kvcache_space is None else "cpu"), block_size, kv_cache_dtype, dtype,
            tensor_parallel, pipeline_parallel, max_num_batched_tokens,
            _speculative(given, spec_method, spec_tokens, spec_model),
        )  # fmt: skip
        utilization = given.share("--gpu-memory-utilization", gpu_memory_utilization)
        memory = Memory(
            num_gpu_blocks=num_gpu_blocks,
            num_gpu_blocks_override=given.whole("--num-gpu-blocks-override", num_gpu_blocks_override),
            kv_cache_memory_bytes=given.size("--kv-cache-memory-bytes", kv_cache_memory_bytes),
            cpu_kvcache_space_gib=cpu_kvcache_space,
            gpu_memory_bytes=_size("--gpu-memory", gpu_memory),
            gpu_memory_utilization=DEFAULT_UTILIZATION if utilization is None else utilization,
            weights_bytes=_size("--weights", weights) or _weights_beside(config),
            non_kv_bytes=_size("--non-kv-memory", non_kv_memory),
        )
        length = given.whole("--max-model-len", max_model_len)
        load = Workload(prompt, max_new_tokens, generated, running, replicas, mean_tokens)
        report = build_report(model, options, memory, length or model.max_model_len, load, caveat)
        _print(report, output)


app = kv


def _print(report: Report, output: Output) -> None:
    if output is Output.JSON:
        print(json.dumps(as_json(report), indent=1))
    else:
        show(report, report_console(to_stderr=False))


def _layout_options(
    given: Flags,
    model: ModelConfig,
    device: str,
    block_size: int | None,
    kv_cache_dtype: str | None,
    dtype: str | None,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    max_num_batched_tokens: int | None,
    speculative: Speculative | None,
) -> tuple[LayoutOptions, str | None]:
    """The layout's options, and a caveat where the block size is assumed."""
    latent = any(layer is not None and layer.latent for layer in model.layers)
    assumed, caveat = default_block_size(device, latent)
    size = given.whole("--block-size", block_size)
    stages = given.whole("--pipeline-parallel-size", pipeline_parallel)
    ranks = given.whole("--tensor-parallel-size", tensor_parallel)
    batched = given.whole("--max-num-batched-tokens", max_num_batched_tokens)
    options = LayoutOptions(
        block_size=assumed if size is None else size,
        kv_cache_dtype=given.text("--kv-cache-dtype", kv_cache_dtype) or "auto",
        dtype=given.text("--dtype", dtype) or "auto",
        tensor_parallel=1 if ranks is None else ranks,
        pipeline_parallel=1 if stages is None else stages,
        max_num_batched_tokens=DEFAULT_BATCHED_TOKENS if batched is None else batched,
        in_flight_batches=max(stages or 1, 1 if device == "cpu" else 2),
        hybrid_manager=not given.is_set("--disable-hybrid-kv-cache-manager"),
        speculative=speculative,
    )
    return options, caveat if size is None else None


class Flags:
    """The engine's flags behind `--`; what the user gives as an option of `trimtab kv` wins."""

    def __init__(self, command: Sequence[str]) -> None:
        self.model_folder: Path | None = None
        self._values: dict[str, str] = {}
        self._set: set[str] = set()
        if not command:
            return
        try:
            read = parse_template(template_of(command))
        except EngineError as error:
            raise InputError(
                "command", str(error), "Write: trimtab kv CONFIG -- vllm serve MODEL --flags..."
            ) from error
        for flag in read.flags:
            if flag.wins and not flag.path and flag.value is not None:
                self._values[flag.name] = flag.value
            if flag.wins and not flag.negated:
                self._set.add(flag.name)
        if read.model and Path(read.model).is_dir():
            self.model_folder = Path(read.model)

    def is_set(self, name: str) -> bool:
        return name in self._set

    def text(self, name: str, option: str | None) -> str | None:
        return self._values.get(name) if option is None else option

    def whole(self, name: str, option: int | None) -> int | None:
        text = self._values.get(name)
        if option is not None or text is None:
            return option
        try:
            return read_integer(text, suffixes=True)
        except ValueError as error:
            raise InputError(name, f"{text!r} is no whole number", "Correct the engine's flag.") from error

    def share(self, name: str, option: float | None) -> float | None:
        text = self._values.get(name)
        if option is not None or text is None:
            return option
        try:
            return float(text)
        except ValueError as error:
            raise InputError(name, f"{text!r} is no number", "Correct the engine's flag.") from error

    def size(self, name: str, option: str | None) -> int | None:
        return _size(name, self.text(name, option))


def _split(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """(CONFIG, COMMAND): a first word that is a file, a folder or ends in .json is the config."""
    if words and (words[0].endswith(".json") or Path(words[0]).exists()):
        return Path(words[0]), list(words[1:])
    return None, list(words)


def _size(name: str, text: str | None) -> int | None:
    """Bytes from `20GiB`, `16GB` or a plain number."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InputError(name, f"{text!r} is no size", "Write 80GiB, 16GB or a number of bytes.")
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def _read_model(
    config: Path | None, layers: int | None, kv_heads: int | None, head_size: int | None, window: int | None
) -> ModelConfig:
    bare = {"--layers": layers, "--kv-heads": kv_heads, "--head-size": head_size}
    if config is not None:
        given = [name for name, value in {**bare, "--sliding-window": window}.items() if value is not None]
        if given:
            raise InputError(given[0], f"{config} says it already", "Give a config or the figures, not both.")
        return read_model_config(config, "CONFIG")
    if layers is None or kv_heads is None or head_size is None:
        missing = next(name for name, value in bare.items() if value is None)
        raise InputError(missing, "no config.json is given and this is missing", "Give CONFIG, or all three figures.")
    return ModelConfig.uniform(layers, kv_heads, head_size, window)


def _speculative(given: Flags, method: str | None, tokens: int | None, draft: Path | None) -> Speculative | None:
    """From options, else from the engine's --speculative-config."""
    text = given.text("--speculative-config", None)
    ranks = None
    if method is None and text is not None:
        try:
            read = json.loads(text)
        except ValueError as error:
            raise InputError("--speculative-config", f"is no JSON ({error})", "Correct the engine's flag.") from error
        if not isinstance(read, dict):
            raise InputError("--speculative-config", "is no JSON object", "Correct the engine's flag.")
        method = str(read.get("method") or "draft_model")
        method = "mtp" if method.endswith("_mtp") else method  # deepseek_mtp and the like: older names of one thing
        tokens = tokens or read.get("num_speculative_tokens")
        ranks = read.get("draft_tensor_parallel_size")
        folder = Path(str(read.get("model", "")))
        draft = draft or (folder if read.get("model") and folder.is_dir() else None)
    if method is None:
        return None
    if not isinstance(tokens, int):
        raise InputError("--spec-tokens", "is missing", "Give num_speculative_tokens.")
    return Speculative(method, tokens, None if draft is None else read_model_config(draft, "--spec-model"), ranks)


def _weights_beside(config: Path | None) -> int | None:
    """Bytes of the safetensors files beside a config.json, as the index says or as the files are."""
    if config is None:
        return None
    folder = config if config.is_dir() else config.parent
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
            return int(total)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("--weights", f"{index} has no metadata.total_size", "Give --weights.") from error
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
